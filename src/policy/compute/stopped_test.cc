// A share all of whose programs seem to be stopped: others have the device.

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

class StoppedShareTest : public TimeSharingTest {
 protected:
  // Share 2 is busy, and 1 is stopped, for so long, with a thread that waits or without. Answers
  // how often 1 was granted its lease.
  int Asked(int64_t for_ns, bool waits = false) {
    int asked = 0;
    Phase before = In(1);
    for (const int64_t until_ns = now_ns_ + for_ns; now_ns_ < until_ns; now_ns_ += kStepNs) {
      if (In(2) == Phase::kDraining) Drains(2, now_ns_);
      if (In(2) == Phase::kIdle) policy_.Wanted(2, now_ns_);
      Backlog(2, kMs, now_ns_ + kMs);
      if (waits) policy_.Wanted(1, now_ns_);
      Decide(now_ns_);
      asked += In(1) == Phase::kRunning && before != Phase::kRunning;
      before = In(1);
    }
    return asked;
  }
  static constexpr int64_t kStepNs = 250'000;
  int64_t now_ns_ = 0;
};

TEST_F(StoppedShareTest, WhoRunsAndSaysNothingYieldsAndIsNotCharged) {
  TwoBusy(0.9, 0.1);
  Stops(1);
  Decide(now_ns_ = kMs);
  EXPECT_EQ(In(1), Phase::kDraining);
  EXPECT_EQ(In(2), Phase::kRunning) << "at once: nothing is known to be in its way";
  Decide(now_ns_ += kStepNs);
  EXPECT_EQ(In(1), Phase::kStalled);
  const double before = ChargedMs(1);
  EXPECT_EQ(Asked(5 * kS), 0) << "nothing of it waits";
  EXPECT_EQ(ChargedMs(1), before);
  EXPECT_NEAR(LagMs(2), 0, 1) << "it has what nobody else wanted, and owes nothing";
}

TEST_F(StoppedShareTest, WhoWaitsIsAskedEachTenSeconds) {
  TwoBusy(0.9, 0.1);
  policy_.Wanted(1, 0);
  Stops(1);
  Decide(now_ns_ = kMs);
  policy_.Wanted(1, now_ns_);
  const double before = ChargedMs(1);
  Decide(now_ns_ += kMs);
  Decide(now_ns_ += kMs);
  EXPECT_GE(next_ns_, now_ns_ + kMs) << "nothing is to be done for it";
  EXPECT_EQ(Asked(9 * kS, true), 0);
  EXPECT_EQ(Asked(24 * kS, true), 3) << "nobody waits for ever, whatever is seen of them";
  EXPECT_LE(ChargedMs(1) - before, 3) << "each time for as long as a thread takes to wake";
}

TEST_F(StoppedShareTest, WhoIsBackIsNextAndPaysForWhatRanMeanwhile) {
  TwoBusy(0.5, 0.5);
  Stops(1);
  Decide(now_ns_ = kMs);
  Asked(kS);
  const double lag = LagMs(1);
  LeasePolicy::Work work;
  work.busy_total_ns = 40 * kMs;
  work.occupied_total_ns = kS;  // its helper could not see when it was done
  policy_.Observe(1, work);
  EXPECT_NEAR(LagMs(1), lag - 40, 0.01);
  policy_.Drained(1, now_ns_, now_ns_);
  Decide(now_ns_ += kStepNs);
  EXPECT_NEAR(LagMs(1), lag - 40, 1) << "and no more than that";
}

// What has a turn of its own, or a limit that is used up, is no exception.
TEST_F(StoppedShareTest, OfTheHighestPriority) {
  Add(1, Terms(0, 1, 5));
  Add(2, Terms(0));
  policy_.Wanted(1, 0);
  policy_.Wanted(2, 0);
  Decide(0);
  ASSERT_EQ(In(1), Phase::kRunning);
  ASSERT_EQ(In(2), Phase::kRunnable);
  Backlog(1, kMs, kMs);
  Decide(kMs);
  EXPECT_LE(next_ns_, kMs + kSliceNs) << "whether it still does anything is looked at";
  Stops(1);
  policy_.Wanted(1, kMs);
  Decide(now_ns_ = 2 * kMs);
  EXPECT_EQ(In(2), Phase::kRunning);
}

// A container that has used up its processor quota is away for tens of milliseconds.
class AwayShareTest : public TimeSharingTest {};

TEST_F(AwayShareTest, WhoRunsYieldsAndPaysUntilThen) {
  TwoBusy();
  GoesAway(1, 4 * kMs);
  Decide(3 * kMs);
  EXPECT_EQ(In(1), Phase::kRunning);
  const double before = ChargedMs(1);
  Decide(5 * kMs);
  EXPECT_NEAR(ChargedMs(1), before + 2, 0.01) << "nobody else could have the device";
  Decide(5 * kMs + 1);
  EXPECT_EQ(In(1), Phase::kStalled) << "what it has out may run";
  EXPECT_EQ(In(2), Phase::kRunning);
}

TEST_F(AwayShareTest, WhoDrainsStallsAtOnce) {
  TwoBusy();
  Decide(kSliceNs);
  Backlog(1, kMs, kSliceNs + kMs);
  Decide(kSliceNs + 1);
  ASSERT_EQ(In(1), Phase::kDraining);
  GoesAway(1, kSliceNs + kMs);  // by its deadline it has twice as long
  Decide(kSliceNs + kMs / 2);
  EXPECT_EQ(In(1), Phase::kDraining);
  EXPECT_LE(next_ns_, kSliceNs + kMs);
  Decide(kSliceNs + kMs);
  EXPECT_EQ(In(1), Phase::kStalled);
}

TEST_F(AwayShareTest, WhoWaitsHasNoTurnUntilItIsBack) {
  TwoBusy();
  GoesAway(2, 5 * kMs, 0);
  Decide(kSliceNs);
  EXPECT_EQ(In(1), Phase::kRunning) << "there is nobody else";
  Decide(5 * kSliceNs);
  EXPECT_EQ(In(1), Phase::kRunning);
  EXPECT_GE(next_ns_, 5 * kSliceNs + kMs) << "it says when it is back";
  EXPECT_TRUE(policy_.State(2).active) << "it is entitled to its part still";
  GoesAway(2, LeasePolicy::kNever, 0);
  Decide(5 * kSliceNs + kMs);
  EXPECT_EQ(In(1), Phase::kDraining);
}

// Its other ranks may run, and it has its devices together.
TEST_F(AwayShareTest, AGangKeepsItsTurn) {
  TwoBusy();
  policy_.SetGang(1, LeasePolicy::GangSlice::kOn, 0, 0);
  GoesAway(1, 2 * kMs);
  Decide(5 * kMs);
  EXPECT_EQ(In(1), Phase::kRunning);
  policy_.SetGang(1, LeasePolicy::GangSlice::kAway, 5 * kMs, 0);
  Decide(5 * kMs);
  ASSERT_EQ(In(1), Phase::kDraining);
  EXPECT_GE(next_ns_, 5 * kMs + kMs / 10) << "it is not decided on without end";
}

}  // namespace
}  // namespace prorata::policy
