// stream_cases: what a program does around stream captures, waits and copies, for so many rounds.
//
//   stream_cases MODE --kernels FILE --progress FILE --rounds N
//
// Every call is checked: it ends with 0 after the last round, and the bare driver always does.
// --progress is as in shapes.cc. The modes are the methods of Program.

#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "tests/promises/device.h"

namespace prorata::shapes {
namespace {

constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING

class Program {
 public:
  explicit Program(const Options& options)
      : rounds_(options.Number("rounds", 1)),
        progress_(MapProgress(options.Text("progress"))),
        device_(FirstDevice(options.Text("kernels"))) {}

  int Run(const std::string& mode) {
    static const std::map<std::string, void (Program::*)()> modes = {
        {"work-beside-a-capture", &Program::WorkBesideACapture},
        {"legacy-launch", &Program::LegacyLaunch},
        {"legacy-wait", &Program::LegacyWait},
        {"lost-with-its-context", &Program::LostWithItsContext},
        {"joined-stream-destroyed", &Program::JoinedStreamDestroyed},
        {"legacy-before-a-wait", &Program::LegacyBeforeAWait},
        {"legacy-waits", &Program::LegacyWaits},
        {"legacy-host-function", &Program::LegacyHostFunction},
        {"beside-a-host-function", &Program::BesideAHostFunction},
        {"long-copies", &Program::LongCopies},
        {"left-by-a-jump", &Program::LeftByAJump},
        {"left-by-a-jump-between-kernels", &Program::LeftByAJumpBetweenKernels},
    };
    const auto found = modes.find(mode);
    if (found == modes.end()) {
      std::fprintf(stderr, "unknown mode '%s'\n", mode.c_str());
      return 2;
    }
    (this->*found->second)();
    return 0;
  }

 private:
  static Device FirstDevice(const std::string& image) {
    SHAPES_CALL(cuInit, 0);
    return Device(0, image);
  }

  // What is launched before a capture, and into other streams while it is open.
  void WorkBesideACapture() {
    CUstream captured = Stream(kNonBlocking), before = Stream(kNonBlocking);
    CUstream beside = Stream(kNonBlocking);
    Learn({captured, before, beside});
    for (int64_t i = 0; i < rounds_; ++i) {
      Launch(before, 100);
      Begin(captured);
      Launch(captured, 100);
      for (int k = 0; k < 10; ++k) Launch(beside, 100);
      SHAPES_CALL(cuStreamSynchronize, beside);
      Launch(captured, 100);
      End(captured, 2);
      SHAPES_CALL(cuCtxSynchronize);
    }
  }

  // Work is in the legacy stream when a capture begins in a blocking one, and another blocking one
  // gets a launch, or a wait for an event.
  void LegacyLaunch() { Legacy(false); }
  void LegacyWait() { Legacy(true); }
  void Legacy(bool wait) {
    CUstream captured = Stream(kBlocking), other = Stream(kBlocking);
    Learn({nullptr, captured, other});
    CUevent event = nullptr;
    SHAPES_CALL(cuEventCreate, &event, kDisableTiming);
    for (int64_t i = 0; i < rounds_; ++i) {
      SHAPES_CALL(cuEventRecord, event, other);
      Launch(nullptr, 20);
      Begin(captured);
      Launch(captured, 20);
      if (wait) {
        SHAPES_CALL(cuStreamWaitEvent, other, event, 0);
      } else {
        Launch(other, 20);
      }
      Launch(captured, 20);
      End(captured, 2);
      SHAPES_CALL(cuCtxSynchronize);
    }
  }

  // A context goes with a capture open in it; work in another one.
  void LostWithItsContext() {
    CUcontext lost = nullptr;
    SHAPES_CALL(cuCtxCreate_v2, &lost, 0, 0);
    Begin(Stream(kNonBlocking));
    SHAPES_CALL(cuCtxDestroy_v2, lost);
    device_.Use();
    CUstream first = Stream(kNonBlocking), second = Stream(kNonBlocking);
    for (int64_t i = 0; i < rounds_; ++i) {
      Launch(first, 100);
      for (int k = 0; k < 10; ++k) Launch(second, 100);
      SHAPES_CALL(cuStreamSynchronize, second);
      SHAPES_CALL(cuStreamSynchronize, first);
    }
  }

  // Two captures are open, and a stream that has joined the first is destroyed: that one is
  // invalid then, and the other goes on.
  void JoinedStreamDestroyed() {
    CUstream first = Stream(kNonBlocking), second = Stream(kNonBlocking);
    Learn({first, second});
    CUevent event = nullptr;
    SHAPES_CALL(cuEventCreate, &event, kDisableTiming);
    for (int64_t i = 0; i < rounds_; ++i) {
      CUstream joined = Stream(kNonBlocking);
      Begin(first);
      Launch(first, 100);
      Begin(second);
      SHAPES_CALL(cuEventRecord, event, first);
      SHAPES_CALL(cuStreamWaitEvent, joined, event, 0);
      Launch(joined, 100);
      SHAPES_CALL(cuStreamDestroy_v2, joined);
      CUgraph graph = nullptr;
      if (LoadedDriver().cuStreamEndCapture(first, &graph) == CUDA_SUCCESS) Fail("a valid capture");
      for (int k = 0; k < 4; ++k) Launch(second, 100);
      End(second, 4);
    }
  }

  // A launch in the legacy stream; then a wait in a blocking stream that a write in another ends.
  void LegacyBeforeAWait() {
    CUstream waits = Stream(kBlocking), writes = Stream(kBlocking);
    CUdeviceptr word = 0;
    SHAPES_CALL(cuMemAlloc_v2, &word, 4096);
    SHAPES_CALL(cuMemsetD8_v2, word, 0, 4096);
    Learn({nullptr, waits});
    std::mt19937 random(1);
    for (int64_t i = 1; i <= rounds_; ++i) {
      Launch(nullptr, 20);
      // The helper fences it at any moment of these.
      const auto until =
          std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 400);
      while (std::chrono::steady_clock::now() < until) {
      }
      SHAPES_CALL(cuStreamWaitValue32_v2, waits, word, static_cast<unsigned>(i), kGeq);
      Launch(waits, 5);
      SHAPES_CALL(cuStreamWriteValue32_v2, writes, word, static_cast<unsigned>(i), 0);
      SHAPES_CALL(cuCtxSynchronize);
    }
  }

  // Short kernels in a blocking stream; then the legacy stream waits until the host has slept.
  void LegacyWaits() {
    CUstream works = Stream(kBlocking);
    void* memory = nullptr;
    SHAPES_CALL(cuMemHostAlloc, &memory, 4096, 0);
    std::memset(memory, 0, 4096);
    auto* word = static_cast<volatile uint32_t*>(memory);
    for (int64_t i = 1; i <= rounds_; ++i) {
      Launch(works, 300);
      Launch(works, 300);
      SHAPES_CALL(cuStreamWaitValue32_v2, nullptr, reinterpret_cast<CUdeviceptr>(memory),
                  static_cast<unsigned>(i), kGeq);
      // The host works for so long; nothing is waited for here.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      *word = static_cast<uint32_t>(i);
      SHAPES_CALL(cuCtxSynchronize);
    }
  }

  // A kernel in a blocking stream, behind a host function in the legacy one.
  void LegacyHostFunction() {
    CUstream works = Stream(kBlocking);
    for (int64_t i = 0; i < rounds_; ++i) {
      SHAPES_CALL(cuLaunchHostFunc, nullptr, Work20Ms, nullptr);
      Launch(works, 1000);
      SHAPES_CALL(cuCtxSynchronize);
    }
  }

  // A kernel behind a host function, and another in a second stream beside it.
  void BesideAHostFunction() {
    CUstream waits = Stream(kNonBlocking), works = Stream(kNonBlocking);
    for (int64_t i = 0; i < rounds_; ++i) {
      SHAPES_CALL(cuLaunchHostFunc, waits, Work20Ms, nullptr);
      Launch(waits, 500);
      Launch(works, 500);
      SHAPES_CALL(cuStreamSynchronize, works);
      SHAPES_CALL(cuStreamSynchronize, waits);
    }
  }

  // Kernels of 2 ms, each behind a copy from the host that takes several times as long.
  void LongCopies() {
    constexpr size_t kBytes = 256 << 20;
    CUstream stream = Stream(kNonBlocking);
    void* host = nullptr;
    SHAPES_CALL(cuMemHostAlloc, &host, kBytes, 0);
    CUdeviceptr device = 0;
    SHAPES_CALL(cuMemAlloc_v2, &device, kBytes);
    for (int64_t i = 0; i < rounds_; ++i) {
      for (int k = 0; k < 2; ++k) {
        SHAPES_CALL(cuMemcpyHtoDAsync_v2, device, host, kBytes, stream);
        Launch(stream, 2000);
      }
      SHAPES_CALL(cuStreamSynchronize, stream);
    }
  }

  // A signal's handler jumps out of a synchronisation, as that of an interpreter does at Ctrl-C,
  // and the program goes on. Says whether it may allocate 2 GiB.
  void LeftByAJump() {
    CUstream stream = Stream(kNonBlocking);
    Launch(stream, 300'000);
    JumpSoonOutOf([&] { SHAPES_CALL(cuStreamSynchronize, stream); });
    CUdeviceptr memory = 0;
    const CUresult result = LoadedDriver().cuMemAlloc_v2(&memory, size_t{2} << 30);
    std::printf("allocating: %d\n", result);
    for (int64_t i = 0; i < rounds_; ++i) {
      Launch(stream, 1000);
      SHAPES_CALL(cuStreamSynchronize, stream);
    }
    std::fflush(stdout);
  }

  // The same out of a launch most likely, for in a share with a limit these wait for most of the
  // time. Then a kernel now and then.
  void LeftByAJumpBetweenKernels() {
    CUstream stream = Stream(kNonBlocking);
    JumpSoonOutOf([&] {
      for (int i = 0; i < 1000; ++i) {
        Launch(stream, 2000);
        SHAPES_CALL(cuStreamSynchronize, stream);
      }
    });
    for (int64_t i = 0; i < rounds_; ++i) {
      Launch(stream, 1000);
      SHAPES_CALL(cuStreamSynchronize, stream);
      // The host works for so long; nothing is waited for here.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  template <typename Call>
  static void JumpSoonOutOf(Call&& call) {
    ::signal(SIGALRM, [](int) { siglongjmp(g_before, 1); });
    const itimerval soon = {{0, 0}, {0, 200'000}};
    if (sigsetjmp(g_before, 1) != 0) return;
    ::setitimer(ITIMER_REAL, &soon, nullptr);
    call();
    Fail("it was not interrupted");
  }

  // The host's work; nothing is waited for here.
  static void Work20Ms(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  CUstream Stream(unsigned flags) const { return device_.Stream(flags); }
  void Launch(CUstream stream, uint64_t us) { device_.Launch(progress_, stream, us * 1000); }

  // How long kernels take in these streams.
  void Learn(std::initializer_list<CUstream> streams) {
    for (int i = 0; i < 20; ++i) {
      for (CUstream stream : streams) Launch(stream, 100);
      SHAPES_CALL(cuCtxSynchronize);
    }
  }

  static void Begin(CUstream stream) {
    SHAPES_CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  }

  static void End(CUstream stream, size_t nodes) {
    CUgraph graph = nullptr;
    SHAPES_CALL(cuStreamEndCapture, stream, &graph);
    size_t seen = 0;
    SHAPES_CALL(cuGraphGetNodes, graph, nullptr, &seen);
    if (seen != nodes) Fail("another number of nodes");
    SHAPES_CALL(cuGraphDestroy, graph);
  }

  [[noreturn]] static void Fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
  }

  static inline sigjmp_buf g_before;

  const int64_t rounds_;
  uint64_t* const progress_;
  const Device device_;
};

}  // namespace
}  // namespace prorata::shapes

int main(int argc, char** argv) {
  const prorata::shapes::Options options = prorata::shapes::Parse(argc, argv);
  // Without the exit functions of a program: its streams and graphs are left as they are.
  std::_Exit(prorata::shapes::Program(options).Run(options.mode));
}
