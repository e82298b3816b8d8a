// What a program can ask about an address.

#include "conformance.h"

namespace prorata::conformance {
namespace {

class PointerTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CUDA_OK(cuMemAlloc_v2, &device_, 1000);
    CUDA_OK(cuMemHostAlloc, &host_, 5000, 0);
    host_address_ = reinterpret_cast<CUdeviceptr>(host_);
  }
  template <typename T>
  T Ask(CUpointer_attribute attribute, CUdeviceptr address) {
    T value{};
    EXPECT_EQ(CUDA(cuPointerGetAttribute)(&value, attribute, address), CUDA_SUCCESS);
    return value;
  }

  CUdeviceptr device_ = 0;
  void* host_ = nullptr;
  CUdeviceptr host_address_ = 0;
  int pageable_ = 0;  // not CUDA's
};

constexpr char kAttribute[] = "CUDA Driver API 13.0, Unified Addressing, cuPointerGetAttribute";

RULE_TEST(PointerTest, DeviceMemoryIsOfTheDevice,
          "MEMORY_TYPE of device memory is CU_MEMORYTYPE_DEVICE, anywhere in the allocation",
          kAttribute) {
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device_ + 999),
            unsigned{CU_MEMORYTYPE_DEVICE});
}

RULE_TEST(PointerTest, PinnedMemoryIsOfTheHost,
          "MEMORY_TYPE of pinned host memory is CU_MEMORYTYPE_HOST", kAttribute) {
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host_address_ + 10),
            unsigned{CU_MEMORYTYPE_HOST});
}

RULE_TEST(PointerTest, RegisteredMemoryIsOfTheHost,
          "MEMORY_TYPE of registered memory is CU_MEMORYTYPE_HOST", kAttribute) {
  alignas(4096) static char page[4096];
  CUDA_OK(cuMemHostRegister_v2, page, sizeof(page), 0);
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(page)),
            unsigned{CU_MEMORYTYPE_HOST});
  CUDA_OK(cuMemHostUnregister, page);
}

RULE_TEST(PointerTest, ForeignPointersAreRefused,
          "an address that is not CUDA's is CUDA_ERROR_INVALID_VALUE to cuPointerGetAttribute",
          kAttribute) {
  unsigned type = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
          reinterpret_cast<CUdeviceptr>(&pageable_));
}

RULE_TEST(PointerTest, FreedMemoryIsForeign,
          "after cuMemFree and cuMemFreeHost the addresses belong to nobody", kAttribute) {
  CUdeviceptr large = 0;
  CUDA_OK(cuMemAlloc_v2, &large, 32 << 20);
  CUDA_OK(cuMemFree_v2, large);
  CUDA_OK(cuMemFreeHost, host_);
  unsigned type = 0;
  for (CUdeviceptr gone : {large, host_address_}) {
    CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &type,
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE, gone);
  }
}

RULE_TEST(PointerTest, TheContextIsTheAllocatingOne,
          "CONTEXT is the context in which the memory was allocated or registered", kAttribute) {
  EXPECT_EQ(Ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, device_), ctx_);
  EXPECT_EQ(Ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, host_address_), ctx_);
}

RULE_TEST(PointerTest, TheDeviceIsTheContexts,
          "DEVICE_ORDINAL is the device against which the memory was allocated", kAttribute) {
  EXPECT_EQ(Ask<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device_), 0);
  EXPECT_EQ(Ask<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, host_address_), 0);
}

RULE_TEST(PointerTest, DeviceMemoryHasNoHostPointer,
          "HOST_POINTER of memory that the host cannot touch is CUDA_ERROR_INVALID_VALUE",
          kAttribute) {
  void* pointer = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &pointer,
          CU_POINTER_ATTRIBUTE_HOST_POINTER, device_);
}

RULE_TEST(PointerTest, PinnedMemoryHasBothPointers,
          "HOST_POINTER and DEVICE_POINTER of pinned memory equal the address asked about",
          kAttribute) {
  EXPECT_EQ(Ask<void*>(CU_POINTER_ATTRIBUTE_HOST_POINTER, host_address_ + 8),
            static_cast<char*>(host_) + 8);
  EXPECT_EQ(Ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, host_address_ + 8),
            host_address_ + 8);
  EXPECT_EQ(Ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, device_ + 8), device_ + 8);
}

RULE_TEST(PointerTest, TheRangeIsTheAllocations,
          "RANGE_START_ADDR and RANGE_SIZE give the allocation around the address", kAttribute) {
  EXPECT_EQ(Ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device_ + 500), device_);
  EXPECT_EQ(Ask<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, device_ + 500), 1000u);
}

RULE_TEST(PointerTest, BufferIdsAreNeverReused,
          "BUFFER_ID is unique: an allocation at the address of a freed one has another",
          kAttribute) {
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  CUDA_OK(cuMemAlloc_v2, &first, 32 << 20);
  const auto id = Ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, first);
  EXPECT_EQ(Ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, first + 4096), id);
  CUDA_OK(cuMemFree_v2, first);
  CUDA_OK(cuMemAlloc_v2, &second, 32 << 20);
  EXPECT_NE(Ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, second), id);
  EXPECT_NE(Ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, device_), id);
}

RULE_TEST(PointerTest, PoolMemoryKnowsItsPool,
          "MEMPOOL_HANDLE is the pool the memory came from, and null for other memory",
          kAttribute) {
  CUmemoryPool pool = nullptr;
  CUdeviceptr pooled = 0;
  CUDA_OK(cuDeviceGetDefaultMemPool, &pool, 0);
  CUDA_OK(cuMemAllocAsync, &pooled, 4096, nullptr);
  EXPECT_EQ(Ask<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled), pool);
  EXPECT_EQ(Ask<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, device_), nullptr);
  CUDA_OK(cuMemFreeAsync, pooled, nullptr);
  CUDA_OK(cuStreamSynchronize, nullptr);
}

RULE_TEST(PointerTest, SyncMemopsIsSetAndRead,
          "SYNC_MEMOPS can be set on an allocation and read back; it is off at first",
          "CUDA Driver API 13.0, Unified Addressing, cuPointerSetAttribute") {
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device_), 0u);
  unsigned on = 1;
  CUDA_OK(cuPointerSetAttribute, &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device_);
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device_ + 100), 1u);
}

RULE_TEST(PointerTest, OnlySyncMemopsCanBeSet,
          "cuPointerSetAttribute knows SYNC_MEMOPS and refuses the others",
          "CUDA Driver API 13.0, Unified Addressing, cuPointerSetAttribute") {
  unsigned value = 1;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuPointerSetAttribute, &value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
          device_);
}

RULE_TEST(PointerTest, SyncMemopsMakesFillsWait,
          "on memory with SYNC_MEMOPS a synchronous memset is done when it returns",
          "CUDA Driver API 13.0, API synchronization behavior; cuPointerSetAttribute") {
  const CUdeviceptr word = NewWord(1);
  unsigned on = 1;
  CUDA_OK(cuPointerSetAttribute, &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device_);
  ASSERT_EQ(Step(nullptr, word, 1, 1, 20'000'000), CUDA_SUCCESS);
  CUDA_OK(cuMemsetD8_v2, device_, 1, 1000);  // behind the kernel, on the default stream
  CUDA_OK(cuStreamQuery, nullptr);
}

RULE_TEST(PointerTest, ManyAttributesInOneCall,
          "cuPointerGetAttributes fills each place with its attribute",
          "CUDA Driver API 13.0, Unified Addressing, cuPointerGetAttributes") {
  CUcontext context = nullptr;
  unsigned type = 0;
  CUdeviceptr start = 0;
  int ordinal = -5;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* places[] = {&context, &type, &start, &ordinal};
  CUDA_OK(cuPointerGetAttributes, 4, attributes, places, device_ + 100);
  EXPECT_EQ(context, ctx_);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(start, device_);
  EXPECT_EQ(ordinal, 0);
}

RULE_TEST(PointerTest, ForeignPointersHaveNoAttributesInTheBatch,
          "cuPointerGetAttributes succeeds for an address that is not CUDA's, with null values",
          "CUDA Driver API 13.0, Unified Addressing, cuPointerGetAttributes") {
  CUcontext context = ctx_;
  unsigned type = 17;
  unsigned managed = 1;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_CONTEXT,
                                      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* places[] = {&context, &type, &managed};
  CUDA_OK(cuPointerGetAttributes, 3, attributes, places, reinterpret_cast<CUdeviceptr>(&pageable_));
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(managed, 0);
}

RULE_TEST(PointerTest, AnUnknownAttributeIsRefused,
          "an attribute outside the enumeration is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Unified Addressing, cuPointerGetAttribute (return values)") {
  unsigned value = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &value,
          static_cast<CUpointer_attribute>(999), device_);
}

}  // namespace
}  // namespace prorata::conformance
