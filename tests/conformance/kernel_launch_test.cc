// Launches: parameters, sizes, limits, and what holds them up.

#include <array>
#include <thread>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kLaunch[] = "CUDA Driver API 13.0, Execution Control, cuLaunchKernel";
constexpr char kSizes[] =
    "CUDA C++ Programming Guide 13.0, 20.2 Features and Technical Specifications; cuLaunchKernel";
constexpr char kCooperative[] =
    "CUDA Driver API 13.0, Execution Control, cuLaunchCooperativeKernel";

class LaunchTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    step_ = Kernel("step");
    word_ = NewWord(1);
  }
  CUresult Launch(std::array<unsigned, 3> grid, std::array<unsigned, 3> block, void** params,
                  unsigned shared = 0, void** extra = nullptr) {
    return CUDA(cuLaunchKernel)(step_, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                shared, nullptr, params, extra);
  }
  void** Params() { return params_; }
  int Ask(CUdevice_attribute attribute) {
    int value = 0;
    EXPECT_EQ(CUDA(cuDeviceGetAttribute)(&value, attribute, 0), CUDA_SUCCESS);
    return value;
  }

  CUfunction step_ = nullptr;
  CUdeviceptr word_ = 0;
  uint64_t factor_ = 2;
  uint64_t term_ = 5;
  uint64_t ns_ = 1000;
  void* params_[4] = {&word_, &factor_, &term_, &ns_};
};

RULE_TEST(LaunchTest, ParametersAreCopiedAtTheLaunch,
          "the parameters are copied from kernelParams by the launch: changing them later changes "
          "nothing",
          kLaunch) {
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(Launch({1, 1, 1}, {1, 1, 1}, Params()), CUDA_SUCCESS);
  factor_ = term_ = 100;
  gate.Open();
  EXPECT_EQ(ReadWord(word_), 7u);
}

RULE_TEST(LaunchTest, ParametersCanComeInOneBuffer,
          "kernel parameters can be packed into a buffer that `extra` names", kLaunch) {
  struct {
    CUdeviceptr word;
    uint64_t factor, term, ns;
  } buffer = {word_, 3, 4, 1000};
  size_t bytes = sizeof(buffer);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  ASSERT_EQ(Launch({1, 1, 1}, {1, 1, 1}, nullptr, 0, extra), CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(word_), 7u);
}

RULE_TEST(LaunchTest, ParametersComeOneWay,
          "kernelParams and extra together are CUDA_ERROR_INVALID_VALUE", kLaunch) {
  size_t bytes = 32;
  char buffer[32] = {};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}, Params(), 0, extra), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(LaunchTest, AParameterBufferIsLargeEnough,
          "a buffer smaller than the parameters is refused",
          "CUDA Driver API 13.0, Execution Control, cuLaunchKernel (return values)") {
  SIMULATED_ONLY("the driver's check is not documented");
  char buffer[32] = {};
  size_t bytes = 16;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}, nullptr, 0, extra), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}, nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(LaunchTest, OddParametersKeepTheirPlaces,
          "parameters of every size are each copied, and placed by their alignment",
          "CUDA C++ Programming Guide 13.0, 21.3 Kernel Execution (alignment of parameters)") {
  SIMULATED_ONLY("the kernel is a host function");
  CUdeviceptr out = 0;
  CUDA_OK(cuMemAlloc_v2, &out, 7 * 8);
  struct {
    unsigned char byte = 200;
    unsigned short half = 60'000;
    uint64_t word = uint64_t{1} << 40;
    unsigned full = 5;
    std::array<unsigned, 3> triple = {1, 2, 3};
    CUdeviceptr out;
  } p;
  p.out = out;
  size_t bytes = sizeof(p);
  void* params[] = {&p.byte, &p.half, &p.word, &p.full, &p.triple, &p.out};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &p, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  for (bool packed : {false, true}) {
    CUDA_OK(cuMemsetD8_v2, out, 0, 7 * 8);
    CUDA_OK(cuLaunchKernel, Kernel("mixed"), 1, 1, 1, 1, 1, 1, 100, nullptr,
            packed ? nullptr : params, packed ? extra : nullptr);
    uint64_t seen[7];
    CUDA_OK(cuMemcpyDtoH_v2, seen, out, sizeof(seen));
    EXPECT_EQ(seen[0], 200u);
    EXPECT_EQ(seen[1], 60'000u);
    EXPECT_EQ(seen[2], uint64_t{1} << 40);
    EXPECT_EQ(seen[3], 5u);
    EXPECT_EQ(seen[4], 3u);
    EXPECT_EQ(seen[6], 100u);
  }
}

RULE_TEST(LaunchTest, NoDimensionIsZero, "a grid or block dimension of 0 is refused", kLaunch) {
  for (int axis = 0; axis < 3; ++axis) {
    std::array<unsigned, 3> sizes = {1, 1, 1};
    sizes[axis] = 0;
    EXPECT_EQ(Launch(sizes, {1, 1, 1}, Params()), CUDA_ERROR_INVALID_VALUE) << axis;
    EXPECT_EQ(Launch({1, 1, 1}, sizes, Params()), CUDA_ERROR_INVALID_VALUE) << axis;
  }
}

RULE_TEST(LaunchTest, ABlockHasALimitOfThreads,
          "a block of more threads than MAX_THREADS_PER_BLOCK is refused, in whatever shape",
          kSizes) {
  const auto most = static_cast<unsigned>(Ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  EXPECT_EQ(Launch({1, 1, 1}, {most + 1, 1, 1}, Params()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch({1, 1, 1}, {most / 2, 3, 1}, Params()), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(LaunchTest, ABlockHasALimitOfDepth, "a block deeper than MAX_BLOCK_DIM_Z is refused",
          kSizes) {
  const auto most = static_cast<unsigned>(Ask(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z));
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, most + 1}, Params()), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(LaunchTest, AGridHasLimits, "a grid beyond MAX_GRID_DIM_Y or MAX_GRID_DIM_Z is refused",
          kSizes) {
  const auto y = static_cast<unsigned>(Ask(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y));
  const auto z = static_cast<unsigned>(Ask(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z));
  EXPECT_EQ(Launch({1, y + 1, 1}, {1, 1, 1}, Params()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch({1, 1, z + 1}, {1, 1, 1}, Params()), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(LaunchTest, SharedMemoryHasALimit,
          "more dynamic shared memory than the function's limit is refused",
          "CUDA C++ Programming Guide 13.0, 20.9 Compute Capability 9.0, Shared Memory: 48 KB "
          "unless opted in; cuLaunchKernel") {
  const auto most = static_cast<unsigned>(Ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}, Params(), most + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}, Params(), most), CUDA_SUCCESS);
}

RULE_TEST(LaunchTest, MoreSharedMemoryIsOptedInto,
          "after MAX_DYNAMIC_SHARED_SIZE_BYTES is raised, launches may ask for as much",
          "CUDA Driver API 13.0, Execution Control, cuFuncSetAttribute") {
  const int more = Ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  CUDA_OK(cuFuncSetAttribute, step_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, more);
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}, Params(), static_cast<unsigned>(more)), CUDA_SUCCESS);
}

RULE_TEST(LaunchTest, LaunchesDoNotWait,
          "kernel launches are asynchronous with respect to the host",
          "CUDA Driver API 13.0, API synchronization behavior, Kernel Launches") {
  ASSERT_EQ(NewGate().Hold(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}, Params()), CUDA_SUCCESS);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, nullptr);
}

RULE_TEST(LaunchTest, CooperativeBlocksAllFit,
          "a cooperative launch of more blocks than fit at once is "
          "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
          kCooperative) {
  int per_sm = 0;
  CUDA_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor, &per_sm, step_, 1024, 0);
  const auto most = static_cast<unsigned>(per_sm * Ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  CUDA_IS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchCooperativeKernel, step_, most + 1, 1, 1,
          1024, 1, 1, 0, nullptr, Params());
  CUDA_OK(cuLaunchCooperativeKernel, step_, most, 1, 1, 1024, 1, 1, 0, nullptr, Params());
}

RULE_TEST(LaunchTest, CooperativeBlocksFitWithTheirSharedMemory,
          "the limit of a cooperative launch counts its shared memory, as occupancy does",
          kCooperative) {
  int per_sm = 0;
  const int shared = Ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  CUDA_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor, &per_sm, step_, 32,
          static_cast<size_t>(shared));
  const auto most = static_cast<unsigned>(per_sm * Ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  CUDA_IS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchCooperativeKernel, step_, most + 1, 1, 1,
          32, 1, 1, static_cast<unsigned>(shared), nullptr, Params());
}

RULE_TEST(LaunchTest, ALaunchIsConfiguredByAStructure,
          "cuLaunchKernelEx launches as cuLaunchKernel does, with the configuration's sizes",
          "CUDA Driver API 13.0, Execution Control, cuLaunchKernelEx") {
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  CUDA_OK(cuLaunchKernelEx, &config, step_, Params(), nullptr);
  EXPECT_EQ(ReadWord(word_), 7u);
  config.gridDimX = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx, &config, step_, Params(), nullptr);
}

RULE_TEST(LaunchTest, FunctionAndStreamAreOfOneContext,
          "a function of one context is not launched into a stream of another",
          "CUDA C++ Programming Guide 13.0, 6.2.9.3 Stream and Event Behavior; cuLaunchKernel "
          "(return values)") {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUstream stream = NewStream();
  EXPECT_EQ(CUDA(cuLaunchKernel)(step_, 1, 1, 1, 1, 1, 1, 0, stream, Params(), nullptr),
            CUDA_ERROR_INVALID_HANDLE);
  CUDA_OK(cuCtxDestroy_v2, other);
}

RULE_TEST(LaunchTest, NoFunctionIsNoHandle, "a NULL function is CUDA_ERROR_INVALID_HANDLE",
          "CUDA Driver API 13.0, Execution Control, cuLaunchKernel (return values)") {
  step_ = nullptr;
  EXPECT_EQ(Launch({1, 1, 1}, {1, 1, 1}, Params()), CUDA_ERROR_INVALID_HANDLE);
}

RULE_TEST(LaunchTest, WorkOutlivesItsModule,
          "work that was launched runs, though its module is unloaded meanwhile",
          "CUDA Driver API 13.0, Module Management, cuModuleUnload (as observed)") {
  ASSERT_EQ(Step(nullptr, word_, 5, 0, 20'000'000), CUDA_SUCCESS);
  CUDA_OK(cuModuleUnload, module_);
  module_ = nullptr;
  EXPECT_EQ(ReadWord(word_), 5u);
}

RULE_TEST(LaunchTest, LaunchesBeyondTheQueueWait,
          "however many launches are outstanding, none is lost and all run in order",
          "CUDA Driver API 13.0, Execution Control, cuLaunchKernel") {
  CUstream stream = NewStream();
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(Step(stream, word_, 1, 1, 1), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(ReadWord(word_), 5001u);
}

RULE_TEST(LaunchTest, KernelsAreReportedWhenTheyRan,
          "a host kernel's times are the model's, one launch behind the other",
          "sim/host_kernel.h, ProrataHostLaunch") {
  SIMULATED_ONLY("the kernel is a host function");
  CUdeviceptr out = 0;
  CUDA_OK(cuMemAlloc_v2, &out, 4 * 8);
  CUdeviceptr second = out + 16;
  uint64_t ns = 3'000'000;
  void* first_params[] = {&out, &ns};
  void* second_params[] = {&second, &ns};
  for (void** params : {first_params, second_params}) {
    CUDA_OK(cuLaunchKernel, Kernel("stamp"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
  }
  uint64_t seen[4];
  CUDA_OK(cuMemcpyDtoH_v2, seen, out, sizeof(seen));
  EXPECT_EQ(seen[1] - seen[0], ns);
  EXPECT_EQ(seen[3] - seen[2], ns);
  EXPECT_GE(seen[2], seen[1]);
}

// For ThreadSanitizer, too: its settings change meanwhile.
RULE_TEST(LaunchTest, ManyThreadsLaunchOneFunction,
          "a function may be launched by any number of threads at once",
          "CUDA C++ Programming Guide 13.0, 21.1 Context (a context used by several threads)") {
  constexpr int kThreads = 4;
  constexpr int kLaunches = 50;
  std::array<CUdeviceptr, kThreads> words;
  for (CUdeviceptr& word : words) word = NewWord(0);
  std::vector<std::thread> threads;
  for (const CUdeviceptr word : words) {
    threads.emplace_back([&, word] {
      CUDA_OK(cuCtxSetCurrent, ctx_);
      CUstream stream;
      CUDA_OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
      for (int i = 0; i < kLaunches; ++i) ASSERT_EQ(Step(stream, word, 1, 1, 1), CUDA_SUCCESS);
      CUDA_OK(cuStreamSynchronize, stream);
    });
  }
  for (int i = 0; i < kLaunches; ++i) {
    CUDA_OK(cuFuncSetAttribute, step_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024 + i);
  }
  for (std::thread& thread : threads) thread.join();
  for (const CUdeviceptr word : words) EXPECT_EQ(ReadWord(word), uint64_t{kLaunches});
}

}  // namespace
}  // namespace prorata::conformance
