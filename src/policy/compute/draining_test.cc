// When the next share is dispatched, by what a draining one was expected to need and needed.

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

class DrainingTest : public TimeSharingTest {
 protected:
  // Always busy, and its members say that all should be done by now.
  void ShouldBeDone(LeasePolicy::Key key) {
    LeasePolicy::Work work;
    work.occupied_total_ns = static_cast<uint64_t>(now_ns_);
    work.backlog_ns = 1;
    work.end_ns = now_ns_;
    policy_.Observe(key, work);
  }
  void RunUntilDraining(LeasePolicy::Key key) {
    while (In(key) == Phase::kRunning && now_ns_ < kS) {
      now_ns_ += kMs;
      ShouldBeDone(key);
      Decide(now_ns_);
    }
    ASSERT_EQ(In(key), Phase::kDraining);
  }
  // The slice of 1 ends while 2 waits, and 1 has drained `late_ns` later than its members expected.
  // Answers where 2 is a moment before that.
  Phase OtherWhile1DrainsLate(int64_t late_ns) {
    RunUntilDraining(1);
    Decide(now_ns_ + late_ns - kMs / 2);
    const Phase other = In(2);
    Drains(1, now_ns_ += late_ns);
    EXPECT_EQ(In(2), Phase::kRunning);
    return other;
  }
  void BackTo1() {
    policy_.Wanted(1, now_ns_);
    RunUntilDraining(2);
    Drains(2, now_ns_);
    ASSERT_EQ(In(1), Phase::kRunning);
    policy_.Wanted(2, now_ns_);
  }

  int64_t now_ns_ = 0;
};

// Its kernels take 20 us, and now and then 20 ms. Let in beside what is left of one, a share with
// kernels of 20 us would have nothing of the device, and pay half of it.
TEST_F(DrainingTest, OthersWaitForOneWhoseDrainsCannotBeForetold) {
  TwoBusy();
  EXPECT_EQ(OtherWhile1DrainsLate(2 * kMs), Phase::kRunning) << "nothing is known yet";
  BackTo1();
  EXPECT_EQ(OtherWhile1DrainsLate(3 * kMs), Phase::kRunnable) << "it was late before";
}

// What it measures until then has some of the other's time in it.
TEST_F(DrainingTest, WhoIsLetInBesideADrainHasTheDeviceInSlices) {
  TwoBusy();
  EXPECT_FALSE(policy_.State(1).in_slices);
  RunUntilDraining(1);
  Decide(now_ns_ += kMs / 2);
  ASSERT_EQ(In(2), Phase::kRunning);
  EXPECT_TRUE(policy_.State(2).in_slices);
  Drains(1, now_ns_ += kMs);
  EXPECT_FALSE(policy_.State(2).in_slices);
}

// A program that waits for its kernels is found in the moment between two of them.
TEST_F(DrainingTest, ASliceThatEndsInAGapIsNoReasonToClaimTheNext) {
  TwoBusy(0.9, 0);
  Decide(kSliceNs);
  Drains(1, kSliceNs + kMs);
  EXPECT_EQ(In(1), Phase::kIdle);
  EXPECT_EQ(In(2), Phase::kRunning);
  Backlog(2, kMs, kSliceNs + 2 * kMs);
  Wants(1, kSliceNs + kMs + kMs / 10);
  EXPECT_EQ(In(2), Phase::kRunning) << "its slice has just begun";
}

TEST_F(DrainingTest, OneThatSleptClaimsIt) {
  Add(1, Terms(0.5));
  Add(2, Terms(0));
  Wants(1, 0);
  policy_.Idle(1, kMs);
  Wants(2, kMs);
  Drains(1, kMs + kMs / 10);
  ASSERT_EQ(In(2), Phase::kRunning);
  Backlog(2, kMs, 3 * kMs);
  Decide(2 * kMs);
  Wants(1, 10 * kMs);
  EXPECT_EQ(In(2), Phase::kDraining);
}

}  // namespace
}  // namespace prorata::policy
