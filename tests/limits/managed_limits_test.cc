// Managed memory on a share of several devices: charged where it is made, and by a prefetch to
// another device of the share there.

#include <string>

#include "limits.h"

namespace prorata::limits {
namespace {

constexpr uint64_t kManagedBytes = 64 * kMib;

class ManagedLimits : public LimitTest {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    if (HasFatalFailure()) return;
    int devices = 0;
    CUDA_OK(cuDeviceGetCount, &devices);
    SKIP_UNLESS(devices >= 2, "second device in the share");
    SKIP_UNLESS(Has(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS), "prefetching");
    CUDA_OK(cuDeviceGet, &there_, 1);
    CUDA_OK(cuDevicePrimaryCtxRetain, &there_ctx_, there_);
    free_there_ = FreeThere();
  }
  void TearDown() override {
    if (there_ctx_ != nullptr) {
      EXPECT_EQ(FreeThere(), free_there_);
      CUDA_OK(cuDevicePrimaryCtxRelease_v2, there_);
    }
    LimitTest::TearDown();
  }

  // Runs f with the other device's context current.
  template <typename F>
  void There(F&& f) {
    ASSERT_EQ(CUDA(cuCtxSetCurrent)(there_ctx_), CUDA_SUCCESS);
    f();
    ASSERT_EQ(CUDA(cuCtxSetCurrent)(ctx_), CUDA_SUCCESS);
  }
  uint64_t FreeThere() {
    uint64_t bytes = 0;
    There([&] { bytes = Free(); });
    return bytes;
  }
  uint64_t ChargedThere() { return free_there_ - FreeThere(); }

  static CUdeviceptr Managed(uint64_t bytes = kManagedBytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuMemAllocManaged)(&address, bytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    return address;
  }

  // Every way to say it.
  using Prefetch = CUresult (*)(CUdeviceptr, uint64_t bytes, CUdevice);
  static CUresult First(CUdeviceptr address, uint64_t bytes, CUdevice device) {
    return CUDA(cuMemPrefetchAsync)(address, bytes, device, nullptr);
  }
  static CUresult Second(CUdeviceptr address, uint64_t bytes, CUdevice device) {
    return CUDA(cuMemPrefetchAsync_v2)(address, bytes, {CU_MEM_LOCATION_TYPE_DEVICE, device}, 0,
                                       nullptr);
  }
  template <typename Call>
  static CUresult InBatch(Call call, CUdeviceptr address, uint64_t bytes, CUdevice device) {
    // Two halves, each with a place of its own.
    CUdeviceptr addresses[] = {address, address + bytes / 2};
    size_t sizes[] = {bytes / 2, bytes - bytes / 2};
    CUmemLocation places[] = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                              {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    size_t from[] = {0, 1};
    CUstream stream = nullptr;
    EXPECT_EQ(CUDA(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const CUresult result = call(addresses, sizes, 2, places, from, 2, 0, stream);
    EXPECT_EQ(CUDA(cuStreamSynchronize)(stream), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuStreamDestroy_v2)(stream), CUDA_SUCCESS);
    return result;
  }
  static CUresult Batch(CUdeviceptr address, uint64_t bytes, CUdevice device) {
    return InBatch(CUDA(cuMemPrefetchBatchAsync), address, bytes, device);
  }
  static CUresult DiscardingBatch(CUdeviceptr address, uint64_t bytes, CUdevice device) {
    return InBatch(CUDA(cuMemDiscardAndPrefetchBatchAsync), address, bytes, device);
  }

  void RefusedThere(Prefetch prefetch) {
    CUdeviceptr fill = 0;
    There([&] { CUDA_OK(cuMemAlloc_v2, &fill, Free() - kManagedBytes / 2); });
    const CUdeviceptr address = Managed();
    const uint64_t left = FreeThere();
    Refused([&] { return prefetch(address, kManagedBytes, there_); });
    EXPECT_EQ(FreeThere(), left);
    There([&] { CUDA_OK(cuMemFree_v2, fill); });
    EXPECT_EQ(prefetch(address, kManagedBytes, there_), CUDA_SUCCESS) << "there is room now";
    CUDA_OK(cuMemFree_v2, address);
  }
  void IsCharged(Prefetch prefetch) {
    const CUdeviceptr address = Managed();
    EXPECT_TRUE(Charged(kManagedBytes));
    EXPECT_EQ(ChargedThere(), 0U);
    EXPECT_EQ(prefetch(address, kManagedBytes, device_), CUDA_SUCCESS) << "it is there";
    EXPECT_TRUE(Charged(kManagedBytes));
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(prefetch(address, kManagedBytes, there_), CUDA_SUCCESS);
      EXPECT_EQ(ChargedThere(), kManagedBytes);
    }
    CUDA_OK(cuMemFree_v2, address);
    EXPECT_EQ(ChargedThere(), 0U);
    EXPECT_TRUE(Charged(0));
  }

  CUdevice there_ = 0;
  CUcontext there_ctx_ = nullptr;
  uint64_t free_there_ = 0;
};

TEST_F(ManagedLimits, MemPrefetchAsyncRefused) {
  RefusedThere(First);
  RefusedThere(Second);
}
TEST_F(ManagedLimits, MemPrefetchAsyncCharged) {
  IsCharged(First);
  IsCharged(Second);
}
TEST_F(ManagedLimits, MemPrefetchBatchAsyncRefused) { RefusedThere(Batch); }
TEST_F(ManagedLimits, MemPrefetchBatchAsyncCharged) { IsCharged(Batch); }
TEST_F(ManagedLimits, MemDiscardAndPrefetchBatchAsyncRefused) { RefusedThere(DiscardingBatch); }
TEST_F(ManagedLimits, MemDiscardAndPrefetchBatchAsyncCharged) { IsCharged(DiscardingBatch); }

TEST_F(ManagedLimits, WhatMovesAsAWholeMovesItsCharge) {
  const CUdeviceptr address = Managed();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(First(address, kManagedBytes, there_), CUDA_SUCCESS);
    EXPECT_TRUE(Charged(0));
    EXPECT_EQ(ChargedThere(), kManagedBytes);
    EXPECT_EQ(First(address, kManagedBytes, CU_DEVICE_CPU), CUDA_SUCCESS);
    EXPECT_EQ(ChargedThere(), kManagedBytes) << "the next access brings it back without a call";
    EXPECT_EQ(First(address, kManagedBytes, device_), CUDA_SUCCESS);
    EXPECT_TRUE(Charged(kManagedBytes));
    EXPECT_EQ(ChargedThere(), 0U);
  }
  CUDA_OK(cuMemFree_v2, address);
}

TEST_F(ManagedLimits, PartsAreChargedWhereTheyGoAndNoMoreThanTheWhole) {
  const CUdeviceptr address = Managed();
  EXPECT_EQ(First(address + 1, 1, there_), CUDA_SUCCESS);
  EXPECT_EQ(ChargedThere(), kSlab);
  EXPECT_EQ(First(address + kManagedBytes / 2, kManagedBytes / 2, there_), CUDA_SUCCESS);
  EXPECT_EQ(ChargedThere(), kSlab + kManagedBytes / 2);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(First(address, kManagedBytes / 2, there_), CUDA_SUCCESS);
  EXPECT_EQ(ChargedThere(), kManagedBytes);
  EXPECT_TRUE(Charged(kManagedBytes)) << "which parts are left here is not known";
  EXPECT_EQ(First(address, kManagedBytes, device_), CUDA_SUCCESS);
  EXPECT_TRUE(Charged(kManagedBytes));
  EXPECT_EQ(ChargedThere(), 0U);
  EXPECT_EQ(First(address, kManagedBytes / 2, there_), CUDA_SUCCESS);
  CUDA_OK(cuMemFree_v2, address);
  EXPECT_EQ(ChargedThere(), 0U);
}

TEST_F(ManagedLimits, SmallOnesAreChargedThereToo) {
  const CUdeviceptr address = Managed(1000);
  EXPECT_EQ(First(address, 1000, there_), CUDA_SUCCESS);
  EXPECT_EQ(First(address, 1000, there_), CUDA_SUCCESS);
  EXPECT_EQ(ChargedThere(), kSlab);
  EXPECT_EQ(First(address, 1000, device_), CUDA_SUCCESS);
  EXPECT_EQ(ChargedThere(), 0U);
  EXPECT_EQ(First(address, 1000, there_), CUDA_SUCCESS);
  CUDA_OK(cuMemFree_v2, address);
  EXPECT_EQ(ChargedThere(), 0U);
}

TEST_F(ManagedLimits, WhatIsRefusedByTheDriverIsNotCharged) {
  CUdeviceptr plain = 0;
  CUDA_OK(cuMemAlloc_v2, &plain, kManagedBytes);
  EXPECT_EQ(First(plain, kManagedBytes, there_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ChargedThere(), 0U);
  CUDA_OK(cuMemFree_v2, plain);
}

}  // namespace
}  // namespace prorata::limits
