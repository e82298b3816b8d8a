// Code that is loaded lazily takes its memory at a first launch, which does not wait to be
// measured: the next call of the process that is measured counts it, too.

#include "limits.h"

namespace prorata::limits {
namespace {

class LazyCodeLimits : public LimitTest {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    if (HasFatalFailure()) return;
    if (OnRealGpu()) GTEST_SKIP() << "how much a kernel takes at its first launch is not known";
    image_ = KernelImageBytes();
  }
  // Loads a library, and launches its first kernel.
  void FirstLaunch() {
    CUDA_OK(cuLibraryLoadData, &library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    CUDA_OK(cuLibraryGetKernel, &kernel, library_, "step");
    CUDA_OK(cuKernelGetFunction, &function, kernel);
    EXPECT_TRUE(Charged(0)) << "before any launch";
    void* memory = nullptr;
    CUDA_OK(cuMemHostAlloc, &memory, 8, CU_MEMHOSTALLOC_DEVICEMAP);
    CUdeviceptr word = 0;
    CUDA_OK(cuMemHostGetDevicePointer_v2, &word, memory, 0);
    uint64_t factor = 0, term = 1, ns = 1000;
    void* params[] = {&word, &factor, &term, &ns};
    CUDA_OK(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
    CUDA_OK(cuCtxSynchronize);
    CUDA_OK(cuMemFreeHost, memory);
  }
  CUresult LoadModule() { return CUDA(cuModuleLoadData)(&module_, image_.data()); }

  static constexpr uint64_t kCode = 6 * kMib;  // module_memory, test_limits.py
  std::string image_;
  CUlibrary library_ = nullptr;
  CUmodule module_ = nullptr;
};

TEST_F(LazyCodeLimits, LaunchRefused) {
  FirstLaunch();
  // Enough for the module alone, and not for what the launch took, too.
  LeaveRoom(kCode + kSlab);
  Refused([&] { return LoadModule(); });
  CUDA_OK(cuLibraryUnload, library_);
  GiveRoomBack();
  LeaveRoom(kCode + kSlab);
  ASSERT_EQ(LoadModule(), CUDA_SUCCESS);
  CUDA_OK(cuModuleUnload, module_);
}

TEST_F(LazyCodeLimits, LaunchCharged) {
  FirstLaunch();
  ASSERT_EQ(LoadModule(), CUDA_SUCCESS);
  EXPECT_TRUE(Charged(2 * kCode));
  CUDA_OK(cuModuleUnload, module_);
  CUDA_OK(cuLibraryUnload, library_);
  EXPECT_TRUE(Charged(0));
}

}  // namespace
}  // namespace prorata::limits
