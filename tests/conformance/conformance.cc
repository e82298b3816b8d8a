#include "conformance.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "other_process.h"

namespace prorata::conformance {
namespace {

constexpr const char* kFreshProcess = "PRORATA_CONFORMANCE_FRESH_PROCESS";
// How long a stream may take to do what it must. A driver that is right is never near it, however
// busy the machine; who breaks a rule on purpose (test_mutations.py) says less.
constexpr const char* kPatience = "PRORATA_CONFORMANCE_PATIENCE_S";
constexpr int kPatienceS = 60;

void* g_library = nullptr;

struct RuleText {
  const char* test;
  const char* rule;
  const char* source;
};

// Filled before main.
std::vector<RuleText>& Rules() {
  static std::vector<RuleText> rules;
  return rules;
}

std::string Quoted(const char* text) {
  std::string quoted = "\"";
  for (; *text != 0; ++text) {
    if (*text == '"' || *text == '\\') quoted += '\\';
    quoted += *text;
  }
  return quoted + "\"";
}

void ListRules() {
  const char* separator = "[\n";
  for (const RuleText& rule : Rules()) {
    std::printf("%s  {\"test\": %s,\n   \"rule\": %s,\n   \"source\": %s}", separator,
                Quoted(rule.test).c_str(), Quoted(rule.rule).c_str(), Quoted(rule.source).c_str());
    separator = ",\n";
  }
  std::printf("%s\n", Rules().empty() ? "[]" : "\n]");
}

// Where this program lies: a build may be carried to another machine and folder.
std::filesystem::path ProgramFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

bool LoadDriver() {
  const std::string path = OnRealGpu()
                               ? std::string("libcuda.so.1")
                               : (ProgramFolder().parent_path() / "sim" / "libcuda.so.1").string();
  g_library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  return g_library != nullptr;
}

// One machine for the process, in a folder that goes with it.
class MachineEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    // Kernels are loaded with their module: loading one later may wait for the whole device, which
    // a closed gate holds up.
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (!OnRealGpu()) {
      char folder[] = "/tmp/prorata-simgpu-XXXXXX";
      ASSERT_NE(mkdtemp(folder), nullptr);
      folder_ = folder;
      setenv("PRORATA_SIM_STATE", folder, 1);
      unsetenv("CUDA_VISIBLE_DEVICES");
    }
    ASSERT_TRUE(LoadDriver()) << dlerror();
  }
  void TearDown() override {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

 private:
  std::string folder_;
};

const auto* const g_environment =
    ::testing::AddGlobalTestEnvironment(new MachineEnvironment);  // gtest owns it

}  // namespace

std::chrono::seconds Patience() {
  const char* seconds = getenv(kPatience);
  return std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : kPatienceS);
}

namespace {

// Waits for a child; one that is late is killed. Whether it ended well.
bool EndsWell(pid_t child) {
  // Its streams' time, and its own start and end.
  const auto deadline = std::chrono::steady_clock::now() + Patience() + std::chrono::seconds(60);
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

namespace {

// What a thread of this process does now ('S': it sleeps), and for how long it has run.
std::pair<char, int64_t> ThreadState(pid_t tid) {
  std::ifstream file("/proc/self/task/" + std::to_string(tid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return {'?', 0};
  std::istringstream fields(text.substr(after_name + 1));
  char state = '?';
  fields >> state;
  // proc(5): utime and stime are the fields 14 and 15; the state is the third.
  int64_t skipped = 0, user = 0, system = 0;
  for (int field = 4; field < 14; ++field) fields >> skipped;
  fields >> user >> system;
  return {state, (user + system) * 1000 / sysconf(_SC_CLK_TCK)};
}

}  // namespace

RuleRecord::RuleRecord(const char* test, const char* rule, const char* source) {
  Rules().push_back({test, rule, source});
}

void* DriverSymbol(const char* name) {
  void* symbol = dlsym(g_library, name);
  if (!symbol) std::fprintf(stderr, "the driver does not export %s\n", name);
  return symbol;
}

bool OnRealGpu() {
  const char* gpu = getenv("PRORATA_TEST_GPU");
  return gpu != nullptr && std::string_view(gpu) == "real";
}

std::string KernelImage() {
  return ProgramFolder() / (OnRealGpu() ? "conformance_kernels.ptx" : "conformance_kernels.so");
}

bool InFreshProcess() {
  if (getenv(kFreshProcess) != nullptr) return true;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  const pid_t child = fork();
  if (child == 0) {
    setenv(kFreshProcess, "1", 1);
    execl("/proc/self/exe", "conformance_suite", filter.c_str(), "--gtest_brief=1", nullptr);
    _exit(127);
  }
  EXPECT_TRUE(child > 0 && EndsWell(child)) << "the test failed in a process of its own";
  return false;
}

bool InFreshProcessOn(const char* machine) {
  if (OnRealGpu() || getenv(kFreshProcess) != nullptr) return true;
  // Broken rules come in the machine's file, too.
  std::ostringstream text;
  const char* given = getenv("PRORATA_SIM_MACHINE");
  if (given != nullptr) text << std::ifstream(given).rdbuf();
  text << machine;
  char path[] = "/tmp/prorata-machine-XXXXXX";
  close(mkstemp(path));
  std::ofstream(path) << text.str();
  const std::string before = given != nullptr ? given : "";
  setenv("PRORATA_SIM_MACHINE", path, 1);
  InFreshProcess();
  unlink(path);
  given != nullptr ? setenv("PRORATA_SIM_MACHINE", before.c_str(), 1)
                   : unsetenv("PRORATA_SIM_MACHINE");
  return false;
}

Gate::Gate() {
  void* memory = nullptr;
  EXPECT_EQ(CUDA(cuMemHostAlloc)(&memory, sizeof(*word_), CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
  if (memory == nullptr) return;
  word_ = static_cast<uint32_t*>(memory);
  __atomic_store_n(word_, 0, __ATOMIC_RELEASE);
  EXPECT_EQ(CUDA(cuMemHostGetDevicePointer_v2)(&address_, memory, 0), CUDA_SUCCESS);
}

Gate::~Gate() { Open(); }

CUresult Gate::Hold(CUstream stream) const {
  return CUDA(cuStreamWaitValue32_v2)(stream, address_, 1, CU_STREAM_WAIT_VALUE_EQ);
}

void Gate::Open() {
  if (word_ != nullptr) __atomic_store_n(word_, 1, __ATOMIC_RELEASE);
}

void DriverTest::SetUp() {
  CUDA_OK(cuInit, 0);
  CUDA_OK(cuCtxCreate_v2, &ctx_, 0, 0);
}

void DriverTest::TearDown() {
  gates_.clear();
  if (ctx_) {
    CUDA_OK(cuCtxDestroy_v2, ctx_);
  }
}

uint64_t DriverTest::FreeBytes() {
  size_t free_bytes = 0;
  size_t total = 0;
  EXPECT_EQ(CUDA(cuMemGetInfo_v2)(&free_bytes, &total), CUDA_SUCCESS);
  return free_bytes;
}

CUfunction DriverTest::Kernel(const char* name) {
  if (!module_) {
    EXPECT_EQ(CUDA(cuModuleLoad)(&module_, KernelImage().c_str()), CUDA_SUCCESS);
  }
  CUfunction function = nullptr;
  EXPECT_EQ(CUDA(cuModuleGetFunction)(&function, module_, name), CUDA_SUCCESS) << name;
  return function;
}

CUresult DriverTest::Step(CUstream stream, CUdeviceptr word, uint64_t factor, uint64_t term,
                          uint64_t ns) {
  void* params[] = {&word, &factor, &term, &ns};
  return CUDA(cuLaunchKernel)(Kernel("step"), 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
}

uint64_t DriverTest::ReadWord(CUdeviceptr word) {
  uint64_t value = 0;
  EXPECT_EQ(CUDA(cuMemcpyDtoH_v2)(&value, word, sizeof(value)), CUDA_SUCCESS);
  return value;
}

CUdeviceptr DriverTest::NewWord(uint64_t value) {
  CUdeviceptr word = 0;
  EXPECT_EQ(CUDA(cuMemAlloc_v2)(&word, sizeof(value)), CUDA_SUCCESS);
  EXPECT_EQ(CUDA(cuMemcpyHtoD_v2)(word, &value, sizeof(value)), CUDA_SUCCESS);
  return word;
}

volatile uint64_t* DriverTest::HostWord(uint64_t value) {
  static uint64_t nowhere = 0;
  void* memory = nullptr;
  EXPECT_EQ(CUDA(cuMemHostAlloc)(&memory, sizeof(value), CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
  volatile uint64_t* word = memory != nullptr ? static_cast<uint64_t*>(memory) : &nowhere;
  *word = value;
  return word;
}

CUstream DriverTest::NewStream(unsigned flags) {
  CUstream stream = nullptr;
  EXPECT_EQ(CUDA(cuStreamCreate)(&stream, flags), CUDA_SUCCESS);
  return stream;
}

CUevent DriverTest::NewEvent(unsigned flags) {
  CUevent event = nullptr;
  EXPECT_EQ(CUDA(cuEventCreate)(&event, flags), CUDA_SUCCESS);
  return event;
}

void DriverTest::Settle() {
  constexpr uint64_t kNs = 3'000'000;
  EXPECT_EQ(Step(settle_stream_, AddressOf(settle_word_), 0, 1, kNs), CUDA_SUCCESS);
  EXPECT_EQ(CUDA(cuStreamSynchronize)(settle_stream_), CUDA_SUCCESS);
}

bool DriverTest::IsBusy(CUstream stream) {
  return CUDA(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY;
}

bool DriverTest::Waits(const std::function<void()>& call, const std::function<void()>& release) {
  std::atomic<pid_t> tid = 0;
  std::atomic<bool> done = false;
  std::thread caller([&] {
    EXPECT_EQ(CUDA(cuCtxSetCurrent)(ctx_), CUDA_SUCCESS);
    tid = gettid();
    call();
    done = true;
  });
  // Looks once a millisecond, and less often where the machine is busy: that only makes it longer.
  for (int asleep = 0; !done && asleep < 50;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto [state, ran_ms] = ThreadState(tid);
    if (ran_ms >= 50) break;
    asleep = state == 'S' ? asleep + 1 : 0;
  }
  const bool waits = !done;
  release();
  caller.join();
  return waits;
}

bool DriverTest::Finishes(CUstream stream) {
  const auto deadline = std::chrono::steady_clock::now() + Patience();
  while (IsBusy(stream)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return CUDA(cuStreamQuery)(stream) == CUDA_SUCCESS;
}

Gate& DriverTest::NewGate() {
  if (!settle_stream_) {
    settle_stream_ = NewStream();
    settle_word_ = HostWord(0);
  }
  return *gates_.emplace_back(std::make_unique<Gate>());
}

}  // namespace prorata::conformance

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--list-rules") {
    prorata::conformance::ListRules();
    return 0;
  }
  if (argc == 4 && std::string_view(argv[1]) == "--other-process") {
    if (!prorata::conformance::LoadDriver()) return 1;
    return prorata::conformance::ServeOtherProcess(std::atoi(argv[2]), std::atoi(argv[3]));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
