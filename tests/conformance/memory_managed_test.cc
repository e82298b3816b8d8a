// Managed memory: one address for the CPU and the device.

#include "conformance.h"

namespace prorata::conformance {
namespace {

class ManagedMemoryTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    int managed = 0;
    CUDA_OK(cuDeviceGetAttribute, &managed, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0);
    CUDA_OK(cuDeviceGetAttribute, &concurrent_, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
    if (!managed) GTEST_SKIP() << "this device has no managed memory";
    CUDA_OK(cuMemAllocManaged, &managed_, 1 << 20, CU_MEM_ATTACH_GLOBAL);
  }
  CUmemLocation OnDevice(int device) { return {CU_MEM_LOCATION_TYPE_DEVICE, device}; }
  volatile uint64_t* word() { return reinterpret_cast<volatile uint64_t*>(managed_); }

  CUdeviceptr managed_ = 0;
  int concurrent_ = 0;
};

RULE_TEST(ManagedMemoryTest, TheCpuTouchesIt,
          "managed memory is valid on the CPU and on the device",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocManaged") {
  *word() = 5;
  ASSERT_EQ(Step(nullptr, managed_, 2, 1, 1000), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(*word(), 11u);
}

RULE_TEST(ManagedMemoryTest, NothingIsRefused,
          "cuMemAllocManaged of 0 bytes is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocManaged") {
  CUdeviceptr address = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged, &address, 0, CU_MEM_ATTACH_GLOBAL);
}

RULE_TEST(ManagedMemoryTest, ItIsAttachedToAllOrToTheHost,
          "cuMemAllocManaged's flags must be ATTACH_GLOBAL or ATTACH_HOST",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocManaged") {
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAllocManaged, &address, 4096, CU_MEM_ATTACH_HOST);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged, &address, 4096, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged, &address, 4096, CU_MEM_ATTACH_SINGLE);
}

RULE_TEST(ManagedMemoryTest, ItSaysThatItIsManaged,
          "CU_POINTER_ATTRIBUTE_IS_MANAGED is true of managed memory and of no other",
          "CUDA Driver API 13.0, Unified Addressing, cuPointerGetAttribute") {
  unsigned managed = 0;  // as wide as cudart takes it for
  CUDA_OK(cuPointerGetAttribute, &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed_ + 4000);
  EXPECT_EQ(managed, 1);
  CUdeviceptr plain = 0;
  CUDA_OK(cuMemAlloc_v2, &plain, 4096);
  CUDA_OK(cuPointerGetAttribute, &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, plain);
  EXPECT_EQ(managed, 0);
}

RULE_TEST(ManagedMemoryTest, PrefetchingKeepsWhatIsThere,
          "prefetching moves memory and never changes it, in either direction",
          "CUDA Driver API 13.0, Memory Management, cuMemPrefetchAsync") {
  if (!concurrent_) GTEST_SKIP() << "this device cannot prefetch";
  *word() = 77;
  CUDA_OK(cuMemPrefetchAsync_v2, managed_, 1 << 20, OnDevice(0), 0, nullptr);
  CUDA_OK(cuMemPrefetchAsync_v2, managed_, 1 << 20, {CU_MEM_LOCATION_TYPE_HOST, 0}, 0, nullptr);
  CUDA_OK(cuStreamSynchronize, nullptr);
  EXPECT_EQ(*word(), 77u);
}

RULE_TEST(ManagedMemoryTest, OnlyManagedMemoryIsPrefetched,
          "cuMemPrefetchAsync refuses memory that is not managed",
          "CUDA Driver API 13.0, Memory Management, cuMemPrefetchAsync") {
  CUdeviceptr plain = 0;
  CUDA_OK(cuMemAlloc_v2, &plain, 1 << 20);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2, plain, 1 << 20, OnDevice(0), 0, nullptr);
}

RULE_TEST(ManagedMemoryTest, PrefetchingStaysInsideTheAllocation,
          "a range that is not all managed memory, or empty, is refused",
          "CUDA Driver API 13.0, Memory Management, cuMemPrefetchAsync") {
  if (!concurrent_) GTEST_SKIP() << "this device cannot prefetch";
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2, managed_, 0, OnDevice(0), 0, nullptr);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2, managed_, 64 << 20, OnDevice(0), 0,
          nullptr);
}

RULE_TEST(ManagedMemoryTest, ThereMustBeSuchADeviceToPrefetchTo,
          "prefetching to a device that does not exist is CUDA_ERROR_INVALID_DEVICE",
          "CUDA Driver API 13.0, Memory Management, cuMemPrefetchAsync (return values)") {
  if (!concurrent_) GTEST_SKIP() << "this device cannot prefetch";
  CUDA_IS(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync_v2, managed_, 1 << 20, OnDevice(99), 0,
          nullptr);
}

RULE_TEST(ManagedMemoryTest, PrefetchFlagsMustBeZero,
          "cuMemPrefetchAsync's flags are for future use and must be zero",
          "CUDA Driver API 13.0, Memory Management, cuMemPrefetchAsync") {
  if (!concurrent_) GTEST_SKIP() << "this device cannot prefetch";
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2, managed_, 1 << 20, OnDevice(0), 1,
          nullptr);
}

RULE_TEST(ManagedMemoryTest, AdviceOfEveryKindIsTaken,
          "cuMemAdvise takes read-mostly, preferred location and accessed-by, set and unset",
          "CUDA Driver API 13.0, Memory Management, cuMemAdvise") {
  if (!concurrent_) GTEST_SKIP() << "this device does not take advice";
  for (CUmem_advise advice :
       {CU_MEM_ADVISE_SET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_READ_MOSTLY,
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
        CU_MEM_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_UNSET_ACCESSED_BY}) {
    CUDA_OK(cuMemAdvise_v2, managed_, 1 << 20, advice, OnDevice(0));
  }
}

RULE_TEST(ManagedMemoryTest, UnknownAdviceIsRefused,
          "an advice outside the enumeration is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Memory Management, cuMemAdvise (return values)") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAdvise_v2, managed_, 1 << 20,
          static_cast<CUmem_advise>(99), OnDevice(0));
}

RULE_TEST(ManagedMemoryTest, AdviceNamesADeviceThatIs,
          "advice about a device that does not exist is CUDA_ERROR_INVALID_DEVICE",
          "CUDA Driver API 13.0, Memory Management, cuMemAdvise (return values)") {
  if (!concurrent_) GTEST_SKIP() << "this device does not take advice";
  CUDA_IS(ButOnGpu(CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE), cuMemAdvise_v2, managed_,
          1 << 20, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, OnDevice(99));
}

RULE_TEST(ManagedMemoryTest, AdviceIsRemembered,
          "cuMemRangeGetAttribute tells the advice that the whole range was given",
          "CUDA Driver API 13.0, Unified Addressing, cuMemRangeGetAttribute") {
  if (!concurrent_) GTEST_SKIP() << "this device does not take advice";
  int read_mostly = -1;
  CUDA_OK(cuMemRangeGetAttribute, &read_mostly, sizeof(read_mostly),
          CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed_, 1 << 20);
  EXPECT_EQ(read_mostly, 0);
  CUDA_OK(cuMemAdvise_v2, managed_, 1 << 20, CU_MEM_ADVISE_SET_READ_MOSTLY, OnDevice(0));
  CUDA_OK(cuMemRangeGetAttribute, &read_mostly, sizeof(read_mostly),
          CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed_, 1 << 20);
  EXPECT_EQ(read_mostly, 1);
}

RULE_TEST(ManagedMemoryTest, ItIsFreedAsDeviceMemory,
          "memory of cuMemAllocManaged is released with cuMemFree",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocManaged") {
  CUDA_OK(cuMemFree_v2, managed_);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, managed_);
}

}  // namespace
}  // namespace prorata::conformance
