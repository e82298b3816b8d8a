// Stream-ordered memory: chunks, reuse, thresholds.

#include "driver.h"

namespace prorata::simgpu {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kChunk = 32 * kMiB;

class PoolTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CUDA_OK(cuDeviceGetDefaultMemPool, &pool_, 0);
    CUDA_OK(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
    SetThreshold(0);
  }
  void TearDown() override {
    CUDA_OK(cuStreamDestroy_v2, stream_);
    DriverTest::TearDown();
  }
  void SetThreshold(uint64_t bytes) {
    CUDA_OK(cuMemPoolSetAttribute, pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
  }
  uint64_t Attribute(CUmemPool_attribute attribute) {
    uint64_t value = 0;
    EXPECT_EQ(CUDA(cuMemPoolGetAttribute)(pool_, attribute, &value), CUDA_SUCCESS);
    return value;
  }
  uint64_t Reserved() { return Attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); }

  CUmemoryPool pool_ = nullptr;
  CUstream stream_ = nullptr;
};

TEST_F(PoolTest, GrowsByChunksAndGivesThemBackAtSynchronisation) {
  const uint64_t before = FreeBytes();
  CUdeviceptr a = 0;
  CUDA_OK(cuMemAllocAsync, &a, 1000, stream_);
  EXPECT_EQ(Reserved(), kChunk);
  EXPECT_EQ(Attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1024u);
  EXPECT_EQ(FreeBytes(), before - kChunk);
  CUDA_OK(cuMemFreeAsync, a, stream_);
  EXPECT_EQ(Reserved(), kChunk);  // nobody synchronised
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(Reserved(), 0u);
  EXPECT_EQ(FreeBytes(), before);
  EXPECT_EQ(Attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), kChunk);
}

TEST_F(PoolTest, AThresholdKeepsChunksUntilTrimmed) {
  SetThreshold(UINT64_MAX);
  CUdeviceptr a = 0;
  CUDA_OK(cuMemAllocAsync, &a, 100 * kMiB, stream_);
  EXPECT_EQ(Reserved(), 128 * kMiB);
  CUDA_OK(cuMemFreeAsync, a, stream_);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(Reserved(), 128 * kMiB);
  CUDA_OK(cuMemPoolTrimTo, pool_, 0);
  EXPECT_EQ(Reserved(), 0u);
}

TEST_F(PoolTest, AFreeIsReusedOnItsStreamAtOnceElsewhereWhenReached) {
  SetThreshold(UINT64_MAX);
  CUstream other;
  CUDA_OK(cuStreamCreate, &other, CU_STREAM_NON_BLOCKING);
  const CUdeviceptr word = NewWord(0);
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  CUdeviceptr c = 0;
  CUDA_OK(cuMemAllocAsync, &a, kChunk, stream_);
  ASSERT_EQ(Step(stream_, word, 1, 1, 30'000'000), CUDA_SUCCESS);
  CUDA_OK(cuMemFreeAsync, a, stream_);
  CUDA_OK(cuMemAllocAsync, &b, kChunk, other);  // the free is behind 30 ms of work
  EXPECT_NE(b, a);
  CUDA_OK(cuMemAllocAsync, &c, kChunk, stream_);
  EXPECT_EQ(c, a);
  CUDA_OK(cuMemFreeAsync, b, other);
  CUDA_OK(cuMemFreeAsync, c, stream_);
  CUDA_OK(cuStreamSynchronize, stream_);
  CUDA_OK(cuStreamSynchronize, other);
  CUDA_OK(cuMemAllocAsync, &b, 2 * kChunk, other);
  CUDA_OK(cuMemFreeAsync, b, other);
}

TEST_F(PoolTest, UnusedChunksYieldToPlainAllocations) {
  SetThreshold(UINT64_MAX);
  CUdeviceptr a = 0;
  CUDA_OK(cuMemAllocAsync, &a, 8192 * kMiB, stream_);
  CUDA_OK(cuMemFreeAsync, a, stream_);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(Reserved(), 8192 * kMiB);
  CUDA_OK(cuMemAlloc_v2, &a, 12288 * kMiB);
  EXPECT_EQ(Reserved(), 0u);
  CUDA_OK(cuMemFree_v2, a);
}

TEST_F(PoolTest, PoolsOfTheProgram) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.maxSize = 64 * kMiB;
  CUmemoryPool mine;
  CUDA_OK(cuMemPoolCreate, &mine, &props);
  const uint64_t before = FreeBytes();
  CUdeviceptr a = 0;
  CUDA_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync, &a, 100 * kMiB, mine, stream_);
  CUDA_OK(cuMemAllocFromPoolAsync, &a, 50 * kMiB, mine, stream_);
  CUDA_OK(cuMemPoolDestroy, mine);  // what it gave stays valid
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolTrimTo, mine, 0);
  CUDA_OK(cuMemsetD8Async, a, 1, 50 * kMiB, stream_);
  CUDA_OK(cuStreamSynchronize, stream_);
  CUDA_OK(cuMemFree_v2, a);
  EXPECT_EQ(FreeBytes(), before);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy, pool_);  // the default one stays
}

}  // namespace
}  // namespace prorata::simgpu
