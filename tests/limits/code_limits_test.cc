// Code, and what the limits of a context cost: nobody says how much the device takes for them, so
// it is measured. On the simulated GPU test_limits.py gives code a size.

#include <stdlib.h>

#include <functional>

#include "limits.h"

namespace prorata::limits {
namespace {

constexpr uint64_t kHeapBytes = 64 * kMib;

constexpr size_t kManyLaunches = 64 << 10;

class CodeLimits : public LimitTest {
 protected:
  // Libraries take their memory when they are loaded.
  void SetUp() override {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // before cuInit of the first test
    LimitTest::SetUp();
    image_ = KernelImageBytes();
    ASSERT_FALSE(image_.empty());
  }

  using Load = std::function<CUresult()>;
  using Unload = std::function<CUresult()>;

  // A full share has no room for code.
  void IsRefused(const Load& load) {
    LeaveRoom(0);
    ASSERT_LT(Free(), kSlab) << "room for code";
    Refused(load);
    GiveRoomBack();
  }
  // What the code takes is charged and given back. A real device may have room for it in what it
  // has taken before.
  void IsCharged(const Load& load, const Unload& unload) {
    uint64_t first = 0;
    for (int i = 0; i < 3; ++i) {
      const uint64_t before = Free();
      ASSERT_EQ(load(), CUDA_SUCCESS);
      const uint64_t bytes = before - Free();
      if (i == 0) first = bytes;
      EXPECT_EQ(bytes, first);
      if (!OnRealGpu()) {
        EXPECT_EQ(bytes, 6 * kMib);
      }
      ASSERT_EQ(unload(), CUDA_SUCCESS);
      EXPECT_TRUE(FreeBecomes(before));
    }
  }
  // Room for the slab that is reserved, and not for all of the code: undone when it is measured.
  void IsUndone(const Load& load, const Unload& unload) {
    const uint64_t before = Free();
    ASSERT_EQ(load(), CUDA_SUCCESS);
    const uint64_t bytes = before - Free();
    ASSERT_EQ(unload(), CUDA_SUCCESS);
    if (bytes <= 2 * kSlab) GTEST_SKIP() << "this code fits into the slab that is reserved for it";
    LeaveRoom(kSlab);
    ASSERT_LT(Free(), bytes);
    Refused(load);
    GiveRoomBack();
    ASSERT_EQ(load(), CUDA_SUCCESS);
    ASSERT_EQ(unload(), CUDA_SUCCESS);
  }

  // A limit that asks for more than there is room for is refused and stays as it was.
  void LimitIsRefused(CUlimit limit, size_t value) {
    size_t before = 0, after = 0;
    CUDA_OK(cuCtxGetLimit, &before, limit);
    LeaveRoom(kHeapBytes / 4);
    Refused([&] { return CUDA(cuCtxSetLimit)(limit, value); });
    CUDA_OK(cuCtxGetLimit, &after, limit);
    EXPECT_EQ(after, before);
    GiveRoomBack();
  }

  const Load load_ = [this] { return CUDA(cuModuleLoadData)(&module_, image_.data()); };
  const Unload unload_ = [this] { return CUDA(cuModuleUnload)(module_); };
  std::string image_;
  CUmodule module_ = nullptr;
  CUlibrary library_ = nullptr;
};

TEST_F(CodeLimits, ModuleLoadDataRefused) {
  IsRefused(load_);
  IsUndone(load_, unload_);
}
TEST_F(CodeLimits, ModuleLoadDataCharged) { IsCharged(load_, unload_); }

TEST_F(CodeLimits, ModuleLoadRefused) {
  IsRefused([this] { return CUDA(cuModuleLoad)(&module_, KernelImage().c_str()); });
}
TEST_F(CodeLimits, ModuleLoadCharged) {
  IsCharged([this] { return CUDA(cuModuleLoad)(&module_, KernelImage().c_str()); }, unload_);
}

TEST_F(CodeLimits, ModuleLoadDataExRefused) {
  IsRefused(
      [this] { return CUDA(cuModuleLoadDataEx)(&module_, image_.data(), 0, nullptr, nullptr); });
}
TEST_F(CodeLimits, ModuleLoadDataExCharged) {
  IsCharged(
      [this] { return CUDA(cuModuleLoadDataEx)(&module_, image_.data(), 0, nullptr, nullptr); },
      unload_);
}

TEST_F(CodeLimits, ModuleLoadFatBinaryRefused) {
  IsRefused([this] { return CUDA(cuModuleLoadFatBinary)(&module_, image_.data()); });
}
TEST_F(CodeLimits, ModuleLoadFatBinaryCharged) {
  IsCharged([this] { return CUDA(cuModuleLoadFatBinary)(&module_, image_.data()); }, unload_);
}

TEST_F(CodeLimits, LibraryLoadDataRefused) {
  const Load load = [this] {
    return CUDA(cuLibraryLoadData)(&library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr,
                                   0);
  };
  IsRefused(load);
  IsUndone(load, [this] { return CUDA(cuLibraryUnload)(library_); });
}
TEST_F(CodeLimits, LibraryLoadDataCharged) {
  IsCharged(
      [this] {
        return CUDA(cuLibraryLoadData)(&library_, image_.data(), nullptr, nullptr, 0, nullptr,
                                       nullptr, 0);
      },
      [this] { return CUDA(cuLibraryUnload)(library_); });
}

TEST_F(CodeLimits, LibraryLoadFromFileRefused) {
  IsRefused([this] {
    return CUDA(cuLibraryLoadFromFile)(&library_, KernelImage().c_str(), nullptr, nullptr, 0,
                                       nullptr, nullptr, 0);
  });
}
TEST_F(CodeLimits, LibraryLoadFromFileCharged) {
  IsCharged(
      [this] {
        return CUDA(cuLibraryLoadFromFile)(&library_, KernelImage().c_str(), nullptr, nullptr, 0,
                                           nullptr, nullptr, 0);
      },
      [this] { return CUDA(cuLibraryUnload)(library_); });
}

// What an image says of its variables is charged before the driver is called.
TEST_F(CodeLimits, VariablesRefusedAndCharged) {
  constexpr uint64_t kVariable = 32 * kMib;
  const std::string text =
      ".version 7.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 big[" +
      std::to_string(kVariable) + "];\n.visible .entry nothing() { ret; }\n";
  const Load load = [&] { return CUDA(cuModuleLoadData)(&module_, text.c_str()); };
  const uint64_t before = Free();
  ASSERT_EQ(load(), CUDA_SUCCESS);
  EXPECT_GE(before - Free(), kVariable);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  const uint64_t loaded = Free();
  CUDA_OK(cuModuleGetGlobal_v2, &address, &bytes, module_, "big");
  EXPECT_EQ(bytes, kVariable);
  EXPECT_EQ(Free(), loaded) << "it was taken with its module";
  ASSERT_EQ(unload_(), CUDA_SUCCESS);
  EXPECT_TRUE(FreeBecomes(before));
  LeaveRoom(kVariable / 2);
  Refused(load);
  GiveRoomBack();
}

// Unloading makes room for what was refused.
TEST_F(CodeLimits, ModuleUnloadMakesRoom) {
  const uint64_t before = Free();
  ASSERT_EQ(load_(), CUDA_SUCCESS);
  const uint64_t bytes = before - Free();
  if (bytes == 0) {
    ASSERT_EQ(unload_(), CUDA_SUCCESS);
    GTEST_SKIP() << "this code takes no memory of its own";
  }
  LeaveRoom(0);
  CUdeviceptr address = 0;
  Refused([&] { return CUDA(cuMemAlloc_v2)(&address, bytes); });
  ASSERT_EQ(unload_(), CUDA_SUCCESS);
  CUDA_OK(cuMemAlloc_v2, &address, bytes);
  CUDA_OK(cuMemFree_v2, address);
}
// Also by the end of its context.
TEST_F(CodeLimits, ModuleUnloadGivesBack) {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, device_);
  ASSERT_EQ(load_(), CUDA_SUCCESS);
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  EXPECT_TRUE(Charged(0));
  ASSERT_EQ(load_(), CUDA_SUCCESS);
  ASSERT_EQ(unload_(), CUDA_SUCCESS);
  EXPECT_TRUE(Charged(0));
  EXPECT_NE(unload_(), CUDA_SUCCESS);
  EXPECT_TRUE(Charged(0));
}
TEST_F(CodeLimits, LibraryUnloadMakesRoom) {
  const auto load = [this] {
    return CUDA(cuLibraryLoadData)(&library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr,
                                   0);
  };
  const uint64_t before = Free();
  ASSERT_EQ(load(), CUDA_SUCCESS);
  const uint64_t bytes = before - Free();
  LeaveRoom(0);
  CUlibrary other = nullptr;
  Refused([&] {
    return CUDA(cuLibraryLoadFromFile)(&other, KernelImage().c_str(), nullptr, nullptr, 0, nullptr,
                                       nullptr, 0);
  });
  CUDA_OK(cuLibraryUnload, library_);
  if (bytes < 2 * kSlab) GTEST_SKIP() << "this code takes no memory of its own";
  ASSERT_EQ(load(), CUDA_SUCCESS);
  CUDA_OK(cuLibraryUnload, library_);
}
TEST_F(CodeLimits, LibraryUnloadGivesBack) {
  CUDA_OK(cuLibraryLoadData, &library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  CUDA_OK(cuLibraryUnload, library_);
  EXPECT_TRUE(Charged(0));
}

TEST_F(CodeLimits, CtxSetLimitRefused) {
  size_t stack = 0;
  CUDA_OK(cuCtxGetLimit, &stack, CU_LIMIT_STACK_SIZE);
  LimitIsRefused(CU_LIMIT_STACK_SIZE, stack + 1024);  // 264 MiB where 132 * 2048 threads fit
  LimitIsRefused(CU_LIMIT_PRINTF_FIFO_SIZE, kHeapBytes);
  LimitIsRefused(CU_LIMIT_MALLOC_HEAP_SIZE, kHeapBytes);
  if (!OnRealGpu()) {  // what it takes there is not known, only measured
    LimitIsRefused(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, kManyLaunches);
  }
}
TEST_F(CodeLimits, CtxSetLimitOfPendingLaunchesCharged) {
  size_t count = 0;
  CUDA_OK(cuCtxGetLimit, &count, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT);
  const uint64_t before = Free();
  CUDA_OK(cuCtxSetLimit, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, kManyLaunches);
  if (!OnRealGpu()) {
    EXPECT_LE(Free() + 64 * kMib, before) << "the device has it";
  }
  CUDA_OK(cuCtxSetLimit, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2 * kManyLaunches);
  if (!OnRealGpu()) {
    EXPECT_LE(Free() + 128 * kMib, before);
    EXPECT_GE(Free() + 512 * kMib, before) << "not charged twice";
  }
  CUDA_OK(cuCtxSetLimit, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, count);
  EXPECT_TRUE(Charged(0));
}
// In a context of its own: a heap cannot be made smaller everywhere.
TEST_F(CodeLimits, CtxSetLimitCharged) {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, device_);
  const uint64_t before = Free();
  CUDA_OK(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, kHeapBytes);
  CUDA_OK(cuCtxSetLimit, CU_LIMIT_PRINTF_FIFO_SIZE, kHeapBytes);
  // At the latest when code is loaded into it.
  ASSERT_EQ(load_(), CUDA_SUCCESS);
  if (!OnRealGpu()) {  // which may take them when code uses them
    EXPECT_TRUE(FreeBecomes(before - 6 * kMib - (kHeapBytes - 8 * kMib) - (kHeapBytes - kMib) -
                            kMib));  // the printf buffer's in whole slabs
  }
  size_t stack = 0;
  CUDA_OK(cuCtxGetLimit, &stack, CU_LIMIT_STACK_SIZE);
  const uint64_t small = Free();
  CUDA_OK(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, stack + 1024);
  if (!OnRealGpu()) {  // which may take it at the next launch
    EXPECT_LE(Free() + 2048ULL * 1024, small);
    CUDA_OK(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, stack);
    EXPECT_TRUE(FreeBecomes(small));
  }
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  EXPECT_TRUE(Charged(0));
}

}  // namespace
}  // namespace prorata::limits
