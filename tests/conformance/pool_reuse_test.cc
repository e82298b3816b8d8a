// Which freed memory of a pool an allocation may get: the three policies.
//
// In these tests a block is freed on `first_` behind a closed gate, so the free has not happened
// yet; what another stream is given then tells the policy.

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr uint64_t kBlock = 64 << 20;
constexpr char kPolicies[] =
    "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemPoolSetAttribute; CUDA C++ "
    "Programming Guide 13.0, 15.9 Memory Reuse Policies";

class PoolReuseTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    first_ = NewStream();
    second_ = NewStream();
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUDA_OK(cuMemPoolCreate, &pool_, &props);
    uint64_t all = UINT64_MAX;
    CUDA_OK(cuMemPoolSetAttribute, pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
    Kernel("step");  // loaded before any gate is closed
  }
  void TearDown() override {
    if (gate_) gate_->Open();
    CUDA_OK(cuCtxSynchronize);
    if (pool_) {
      CUDA_OK(cuMemPoolDestroy, pool_);
    }
    DriverTest::TearDown();
  }
  void Forbid(CUmemPool_attribute attribute) {
    int off = 0;
    ASSERT_EQ(CUDA(cuMemPoolSetAttribute)(pool_, attribute, &off), CUDA_SUCCESS);
  }
  CUdeviceptr Take(CUstream stream) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuMemAllocFromPoolAsync)(&address, kBlock, pool_, stream), CUDA_SUCCESS);
    return address;
  }
  void Give(CUdeviceptr address, CUstream stream) {
    ASSERT_EQ(CUDA(cuMemFreeAsync)(address, stream), CUDA_SUCCESS);
  }
  // Freed on the first stream, but not yet.
  CUdeviceptr FreedBehindAGate() {
    const CUdeviceptr address = Take(first_);
    gate_ = &NewGate();
    EXPECT_EQ(gate_->Hold(first_), CUDA_SUCCESS);
    Give(address, first_);
    return address;
  }
  // The second stream comes after everything in the first so far.
  void OrderSecondAfterFirst() {
    CUevent event = NewEvent();
    ASSERT_EQ(CUDA(cuEventRecord)(event, first_), CUDA_SUCCESS);
    ASSERT_EQ(CUDA(cuStreamWaitEvent)(second_, event, 0), CUDA_SUCCESS);
  }

  CUmemoryPool pool_ = nullptr;
  CUstream first_ = nullptr;
  CUstream second_ = nullptr;
  Gate* gate_ = nullptr;
};

RULE_TEST(
    PoolReuseTest, TheSameStreamReusesAtOnce,
    "memory freed in a stream can be had again in it at once: the order is the stream's",
    "CUDA C++ Programming Guide 13.0, 15.9 Memory Reuse Policies (implicit stream ordering)") {
  const CUdeviceptr a = FreedBehindAGate();
  const CUdeviceptr b = Take(first_);
  EXPECT_EQ(b, a);
  Give(b, first_);
}

RULE_TEST(PoolReuseTest, PendingFreesAreNotReusedElsewhere,
          "memory whose free has not been reached is not given to a stream without an order to it",
          kPolicies) {
  const CUdeviceptr a = FreedBehindAGate();
  const CUdeviceptr b = Take(second_);
  EXPECT_NE(b, a);
  Give(b, second_);
}

RULE_TEST(PoolReuseTest, ReachedFreesAreReusedElsewhere,
          "with ALLOW_OPPORTUNISTIC memory whose free was reached is given to any stream",
          kPolicies) {
  const CUdeviceptr a = Take(first_);
  CUevent event = NewEvent();
  Give(a, first_);
  CUDA_OK(cuEventRecord, event, first_);
  while (CUDA(cuEventQuery)(event) == CUDA_ERROR_NOT_READY) {
  }
  const CUdeviceptr b = Take(second_);
  EXPECT_EQ(b, a);
  Give(b, second_);
}

RULE_TEST(PoolReuseTest, WithoutOpportunismReachedFreesAreNotReusedElsewhere,
          "without ALLOW_OPPORTUNISTIC a completed free is not enough: an order is needed",
          kPolicies) {
  Forbid(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
  const CUdeviceptr a = Take(first_);
  volatile uint64_t* done = HostWord(0);
  Give(a, first_);
  CUDA_OK(cuStreamWriteValue64_v2, first_, AddressOf(done), 1, 0);
  // Reached by the device, and the driver was not asked.
  while (__atomic_load_n(done, __ATOMIC_ACQUIRE) == 0) {
  }
  const CUdeviceptr b = Take(second_);
  EXPECT_NE(b, a);
  Give(b, second_);
}

RULE_TEST(PoolReuseTest, WithoutOpportunismSynchronisationMakesMemoryReusable,
          "without ALLOW_OPPORTUNISTIC memory is reused that a synchronisation with the CPU made "
          "available",
          "CUDA C++ Programming Guide 13.0, 15.9.2 cudaMemPoolReuseAllowOpportunistic") {
  Forbid(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
  const CUdeviceptr a = Take(first_);
  Give(a, first_);
  CUDA_OK(cuStreamSynchronize, first_);
  const CUdeviceptr b = Take(second_);
  EXPECT_EQ(b, a);
  Give(b, second_);
}

RULE_TEST(PoolReuseTest, EventsOrderReuse,
          "with FOLLOW_EVENT_DEPENDENCIES memory freed before an event is given to a stream that "
          "waits for it, though the free has not been reached",
          kPolicies) {
  const CUdeviceptr a = FreedBehindAGate();
  OrderSecondAfterFirst();
  const CUdeviceptr b = Take(second_);
  EXPECT_EQ(b, a);
  Give(b, second_);
}

RULE_TEST(PoolReuseTest, AnEventBeforeTheFreeOrdersNothing,
          "an event recorded before the free gives no order after it", kPolicies) {
  const CUdeviceptr a = Take(first_);
  gate_ = &NewGate();
  ASSERT_EQ(gate_->Hold(first_), CUDA_SUCCESS);
  OrderSecondAfterFirst();
  Give(a, first_);
  const CUdeviceptr b = Take(second_);
  EXPECT_NE(b, a);
  Give(b, second_);
}

RULE_TEST(PoolReuseTest, OrderIsHandedOn, "an order over a third stream is an order, too",
          kPolicies) {
  const CUdeviceptr a = FreedBehindAGate();
  OrderSecondAfterFirst();
  CUstream third = NewStream();
  CUevent event = NewEvent();
  CUDA_OK(cuEventRecord, event, second_);
  CUDA_OK(cuStreamWaitEvent, third, event, 0);
  const CUdeviceptr b = Take(third);
  EXPECT_EQ(b, a);
  Give(b, third);
}

RULE_TEST(PoolReuseTest, WithoutFollowingEventsTheyDoNotCount,
          "without FOLLOW_EVENT_DEPENDENCIES an event's order is not used", kPolicies) {
  Forbid(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES);
  const CUdeviceptr a = FreedBehindAGate();
  OrderSecondAfterFirst();
  const CUdeviceptr b = Take(second_);
  EXPECT_NE(b, a);
  Give(b, second_);
}

RULE_TEST(PoolReuseTest, OnAFullPoolDependenciesAreInserted,
          "with ALLOW_INTERNAL_DEPENDENCIES an allocation that finds no other memory waits, in its "
          "stream, for a free in another",
          kPolicies) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.maxSize = kBlock;
  CUDA_OK(cuMemPoolDestroy, pool_);
  CUDA_OK(cuMemPoolCreate, &pool_, &props);
  const CUdeviceptr a = FreedBehindAGate();
  const CUdeviceptr b = Take(second_);  // the pool may not grow
  EXPECT_EQ(b, a);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, second_);  // it waits for the free
  gate_->Open();
  CUDA_OK(cuStreamSynchronize, second_);
  Give(b, second_);
}

RULE_TEST(PoolReuseTest, WithoutInternalDependenciesAFullPoolRefuses,
          "without ALLOW_INTERNAL_DEPENDENCIES an allocation fails rather than wait for another "
          "stream",
          kPolicies) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.maxSize = kBlock;
  CUDA_OK(cuMemPoolDestroy, pool_);
  CUDA_OK(cuMemPoolCreate, &pool_, &props);
  Forbid(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
  FreedBehindAGate();
  CUdeviceptr b = 0;
  CUDA_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync, &b, kBlock, pool_, second_);
}

RULE_TEST(PoolReuseTest, AFreeInAnotherStreamCounts,
          "memory may be freed in another stream than it was allocated in, and is that stream's "
          "then",
          "CUDA Driver API 13.0, Stream Ordered Memory Allocator, cuMemFreeAsync") {
  const CUdeviceptr a = Take(first_);
  OrderSecondAfterFirst();
  gate_ = &NewGate();
  ASSERT_EQ(gate_->Hold(second_), CUDA_SUCCESS);
  Give(a, second_);
  const CUdeviceptr b = Take(first_);  // not ordered after the free
  EXPECT_NE(b, a);
  const CUdeviceptr c = Take(second_);
  EXPECT_EQ(c, a);
  Give(b, first_);
  Give(c, second_);
}

}  // namespace
}  // namespace prorata::conformance
