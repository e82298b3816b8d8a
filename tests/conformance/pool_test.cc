// Memory pools: what they reserve, when they give it back, and who owns them.

#include <algorithm>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kAttributes[] =
    "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolSetAttribute";

class PoolTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    stream_ = NewStream();
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUDA_OK(cuMemPoolCreate, &pool_, &props);
    CUDA_OK(cuDeviceGetDefaultMemPool, &default_, 0);
  }
  void TearDown() override {
    CUDA_OK(cuCtxSynchronize);
    if (pool_) {
      CUDA_OK(cuMemPoolDestroy, pool_);
    }
    CUDA_OK(cuDeviceSetMemPool, 0, default_);
    DriverTest::TearDown();
  }
  uint64_t Attribute(CUmemPool_attribute attribute) {
    uint64_t value = 0;
    EXPECT_EQ(CUDA(cuMemPoolGetAttribute)(pool_, attribute, &value), CUDA_SUCCESS);
    return value;
  }
  void Set(CUmemPool_attribute attribute, uint64_t value) {
    ASSERT_EQ(CUDA(cuMemPoolSetAttribute)(pool_, attribute, &value), CUDA_SUCCESS);
  }
  uint64_t Reserved() { return Attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); }
  uint64_t Used() { return Attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT); }
  CUdeviceptr Take(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuMemAllocFromPoolAsync)(&address, bytes, pool_, stream_), CUDA_SUCCESS);
    return address;
  }
  void Give(CUdeviceptr address) {
    ASSERT_EQ(CUDA(cuMemFreeAsync)(address, stream_), CUDA_SUCCESS);
  }
  void Synchronize() { ASSERT_EQ(CUDA(cuStreamSynchronize)(stream_), CUDA_SUCCESS); }

  CUmemoryPool pool_ = nullptr;
  CUmemoryPool default_ = nullptr;
  CUstream stream_ = nullptr;
};

RULE_TEST(PoolTest, APoolReservesAtLeastWhatIsUsed,
          "USED is what the program holds, RESERVED the memory behind it, taken from the device",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolGetAttribute") {
  const uint64_t before = FreeBytes();
  EXPECT_EQ(Reserved(), 0u);
  const CUdeviceptr a = Take(3 * kMiB);
  EXPECT_GE(Used(), 3 * kMiB);
  EXPECT_GE(Reserved(), Used());
  EXPECT_LE(FreeBytes(), before - Used());
  Give(a);
  EXPECT_EQ(Used(), 0u);
}

RULE_TEST(PoolTest, MemoryOfAPoolIsUsedInStreamOrder,
          "work submitted to the same stream after the allocation may use it",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemAllocAsync") {
  const CUdeviceptr word = NewWord(0);
  const CUdeviceptr a = Take(4096);
  CUDA_OK(cuMemsetD32Async, a, 0, 2, stream_);
  ASSERT_EQ(Step(stream_, a, 1, 6, 1000), CUDA_SUCCESS);
  CUDA_OK(cuMemcpyDtoDAsync_v2, word, a, 8, stream_);
  Give(a);
  Synchronize();
  EXPECT_EQ(ReadWord(word), 6u);
}

RULE_TEST(PoolTest, UnusedMemoryGoesBackAtSynchronisation,
          "memory above the release threshold (0 at first) goes back at the next synchronisation, "
          "not before",
          kAttributes) {
  const uint64_t before = FreeBytes();
  EXPECT_EQ(Attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0u);
  const CUdeviceptr a = Take(64 * kMiB);
  Give(a);
  EXPECT_GE(Reserved(), 64 * kMiB);
  Synchronize();
  EXPECT_EQ(Reserved(), 0u);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(PoolTest, EventAndContextSynchronisationReleaseToo,
          "the next call to stream, event or context synchronize releases memory", kAttributes) {
  CUevent event = NewEvent();
  Give(Take(64 * kMiB));
  CUDA_OK(cuEventRecord, event, stream_);
  CUDA_OK(cuEventSynchronize, event);
  EXPECT_EQ(Reserved(), 0u);
  Give(Take(64 * kMiB));
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(Reserved(), 0u);
}

RULE_TEST(PoolTest, MemoryInUseIsNotReleased,
          "synchronising takes nothing away from what is allocated", kAttributes) {
  const CUdeviceptr a = Take(8 * kMiB);
  CUDA_OK(cuMemsetD8Async, a, 3, 8 * kMiB, stream_);
  Synchronize();
  EXPECT_GE(Reserved(), 8 * kMiB);
  uint8_t last = 0;
  CUDA_OK(cuMemcpyDtoH_v2, &last, a + 8 * kMiB - 1, 1);
  EXPECT_EQ(last, 3);
  Give(a);
}

RULE_TEST(PoolTest, AThresholdKeepsMemory,
          "memory up to the release threshold stays reserved over synchronisations", kAttributes) {
  Set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
  Give(Take(64 * kMiB));
  Synchronize();
  EXPECT_GE(Reserved(), 64 * kMiB);
  EXPECT_EQ(Attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), UINT64_MAX);
}

RULE_TEST(PoolTest, TrimmingGivesBackWhatIsUnused,
          "cuMemPoolTrimTo releases memory until no more than minBytesToKeep is reserved",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolTrimTo") {
  Set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
  Give(Take(64 * kMiB));
  Synchronize();
  CUDA_OK(cuMemPoolTrimTo, pool_, 0);
  EXPECT_EQ(Reserved(), 0u);
}

RULE_TEST(PoolTest, TrimmingKeepsAtLeastWhatWasAsked,
          "after cuMemPoolTrimTo at least minBytesToKeep bytes are still reserved",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolTrimTo") {
  Set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 4; ++i) all.push_back(Take(64 * kMiB));
  for (CUdeviceptr each : all) Give(each);
  Synchronize();
  const uint64_t reserved = Reserved();
  CUDA_OK(cuMemPoolTrimTo, pool_, 100 * kMiB);
  EXPECT_GE(Reserved(), 100 * kMiB);
  EXPECT_LE(Reserved(), reserved);
  CUDA_OK(cuMemPoolTrimTo, pool_, 1024 * kMiB);  // less is reserved: nothing happens
  EXPECT_GE(Reserved(), 100 * kMiB);
}

RULE_TEST(PoolTest, TrimmingSparesWhatIsAllocated,
          "memory behind allocations that are not freed is not released by a trim",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolTrimTo") {
  const CUdeviceptr a = Take(8 * kMiB);
  Synchronize();
  CUDA_OK(cuMemPoolTrimTo, pool_, 0);
  EXPECT_GE(Reserved(), 8 * kMiB);
  CUDA_OK(cuMemsetD8Async, a, 1, 8 * kMiB, stream_);
  Synchronize();
  Give(a);
}

RULE_TEST(PoolTest, HighMarksStayUntilTheyAreReset,
          "the high watermarks keep the largest value since they were set to 0",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolGetAttribute") {
  Give(Take(64 * kMiB));
  Synchronize();
  EXPECT_GE(Attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 64 * kMiB);
  EXPECT_GE(Attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 64 * kMiB);
  Set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
  Set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
  EXPECT_EQ(Attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0u);
  EXPECT_EQ(Attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 0u);
}

RULE_TEST(PoolTest, HighMarksCanOnlyBeReset,
          "it is illegal to set RESERVED_MEM_HIGH to a value other than 0", kAttributes) {
  uint64_t value = 1;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute, pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
          &value);
}

RULE_TEST(PoolTest, CurrentSizesAreReadOnly,
          "RESERVED_MEM_CURRENT and USED_MEM_CURRENT can be read, not set", kAttributes) {
  uint64_t value = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute, pool_,
          CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute, pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
          &value);
}

RULE_TEST(PoolTest, ReuseIsAllowedAtFirst,
          "the three reuse attributes are enabled by default, and can be set", kAttributes) {
  for (CUmemPool_attribute attribute :
       {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    int value = 0;
    CUDA_OK(cuMemPoolGetAttribute, pool_, attribute, &value);
    EXPECT_EQ(value, 1);
    value = 0;
    CUDA_OK(cuMemPoolSetAttribute, pool_, attribute, &value);
    value = 1;
    CUDA_OK(cuMemPoolGetAttribute, pool_, attribute, &value);
    EXPECT_EQ(value, 0);
  }
}

RULE_TEST(PoolTest, ASizeLimitHolds, "a pool grows to its maxSize and no further",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolCreate") {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.maxSize = 64 * kMiB;
  CUmemoryPool limited = nullptr;
  CUDA_OK(cuMemPoolCreate, &limited, &props);
  CUdeviceptr a = 0;
  CUDA_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync, &a, 100 * kMiB, limited, stream_);
  CUDA_OK(cuMemAllocFromPoolAsync, &a, 50 * kMiB, limited, stream_);
  Give(a);
  Synchronize();
  CUDA_OK(cuMemPoolDestroy, limited);
}

RULE_TEST(PoolTest, APoolIsOnADeviceThatIs,
          "cuMemPoolCreate refuses a location that does not exist and a type it does not know",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolCreate") {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 99};
  CUmemoryPool none = nullptr;
  EXPECT_NE(CUDA(cuMemPoolCreate)(&none, &props), CUDA_SUCCESS);
  props.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate, &none, &props);
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate, &none, &props);
}

RULE_TEST(PoolTest, ADestroyedPoolsMemoryStays,
          "memory of a destroyed pool stays valid until it is freed, and then goes back",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolDestroy") {
  const uint64_t before = FreeBytes();
  const CUdeviceptr a = Take(8 * kMiB);
  CUDA_OK(cuMemPoolDestroy, pool_);
  pool_ = nullptr;
  CUDA_OK(cuMemsetD8Async, a, 1, 8 * kMiB, stream_);
  Synchronize();
  EXPECT_LT(FreeBytes(), before);
  Give(a);
  Synchronize();
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(PoolTest, TheDefaultPoolCannotBeDestroyed, "a device's default pool cannot be destroyed",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolDestroy") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy, default_);
}

RULE_TEST(PoolTest, TheCurrentPoolIsTheDefaultOneAtFirst,
          "a device's current pool is its default pool until another is set",
          "CUDA Driver API 13.0, Device Management, cuDeviceGetMemPool and cuDeviceSetMemPool") {
  CUmemoryPool current = nullptr;
  CUDA_OK(cuDeviceGetMemPool, &current, 0);
  EXPECT_EQ(current, default_);
  CUDA_OK(cuDeviceSetMemPool, 0, pool_);
  CUDA_OK(cuDeviceGetMemPool, &current, 0);
  EXPECT_EQ(current, pool_);
}

RULE_TEST(PoolTest, AllocationsComeFromTheCurrentPool,
          "cuMemAllocAsync allocates from the current pool of the stream's device",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemAllocAsync") {
  CUDA_OK(cuDeviceSetMemPool, 0, pool_);
  CUdeviceptr a = 0;
  CUDA_OK(cuMemAllocAsync, &a, kMiB, stream_);
  EXPECT_GE(Used(), kMiB);
  Give(a);
}

RULE_TEST(PoolTest, DestroyingTheCurrentPoolMakesTheDefaultOneCurrent,
          "destroying the current pool sets the default pool as the current one",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolDestroy") {
  CUDA_OK(cuDeviceSetMemPool, 0, pool_);
  CUDA_OK(cuMemPoolDestroy, pool_);
  pool_ = nullptr;
  CUmemoryPool current = nullptr;
  CUDA_OK(cuDeviceGetMemPool, &current, 0);
  EXPECT_EQ(current, default_);
}

RULE_TEST(PoolTest, WhatIsFreedBehindWorkIsUnused,
          "USED does not count what is freed, be it behind work that is not done",
          "docs/reports/gpu.md, Memory: what a GPU counts is not known") {
  SIMULATED_ONLY("a GPU may count it");
  const CUdeviceptr a = Take(kMiB);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream_), CUDA_SUCCESS);
  CUDA_OK(cuMemFreeAsync, a, stream_);
  EXPECT_EQ(Used(), 0u);
  gate.Open();
  Synchronize();
}

RULE_TEST(PoolTest, MemoryOfAPoolMayBeFreedPlainly, "cuMemFree takes memory of cuMemAllocAsync",
          "CUDA Driver API 13.0, Memory Management, cuMemFree") {
  const CUdeviceptr a = Take(kMiB);
  Synchronize();
  CUDA_OK(cuMemFree_v2, a);
  EXPECT_EQ(Used(), ButOnGpu(uint64_t{0}, uint64_t{kMiB}));
}

RULE_TEST(PoolTest, UnusedPoolMemoryYieldsToPlainAllocations,
          "cuMemAlloc finds memory that a pool keeps and does not use",
          "CUDA C++ Programming Guide 13.0, 15.9 Physical Page Caching Behavior: the driver frees "
          "unused pool memory before failing an allocation of the same process") {
  Set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
  const uint64_t most = FreeBytes() / 4 * 3 / (32 * kMiB) * (32 * kMiB);
  Give(Take(most));
  Synchronize();
  EXPECT_GE(Reserved(), most);
  CUdeviceptr plain = 0;
  CUDA_OK(cuMemAlloc_v2, &plain, most);
  EXPECT_EQ(Reserved(), 0u);
  CUDA_OK(cuMemFree_v2, plain);
}

RULE_TEST(PoolTest, PoolsGrowByChunks, "the simulated pools grow by chunks of 32 MiB",
          "docs/reference/simulated-gpu.md, Settings, pool_chunk") {
  SIMULATED_ONLY("the size of a chunk is the driver's own affair");
  const CUdeviceptr a = Take(1000);
  EXPECT_EQ(Reserved(), 32 * kMiB);
  EXPECT_EQ(Used(), 1024u);
  Give(a);
  const CUdeviceptr b = Take(100 * kMiB);
  EXPECT_EQ(Reserved(), 160 * kMiB);
  Give(b);
}

RULE_TEST(PoolTest, MemoryFreedInADestroyedStreamWaitsForItsWork,
          "a destroyed stream's work is still done, and memory freed in it cannot be had by others "
          "before that",
          "CUDA Driver API, Stream Management, cuStreamDestroy; Stream Ordered Memory Allocator, "
          "cuMemFreeAsync") {
  constexpr size_t kBytes = 1 << 20;
  CUstream first = NewStream();
  CUstream second = NewStream();
  CUdeviceptr a = 0;
  CUDA_OK(cuMemAllocAsync, &a, kBytes, first);
  CUDA_OK(cuStreamSynchronize, first);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(first), CUDA_SUCCESS);
  CUDA_OK(cuMemsetD8Async, a, 0x11, kBytes, first);
  CUDA_OK(cuMemFreeAsync, a, first);
  CUDA_OK(cuStreamDestroy_v2, first);
  CUdeviceptr b = 0;
  CUDA_OK(cuMemAllocAsync, &b, kBytes, second);
  CUDA_OK(cuMemsetD8Async, b, 0x22, kBytes, second);
  gate.Open();
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(ReadWord(b), 0x2222222222222222u);
}

}  // namespace
}  // namespace prorata::conformance
