// Stream-ordered memory: what the pools reserve on the device.

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "../conformance/other_process.h"
#include "limits.h"

namespace prorata::limits {
namespace {

class PoolLimits : public LimitTest {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    SKIP_UNLESS(Has(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), "memory pools");
    CUDA_OK(cuDeviceGetDefaultMemPool, &default_, device_);
    CUDA_OK(cuMemPoolTrimTo, default_, 0);
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    CUDA_OK(cuMemPoolCreate, &pool_, &props);
  }
  void TearDown() override {
    if (pool_ != nullptr) {
      CUDA_OK(cuMemPoolDestroy, pool_);
    }
    if (default_ != nullptr) {
      SetThreshold(default_, 0);
      CUDA_OK(cuMemPoolTrimTo, default_, 0);
    }
    LimitTest::TearDown();
  }
  static uint64_t Reserved(CUmemoryPool pool) {
    cuuint64_t bytes = 0;
    EXPECT_EQ(CUDA(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes),
              CUDA_SUCCESS);
    return bytes;
  }
  static void SetThreshold(CUmemoryPool pool, cuuint64_t bytes) {
    EXPECT_EQ(CUDA(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes),
              CUDA_SUCCESS);
  }
  CUdeviceptr From(CUmemoryPool pool, uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuMemAllocFromPoolAsync)(&address, bytes, pool, nullptr), CUDA_SUCCESS);
    return address;
  }
  void Free(CUdeviceptr address) {
    CUDA_OK(cuMemFreeAsync, address, nullptr);
    CUDA_OK(cuStreamSynchronize, nullptr);
  }
  CUmemoryPool default_ = nullptr, pool_ = nullptr;
};

constexpr uint64_t kPoolBytes = 96 * kMib;

TEST_F(PoolLimits, MemAllocAsyncRefused) {
  LeaveRoom(kPoolBytes / 2);
  CUdeviceptr address = 0;
  Refused([&] { return CUDA(cuMemAllocAsync)(&address, kPoolBytes, nullptr); });
}

TEST_F(PoolLimits, MemAllocAsyncCharged) {
  LeaveRoom(2 * kPoolBytes);
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAllocAsync, &address, kPoolBytes, nullptr);
  EXPECT_GE(Reserved(default_), kPoolBytes);
  EXPECT_TRUE(Charged(Reserved(default_)));
  Free(address);
}

TEST_F(PoolLimits, MemAllocFromPoolAsyncRefused) {
  LeaveRoom(kPoolBytes / 2);
  CUdeviceptr address = 0;
  Refused([&] { return CUDA(cuMemAllocFromPoolAsync)(&address, kPoolBytes, pool_, nullptr); });
}

TEST_F(PoolLimits, MemAllocFromPoolAsyncCharged) {
  SetThreshold(pool_, ~cuuint64_t{0});
  Free(From(pool_, kPoolBytes));
  EXPECT_GE(Reserved(pool_), kPoolBytes) << "a pool keeps up to its release threshold";
  EXPECT_TRUE(Charged(Reserved(pool_)));
  // What is reserved already is free of charge.
  const uint64_t before = LimitTest::Free();
  const CUdeviceptr again = From(pool_, kPoolBytes);
  EXPECT_EQ(LimitTest::Free(), before);
  Free(again);
}

TEST_F(PoolLimits, MemAllocFromPoolAsyncTrimsBeforeItIsRefused) {
  SetThreshold(pool_, ~cuuint64_t{0});
  SetThreshold(default_, ~cuuint64_t{0});
  Free(From(pool_, kPoolBytes));
  const uint64_t kept = Reserved(pool_);
  LeaveRoom(kSlab);
  // Only what the other pool keeps unused makes this fit; plain memory finds it, too.
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAllocFromPoolAsync, &address, kPoolBytes / 2, default_, nullptr);
  EXPECT_LT(Reserved(pool_), kept);
  Free(address);
  CUDA_OK(cuMemAlloc_v2, &address, kPoolBytes / 2);
  CUDA_OK(cuMemFree_v2, address);
}

// The driver hands such memory out again in the order of the stream; a share that is full refused
// it.
TEST_F(PoolLimits, MemAllocAsyncGetsWhatIsFreedBehindWork) {
  LeaveRoom(kPoolBytes + 32 * kMib);
  CUstream stream = nullptr;
  CUDA_OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  const auto work = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAllocAsync, &address, kPoolBytes, stream);
  for (int i = 0; i < 5; ++i) {
    CUDA_OK(cuLaunchHostFunc, stream, work, nullptr);
    CUDA_OK(cuMemFreeAsync, address, stream);
    CUDA_OK(cuMemAllocAsync, &address, kPoolBytes, stream) << i;
  }
  CUDA_OK(cuMemFreeAsync, address, stream);
  CUDA_OK(cuStreamSynchronize, stream);
  CUDA_OK(cuStreamDestroy_v2, stream);
}

// As for a full device: nothing is waited for while a capture is open in the process.
TEST_F(PoolLimits, NothingFreedBehindWorkIsWaitedForDuringACapture) {
  LeaveRoom(kPoolBytes + 32 * kMib);
  CUstream stream = nullptr, captured = nullptr;
  CUDA_OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  CUDA_OK(cuStreamCreate, &captured, CU_STREAM_NON_BLOCKING);
  static std::atomic<bool> ends;
  ends = false;
  const auto work = [](void*) { ends.wait(false); };
  CUdeviceptr address = 0, refused = 0;
  CUDA_OK(cuMemAllocAsync, &address, kPoolBytes, stream);
  CUDA_OK(cuLaunchHostFunc, stream, work, nullptr);
  CUDA_OK(cuMemFreeAsync, address, stream);
  CUDA_OK(cuStreamBeginCapture_v2, captured, CU_STREAM_CAPTURE_MODE_RELAXED);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(CUDA(cuMemAllocAsync)(&refused, kPoolBytes, stream), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  CUgraph graph = nullptr;
  CUDA_OK(cuStreamEndCapture, captured, &graph);
  CUDA_OK(cuGraphDestroy, graph);
  ends = true;
  ends.notify_all();
  CUDA_OK(cuStreamSynchronize, stream);
  CUDA_OK(cuStreamDestroy_v2, stream);
  CUDA_OK(cuStreamDestroy_v2, captured);
}

TEST_F(PoolLimits, ManyPoolsAreCharged) {
  std::vector<CUmemoryPool> pools(600);
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  for (CUmemoryPool& pool : pools) {
    CUDA_OK(cuMemPoolCreate, &pool, &props);
  }
  for (const size_t number : {size_t{0}, pools.size() / 2, pools.size() - 1}) {
    CUdeviceptr address = 0;
    CUDA_OK(cuMemAllocFromPoolAsync, &address, kPoolBytes, pools[number], nullptr) << number;
    EXPECT_TRUE(Charged(Reserved(pools[number]))) << number;
    Free(address);
    EXPECT_TRUE(Charged(0)) << number;
  }
  LeaveRoom(kPoolBytes / 2);
  CUdeviceptr address = 0;
  Refused(
      [&] { return CUDA(cuMemAllocFromPoolAsync)(&address, kPoolBytes, pools.back(), nullptr); });
  for (CUmemoryPool pool : pools) {
    CUDA_OK(cuMemPoolDestroy, pool);
  }
}

TEST_F(PoolLimits, MemFreeAsyncMakesRoom) {
  LeaveRoom(kPoolBytes + 32 * kMib);
  const CUdeviceptr address = From(pool_, kPoolBytes);
  CUdeviceptr more = 0;
  Refused([&] { return CUDA(cuMemAlloc_v2)(&more, kPoolBytes); });
  Free(address);
  CUDA_OK(cuMemAlloc_v2, &more, kPoolBytes);
  CUDA_OK(cuMemFree_v2, more);
}

TEST_F(PoolLimits, MemFreeAsyncGivesBack) {
  Free(From(pool_, kPoolBytes));
  EXPECT_TRUE(Charged(Reserved(pool_)));
  EXPECT_LT(Reserved(pool_), kPoolBytes);
}

// What the driver takes out of a pool by itself, when the program synchronises, another process of
// the share can have at once.
TEST_F(PoolLimits, SynchronizeGivesBackAtOnce) {
  constexpr uint64_t kHalf = 768 * kMib;
  conformance::OtherProcess other;
  CUevent event = nullptr;
  CUDA_OK(cuEventCreate, &event, 0);
  const uint64_t before = LimitTest::Free();
  const auto synchronize = [&](int way) {
    switch (way) {
      case 0:
        return CUDA(cuStreamSynchronize)(nullptr);
      case 1:
        return CUDA(cuCtxSynchronize)();
      default:
        return CUDA(cuEventSynchronize)(event);
    }
  };
  for (int way = 0; way < 3; ++way) {
    for (CUmemoryPool pool : {default_, pool_}) {
      const CUdeviceptr first = From(pool, kHalf), second = From(pool, kHalf);
      CUDA_OK(cuMemFreeAsync, first, nullptr);
      CUDA_OK(cuMemFreeAsync, second, nullptr);
      CUDA_OK(cuEventRecord, event, nullptr);
      EXPECT_EQ(synchronize(way), CUDA_SUCCESS);
      EXPECT_EQ(LimitTest::Free(), before) << "way " << way;
      const conformance::Reply theirs = other.Allocate(before - kHalf);
      EXPECT_EQ(theirs.result, CUDA_SUCCESS) << "way " << way;
      EXPECT_EQ(other.Free(theirs.value).result, CUDA_SUCCESS);
      EXPECT_TRUE(FreeBecomes(before));
    }
  }
  CUDA_OK(cuEventDestroy_v2, event);
}

TEST_F(PoolLimits, ADestroyedPoolIsGivenBackAtOnce) {
  const uint64_t before = LimitTest::Free();
  const CUdeviceptr held = From(pool_, kPoolBytes);
  CUDA_OK(cuMemPoolDestroy, pool_);
  pool_ = nullptr;
  CUDA_OK(cuMemFreeAsync, held, nullptr);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(LimitTest::Free(), before);
}

TEST_F(PoolLimits, MemPoolTrimToMakesRoom) {
  SetThreshold(pool_, ~cuuint64_t{0});
  Free(From(pool_, kPoolBytes));
  LeaveRoom(kSlab);
  const uint64_t before = LimitTest::Free();
  CUDA_OK(cuMemPoolTrimTo, pool_, 0);
  EXPECT_GE(LimitTest::Free(), before + kPoolBytes);
}

TEST_F(PoolLimits, MemPoolTrimToGivesBack) {
  SetThreshold(pool_, ~cuuint64_t{0});
  const CUdeviceptr held = From(pool_, kPoolBytes), freed = From(pool_, kPoolBytes);
  Free(freed);
  CUDA_OK(cuMemPoolTrimTo, pool_, 0);
  EXPECT_GE(Reserved(pool_), kPoolBytes);
  EXPECT_TRUE(Charged(Reserved(pool_)));
  Free(held);
}

TEST_F(PoolLimits, MemPoolDestroyMakesRoom) {
  SetThreshold(pool_, ~cuuint64_t{0});
  Free(From(pool_, kPoolBytes));
  LeaveRoom(kSlab);
  const uint64_t before = LimitTest::Free();
  CUDA_OK(cuMemPoolDestroy, pool_);
  pool_ = nullptr;
  EXPECT_TRUE(FreeBecomes(LimitTest::Free()));
  EXPECT_GE(LimitTest::Free(), before + kPoolBytes);
}

TEST_F(PoolLimits, MemPoolDestroyGivesBack) {
  const CUdeviceptr held = From(pool_, kPoolBytes);
  const uint64_t reserved = Reserved(pool_);
  CUDA_OK(cuMemPoolDestroy, pool_);
  pool_ = nullptr;
  EXPECT_TRUE(Charged(reserved)) << "the driver keeps it";
  Free(held);
  EXPECT_TRUE(Charged(0));
}

}  // namespace
}  // namespace prorata::limits
