// Virtual memory management: physical memory, reserved addresses, and the one mapped at the other.

#include <unistd.h>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kCreate[] = "CUDA Driver API 13.0, Virtual Memory Management, cuMemCreate";
constexpr char kReserve[] = "CUDA Driver API 13.0, Virtual Memory Management, cuMemAddressReserve";
constexpr char kMap[] = "CUDA Driver API 13.0, Virtual Memory Management, cuMemMap";
constexpr char kUnmap[] = "CUDA Driver API 13.0, Virtual Memory Management, cuMemUnmap";
constexpr char kRelease[] = "CUDA Driver API 13.0, Virtual Memory Management, cuMemRelease";
constexpr char kAccess[] = "CUDA Driver API 13.0, Virtual Memory Management, cuMemSetAccess";

class VirtualMemoryTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    access_ = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUDA_OK(cuMemGetAllocationGranularity, &unit_, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CUDA_OK(cuMemAddressReserve, &range_, 8 * unit_, 0, 0, 0);
  }
  CUmemGenericAllocationHandle Create(size_t units) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA(cuMemCreate)(&handle, units * unit_, &prop_, 0), CUDA_SUCCESS);
    return handle;
  }
  CUresult Map(CUdeviceptr at, size_t units, CUmemGenericAllocationHandle handle) {
    return CUDA(cuMemMap)(at, units * unit_, 0, handle, 0);
  }
  CUresult Open(CUdeviceptr at, size_t units) {
    return CUDA(cuMemSetAccess)(at, units * unit_, &access_, 1);
  }
  void Use(CUdeviceptr at, uint64_t value) {
    ASSERT_EQ(CUDA(cuMemcpyHtoD_v2)(at, &value, 8), CUDA_SUCCESS);
  }

  CUmemAllocationProp prop_{};
  CUmemAccessDesc access_{};
  size_t unit_ = 0;
  CUdeviceptr range_ = 0;
};

RULE_TEST(VirtualMemoryTest, TheGranularityIsAPowerOfTwo,
          "a device's minimum and recommended granularities are multiples of each other and of "
          "pages",
          "CUDA Driver API 13.0, Virtual Memory Management, cuMemGetAllocationGranularity") {
  size_t recommended = 0;
  CUDA_OK(cuMemGetAllocationGranularity, &recommended, &prop_,
          CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  EXPECT_EQ(unit_ & (unit_ - 1), 0u);
  EXPECT_EQ(unit_ % static_cast<size_t>(getpagesize()), 0u);
  EXPECT_EQ(recommended % unit_, 0u);
}

RULE_TEST(VirtualMemoryTest, AReservationCostsNoMemory,
          "cuMemAddressReserve takes addresses, no memory", kReserve) {
  const uint64_t before = FreeBytes();
  CUdeviceptr range = 0;
  CUDA_OK(cuMemAddressReserve, &range, 256 * unit_, 0, 0, 0);
  EXPECT_EQ(FreeBytes(), before);
  CUDA_OK(cuMemAddressFree, range, 256 * unit_);
}

RULE_TEST(VirtualMemoryTest, PhysicalMemoryIsPaidWhenItIsMade,
          "cuMemCreate takes the memory, mapped or not", kCreate) {
  const uint64_t before = FreeBytes();
  const CUmemGenericAllocationHandle handle = Create(4);
  EXPECT_EQ(FreeBytes(), before - 4 * unit_);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(VirtualMemoryTest, PhysicalSizesAreWholeUnits,
          "cuMemCreate's size must be a multiple of the minimum granularity", kCreate) {
  CUmemGenericAllocationHandle handle = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &handle, unit_ / 2, &prop_, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &handle, unit_ + 4096, &prop_, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &handle, 0, &prop_, 0);
}

RULE_TEST(VirtualMemoryTest, CreateFlagsMustBeZero,
          "cuMemCreate's flags are for future use and must be zero", kCreate) {
  CUmemGenericAllocationHandle handle = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &handle, unit_, &prop_, 1);
}

RULE_TEST(VirtualMemoryTest, TheDeviceMustExist, "physical memory is made on a device that exists",
          kCreate) {
  CUmemGenericAllocationHandle handle = 0;
  prop_.location.id = 99;
  CUDA_IS(CUDA_ERROR_INVALID_DEVICE, cuMemCreate, &handle, unit_, &prop_, 0);
}

RULE_TEST(VirtualMemoryTest, MoreThanThereIsIsOutOfMemory,
          "cuMemCreate beyond the device's memory is CUDA_ERROR_OUT_OF_MEMORY", kCreate) {
  size_t free_bytes = 0;
  size_t total = 0;
  CUDA_OK(cuMemGetInfo_v2, &free_bytes, &total);
  CUmemGenericAllocationHandle handle = 0;
  CUDA_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate, &handle, total / unit_ * unit_ + unit_, &prop_, 0);
  EXPECT_EQ(FreeBytes(), free_bytes);
}

RULE_TEST(VirtualMemoryTest, ReservationsAreWholePages,
          "cuMemAddressReserve's size must be a multiple of the page size", kReserve) {
  CUdeviceptr range = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve, &range, 100, 0, 0, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve, &range, 0, 0, 0, 0);
}

RULE_TEST(VirtualMemoryTest, AlignmentsArePowersOfTwo,
          "a reservation's alignment must be a power of two, and is kept", kReserve) {
  CUdeviceptr range = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve, &range, unit_, 3 * unit_, 0, 0);
  CUDA_OK(cuMemAddressReserve, &range, unit_, 64 * unit_, 0, 0);
  EXPECT_EQ(range % (64 * unit_), 0u);
  CUDA_OK(cuMemAddressFree, range, unit_);
}

RULE_TEST(VirtualMemoryTest, AReservationIsFreedWhole,
          "cuMemAddressFree takes the address and size that were reserved, nothing else",
          "CUDA Driver API 13.0, Virtual Memory Management, cuMemAddressFree") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree, range_, 4 * unit_);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree, range_ + unit_, 7 * unit_);
  CUDA_OK(cuMemAddressFree, range_, 8 * unit_);
}

RULE_TEST(VirtualMemoryTest, MappedMemoryHoldsBytes,
          "memory that is mapped and opened is used at its address", kAccess) {
  ASSERT_EQ(Map(range_, 2, Create(2)), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_, 2), CUDA_SUCCESS);
  Use(range_ + unit_, 99);
  ASSERT_EQ(Step(nullptr, range_ + unit_, 2, 1, 1000), CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(range_ + unit_), 199u);
}

RULE_TEST(VirtualMemoryTest, AMappingIsClosedAtFirst,
          "cuMemMap does not make the address accessible: cuMemSetAccess does", kMap) {
  uint64_t value = 1;
  ASSERT_EQ(Map(range_, 1, Create(1)), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuMemcpyHtoD_v2)(range_, &value, 8), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_, 1), CUDA_SUCCESS);
  CUDA_OK(cuMemcpyHtoD_v2, range_, &value, 8);
}

RULE_TEST(VirtualMemoryTest, AccessIsReportedBack,
          "cuMemGetAccess gives the access that was set, and none before",
          "CUDA Driver API 13.0, Virtual Memory Management, cuMemGetAccess") {
  ASSERT_EQ(Map(range_, 1, Create(1)), CUDA_SUCCESS);
  unsigned long long flags = 99;
  const CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUDA_OK(cuMemGetAccess, &flags, &here, range_);
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_NONE));
  ASSERT_EQ(Open(range_, 1), CUDA_SUCCESS);
  CUDA_OK(cuMemGetAccess, &flags, &here, range_);
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

RULE_TEST(VirtualMemoryTest, AccessIsSetOnMappedMemoryOnly,
          "cuMemSetAccess's range must be fully mapped", kAccess) {
  EXPECT_EQ(Open(range_, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(Map(range_, 1, Create(1)), CUDA_SUCCESS);
  EXPECT_EQ(Open(range_, 2), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(VirtualMemoryTest, MappingsNeedAReservation, "cuMemMap's range must be reserved", kMap) {
  const CUmemGenericAllocationHandle handle = Create(2);
  EXPECT_EQ(Map(range_ + 7 * unit_, 2, handle), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemAddressFree, range_, 8 * unit_);
  EXPECT_EQ(Map(range_, 2, handle), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemRelease, handle);
}

RULE_TEST(VirtualMemoryTest, NothingIsMappedTwiceAtOnePlace,
          "cuMemMap can only map where nothing is mapped", kMap) {
  const CUmemGenericAllocationHandle handle = Create(2);
  ASSERT_EQ(Map(range_ + unit_, 2, handle), CUDA_SUCCESS);
  EXPECT_EQ(Map(range_ + unit_, 2, handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Map(range_, 2, handle), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(VirtualMemoryTest, MappingsAreWholeUnits,
          "a mapping's address and size must be multiples of the granularity, its offset zero",
          kMap) {
  const CUmemGenericAllocationHandle handle = Create(2);
  EXPECT_EQ(CUDA(cuMemMap)(range_ + 4096, unit_, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CUDA(cuMemMap)(range_, unit_ / 2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CUDA(cuMemMap)(range_, unit_, unit_, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CUDA(cuMemMap)(range_, unit_, 0, handle, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(VirtualMemoryTest, AMappingFitsItsMemory,
          "cuMemMap's offset + size stays inside the allocation", kMap) {
  const CUmemGenericAllocationHandle handle = Create(2);
  EXPECT_EQ(Map(range_, 3, handle), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(VirtualMemoryTest, MemoryMappedTwiceIsTheSameMemory,
          "one allocation may be mapped at several addresses, which then show the same bytes",
          "CUDA C++ Programming Guide 13.0, 14.4 Virtual Aliasing Support") {
  const CUmemGenericAllocationHandle handle = Create(1);
  ASSERT_EQ(Map(range_, 1, handle), CUDA_SUCCESS);
  ASSERT_EQ(Map(range_ + 2 * unit_, 1, handle), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_, 1), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_ + 2 * unit_, 1), CUDA_SUCCESS);
  Use(range_ + 64, 77);
  EXPECT_EQ(ReadWord(range_ + 2 * unit_ + 64), 77u);
}

RULE_TEST(VirtualMemoryTest, BytesStayWithTheMemory,
          "memory that is unmapped and mapped elsewhere keeps its contents", kUnmap) {
  const CUmemGenericAllocationHandle handle = Create(1);
  ASSERT_EQ(Map(range_, 1, handle), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_, 1), CUDA_SUCCESS);
  Use(range_, 1234);
  CUDA_OK(cuMemUnmap, range_, unit_);
  ASSERT_EQ(Map(range_ + 3 * unit_, 1, handle), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_ + 3 * unit_, 1), CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(range_ + 3 * unit_), 1234u);
}

RULE_TEST(VirtualMemoryTest, AnUnmappedPlaceIsClosedAgain,
          "a new mapping at an old address needs its access granted anew", kUnmap) {
  const CUmemGenericAllocationHandle handle = Create(1);
  ASSERT_EQ(Map(range_, 1, handle), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_, 1), CUDA_SUCCESS);
  CUDA_OK(cuMemUnmap, range_, unit_);
  ASSERT_EQ(Map(range_, 1, handle), CUDA_SUCCESS);
  uint64_t value = 1;
  EXPECT_NE(CUDA(cuMemcpyHtoD_v2)(range_, &value, 8), CUDA_SUCCESS);
}

RULE_TEST(VirtualMemoryTest, AMappingIsUnmappedWhole, "cuMemUnmap cannot unmap a part of a mapping",
          kUnmap) {
  ASSERT_EQ(Map(range_, 4, Create(4)), CUDA_SUCCESS);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap, range_, 2 * unit_);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap, range_ + unit_, 3 * unit_);
  CUDA_OK(cuMemUnmap, range_, 4 * unit_);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap, range_, 4 * unit_);
}

RULE_TEST(VirtualMemoryTest, NeighbouringMappingsAreOpenedAndUnmappedTogether,
          "cuMemSetAccess and cuMemUnmap may cover several whole mappings", kUnmap) {
  ASSERT_EQ(Map(range_, 1, Create(1)), CUDA_SUCCESS);
  ASSERT_EQ(Map(range_ + unit_, 2, Create(2)), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_, 3), CUDA_SUCCESS);
  CUDA_OK(cuMemsetD8_v2, range_, 5, 3 * unit_);
  CUDA_OK(cuCtxSynchronize);
  CUDA_OK(cuMemUnmap, range_, 3 * unit_);
}

RULE_TEST(VirtualMemoryTest, AReservationWithMappingsIsNotFreed,
          "addresses are freed only when nothing is mapped there",
          "CUDA C++ Programming Guide 13.0, 14.3 Reserving a Virtual Address Range; "
          "cuMemAddressFree (return values)") {
  ASSERT_EQ(Map(range_, 1, Create(1)), CUDA_SUCCESS);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree, range_, 8 * unit_);
  CUDA_OK(cuMemUnmap, range_, unit_);
  CUDA_OK(cuMemAddressFree, range_, 8 * unit_);
}

RULE_TEST(VirtualMemoryTest, ReleasedMemoryLivesWhileItIsMapped,
          "memory is freed when its handle is released and its last mapping is gone", kRelease) {
  const uint64_t before = FreeBytes();
  const CUmemGenericAllocationHandle handle = Create(2);
  ASSERT_EQ(Map(range_, 2, handle), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_, 2), CUDA_SUCCESS);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_EQ(FreeBytes(), before - 2 * unit_);
  Use(range_, 5);
  EXPECT_EQ(ReadWord(range_), 5u);
  CUDA_OK(cuMemUnmap, range_, 2 * unit_);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(VirtualMemoryTest, AnAddressGivesItsHandle,
          "cuMemRetainAllocationHandle gives the handle behind a mapped address, and one more "
          "reference",
          "CUDA Driver API 13.0, Virtual Memory Management, cuMemRetainAllocationHandle") {
  const uint64_t before = FreeBytes();
  const CUmemGenericAllocationHandle handle = Create(2);
  ASSERT_EQ(Map(range_, 2, handle), CUDA_SUCCESS);
  CUmemGenericAllocationHandle again = 0;
  CUDA_OK(cuMemRetainAllocationHandle, &again, reinterpret_cast<void*>(range_ + unit_ + 8));
  EXPECT_EQ(again, handle);
  CUDA_OK(cuMemUnmap, range_, 2 * unit_);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_EQ(FreeBytes(), before - 2 * unit_);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(VirtualMemoryTest, AnUnmappedAddressHasNoHandle,
          "cuMemRetainAllocationHandle fails where nothing is mapped",
          "CUDA Driver API 13.0, Virtual Memory Management, cuMemRetainAllocationHandle") {
  CUmemGenericAllocationHandle handle = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle, &handle,
          reinterpret_cast<void*>(range_));
}

RULE_TEST(VirtualMemoryTest, AHandleKnowsItsProperties,
          "cuMemGetAllocationPropertiesFromHandle gives what the memory was made with",
          "CUDA Driver API 13.0, Virtual Memory Management, "
          "cuMemGetAllocationPropertiesFromHandle") {
  const CUmemGenericAllocationHandle handle = Create(1);
  CUmemAllocationProp seen{};
  CUDA_OK(cuMemGetAllocationPropertiesFromHandle, &seen, handle);
  EXPECT_EQ(seen.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(seen.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(seen.location.id, 0);
  CUDA_OK(cuMemRelease, handle);
}

RULE_TEST(VirtualMemoryTest, APointerKnowsItsReservation,
          "RANGE_START_ADDR and RANGE_SIZE of mapped memory give the reserved range",
          "CUDA Driver API 13.0, Unified Addressing, cuPointerGetAttribute") {
  ASSERT_EQ(Map(range_ + unit_, 1, Create(1)), CUDA_SUCCESS);
  ASSERT_EQ(Open(range_ + unit_, 1), CUDA_SUCCESS);
  CUdeviceptr start = 0;
  size_t size = 0;
  CUDA_OK(cuPointerGetAttribute, &start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, range_ + unit_);
  CUDA_OK(cuPointerGetAttribute, &size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, range_ + unit_);
  EXPECT_EQ(start, range_);
  EXPECT_EQ(size, 8 * unit_);
}

}  // namespace
}  // namespace prorata::conformance
