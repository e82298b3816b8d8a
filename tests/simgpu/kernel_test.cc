// Modules, functions, launches: host images that compute, and images that do not.

#include <array>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "driver.h"

namespace prorata::simgpu {
namespace {

constexpr char kPtx[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .global .align 4 .u32 counter[4];\n"
    ".visible .entry spin(.param .u64 p0, .param .u32 p1) { ret; }\n";

class KernelTest : public DriverTest {
 protected:
  CUresult Launch(CUfunction function, unsigned grid, unsigned block, void** params,
                  unsigned shared = 0) {
    return CUDA(cuLaunchKernel)(function, grid, 1, 1, block, 1, 1, shared, nullptr, params,
                                nullptr);
  }
};

TEST_F(KernelTest, HostKernelsCompute) {
  constexpr int kCount = 1000;
  std::vector<float> a(kCount);
  std::vector<float> b(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = 0.5f;
  }
  CUdeviceptr device[3];
  for (CUdeviceptr& each : device) CUDA_OK(cuMemAlloc_v2, &each, kCount * sizeof(float));
  CUDA_OK(cuMemcpyHtoD_v2, device[0], a.data(), kCount * sizeof(float));
  CUDA_OK(cuMemcpyHtoD_v2, device[1], b.data(), kCount * sizeof(float));
  int count = kCount;
  void* params[] = {&device[0], &device[1], &device[2], &count};
  ASSERT_EQ(Launch(Kernel("add"), 4, 256, params), CUDA_SUCCESS);
  std::vector<float> c(kCount);
  CUDA_OK(cuMemcpyDtoH_v2, c.data(), device[2], kCount * sizeof(float));
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(c[i], a[i] + 0.5f) << i;
}

TEST_F(KernelTest, ParametersOfAllSizesAreCopiedAtTheLaunch) {
  CUdeviceptr out = 0;
  CUDA_OK(cuMemAlloc_v2, &out, 7 * 8);
  unsigned char byte = 200;
  unsigned short half = 60'000;
  uint64_t word = uint64_t{1} << 40;
  unsigned full = 5;
  std::array<unsigned, 3> triple = {1, 2, 3};
  void* params[] = {&byte, &half, &word, &full, &triple, &out};
  ASSERT_EQ(Launch(Kernel("mixed"), 1, 1, params, 100), CUDA_SUCCESS);
  byte = 0;  // too late
  uint64_t seen[7];
  CUDA_OK(cuMemcpyDtoH_v2, seen, out, sizeof(seen));
  EXPECT_EQ(seen[0], 200u);
  EXPECT_EQ(seen[1], 60'000u);
  EXPECT_EQ(seen[2], uint64_t{1} << 40);
  EXPECT_EQ(seen[3], 5u);
  EXPECT_EQ(seen[4], 3u);
  EXPECT_GT(seen[5], 0u);
  EXPECT_EQ(seen[6], 100u);
}

// Exact in model time, however late the executor is.
TEST_F(KernelTest, KernelsAreToldWhenTheyRan) {
  CUdeviceptr out = 0;
  CUDA_OK(cuMemAlloc_v2, &out, 4 * 8);
  CUdeviceptr second = out + 16;
  uint64_t ns = 3'000'000;
  void* first_params[] = {&out, &ns};
  void* second_params[] = {&second, &ns};
  ASSERT_EQ(Launch(Kernel("stamp"), 1, 1, first_params), CUDA_SUCCESS);
  ASSERT_EQ(Launch(Kernel("stamp"), 1, 1, second_params), CUDA_SUCCESS);
  uint64_t seen[4];
  CUDA_OK(cuMemcpyDtoH_v2, seen, out, sizeof(seen));
  EXPECT_EQ(seen[1] - seen[0], ns);
  EXPECT_EQ(seen[3] - seen[2], ns);
  EXPECT_GE(seen[2], seen[1]);
}

TEST_F(KernelTest, ParametersCanComeInOneBuffer) {
  CUdeviceptr out = 0;
  CUDA_OK(cuMemAlloc_v2, &out, 7 * 8);
  struct {
    unsigned char byte = 1;
    unsigned short half = 2;
    uint64_t word = 3;
    unsigned full = 4;
    std::array<unsigned, 3> triple = {5, 6, 7};
    CUdeviceptr out;
  } buffer;
  buffer.out = out;
  size_t bytes = sizeof(buffer);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CUDA_OK(cuLaunchKernel, Kernel("mixed"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra);
  uint64_t seen[7];
  CUDA_OK(cuMemcpyDtoH_v2, seen, out, sizeof(seen));
  EXPECT_EQ(seen[1], 2u);
  EXPECT_EQ(seen[2], 3u);
  EXPECT_EQ(seen[4], 7u);
}

TEST_F(KernelTest, ImagesInMemoryOfBothKinds) {
  std::ifstream file(HOST_KERNELS, std::ios::binary);
  const std::vector<char> image((std::istreambuf_iterator<char>(file)), {});
  CUmodule host;
  CUDA_OK(cuModuleLoadData, &host, image.data());
  CUfunction function;
  CUDA_OK(cuModuleGetFunction, &function, host, "step");
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction, &function, host, "step__param_sizes");

  CUmodule ptx;
  CUDA_OK(cuModuleLoadData, &ptx, kPtx);
  CUDA_OK(cuModuleGetFunction, &function, ptx, "spin");
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction, &function, ptx, "spin2");
  unsigned count = 0;
  CUDA_OK(cuModuleGetFunctionCount, &count, ptx);
  EXPECT_EQ(count, 1u);
  size_t offset = 0;
  size_t size = 0;
  CUDA_OK(cuModuleGetFunction, &function, ptx, "spin");
  CUDA_OK(cuFuncGetParamInfo, function, 1, &offset, &size);
  EXPECT_EQ(offset, 8u);
  EXPECT_EQ(size, 4u);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo, function, 2, &offset, &size);
  CUdeviceptr pointer = 0;
  unsigned number = 0;
  void* params[] = {&pointer, &number};
  ASSERT_EQ(Launch(function, 1, 32, params), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
}

TEST_F(KernelTest, GlobalsHaveOneAddressAndHoldBytes) {
  CUmodule ptx;
  CUDA_OK(cuModuleLoadData, &ptx, kPtx);
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  size_t bytes = 0;
  CUDA_OK(cuModuleGetGlobal_v2, &a, &bytes, ptx, "counter");
  CUDA_OK(cuModuleGetGlobal_v2, &b, nullptr, ptx, "counter");
  EXPECT_EQ(a, b);
  EXPECT_EQ(bytes, 16u);
  CUDA_OK(cuMemsetD8_v2, a, 7, 16);
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2, &b, nullptr, ptx, "spin");
  Kernel("step");
  CUDA_OK(cuModuleGetGlobal_v2, &a, &bytes, module_, "host_word");
  EXPECT_EQ(ReadWord(a), 17u);
}

TEST_F(KernelTest, BadLaunchesAreRefused) {
  uint64_t value = 0;
  CUdeviceptr word = NewWord(0);
  void* params[] = {&word, &value, &value, &value};
  CUfunction step = Kernel("step");
  EXPECT_EQ(Launch(step, 0, 1, params), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch(step, 1, 1025, params), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch(step, 1, 1, params, 100'000), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuFuncSetAttribute, step, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100'000);
  EXPECT_EQ(Launch(step, 1, 1, params, 100'000), CUDA_SUCCESS);
  EXPECT_EQ(Launch(step, 1, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Launch(reinterpret_cast<CUfunction>(0x1000), 1, 1, params), CUDA_ERROR_INVALID_HANDLE);
  CUDA_IS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchCooperativeKernel, step, 10'000, 1, 1,
          1024, 1, 1, 0, nullptr, params);
  CUDA_OK(cuLaunchCooperativeKernel, step, 100, 1, 1, 1024, 1, 1, 0, nullptr, params);
  CUDA_OK(cuModuleUnload, module_);
  EXPECT_EQ(Launch(step, 1, 1, params), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(KernelTest, LibrariesServeEveryContext) {
  CUlibrary library;
  CUDA_OK(cuLibraryLoadFromFile, &library, HOST_KERNELS, nullptr, nullptr, 0, nullptr, nullptr, 0);
  CUkernel kernel;
  CUDA_OK(cuLibraryGetKernel, &kernel, library, "step");
  CUdeviceptr word = NewWord(2);
  uint64_t factor = 3;
  uint64_t zero = 1;
  void* params[] = {&word, &factor, &zero, &zero};
  // cudart 13 passes a CUkernel where a CUfunction is asked for.
  ASSERT_EQ(Launch(reinterpret_cast<CUfunction>(kernel), 1, 1, params), CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(word), 7u);
  const char* name = nullptr;
  CUDA_OK(cuKernelGetName, &name, kernel);
  EXPECT_STREQ(name, "step");
  CUDA_OK(cuLibraryUnload, library);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuLibraryGetKernel, &kernel, library, "step");
}

TEST_F(KernelTest, AModuleUnloadedUnderItsWorkStaysUntilTheWorkIsDone) {
  CUdeviceptr word = NewWord(1);
  ASSERT_EQ(Step(nullptr, word, 5, 0, 20'000'000), CUDA_SUCCESS);
  CUDA_OK(cuModuleUnload, module_);
  module_ = nullptr;
  EXPECT_EQ(ReadWord(word), 5u);
}

TEST_F(KernelTest, LaunchesBeyondTheQueueWait) {
  const CUdeviceptr word = NewWord(0);
  CUstream stream;
  CUDA_OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(Step(stream, word, 1, 1, 1), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(ReadWord(word), 5000u);
}

// For ThreadSanitizer: one function, launched by several threads while its settings change.
TEST_F(KernelTest, ManyThreadsLaunchOneFunction) {
  constexpr int kThreads = 4;
  constexpr int kLaunches = 50;
  const CUfunction step = Kernel("step");
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
    CUDA_OK(cuFuncSetAttribute, step, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024 * i);
  }
  for (std::thread& thread : threads) thread.join();
  for (const CUdeviceptr word : words) EXPECT_EQ(ReadWord(word), uint64_t{kLaunches});
}

}  // namespace
}  // namespace prorata::simgpu
