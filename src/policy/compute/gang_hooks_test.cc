// What one device does for a gang that runs on others too.

#include <gtest/gtest.h>

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

using Slice = LeasePolicy::GangSlice;

// Share 1 runs, and 2, a gang, waits.
class GangHooksTest : public TimeSharingTest {
 protected:
  GangHooksTest() {
    TwoBusy();
    Set(2, Slice::kAway, 0);
  }
  void Set(LeasePolicy::Key key, Slice slice, int64_t now_ns, uint32_t launches = 0) {
    policy_.SetGang(key, slice, now_ns, launches);
    Decide(now_ns);
  }
  // It has its turn, and the device.
  void LetIn() {
    Set(2, Slice::kGather, kMs);
    Drains(1, 2 * kMs);
    ASSERT_EQ(In(2), Phase::kRunning);
  }
  // And was revoked at 20 ms, with work left.
  void Revoke() {
    LetIn();
    Set(2, Slice::kOn, 10 * kMs);
    Backlog(2, kMs, LeasePolicy::kNever);
    Set(2, Slice::kAway, 20 * kMs);
    ASSERT_EQ(In(2), Phase::kDraining);
  }
};

TEST_F(GangHooksTest, WhoGathersHasTheDeviceAndPaysAndMayNotLaunch) {
  LetIn();
  EXPECT_FALSE(leases_[2].open);
  EXPECT_TRUE(policy_.State(2).closed);
  Wants(1, 2 * kMs);
  const double before_ms = ChargedMs(2);
  Decide(10 * kMs);
  EXPECT_NEAR(ChargedMs(2) - before_ms, 8, 0.1);
  Decide(40 * kMs);
  EXPECT_EQ(In(2), Phase::kRunning) << "its slice has not begun";
  Set(2, Slice::kOn, 40 * kMs);
  EXPECT_TRUE(leases_[2].open);
  Backlog(2, kMs, LeasePolicy::kNever);
  Decide(41 * kMs);
  EXPECT_EQ(In(2), Phase::kRunning);
  Decide(54 * kMs);
  EXPECT_EQ(In(2), Phase::kDraining);
}

// Others of its devices catch up, and it lacks nothing here.
TEST_F(GangHooksTest, WhoMayLaunchNothingToCatchUpIsNotLetIn) {
  Wants(2, 20 * kMs);
  Set(2, Slice::kCatchUp, 20 * kMs, 0);
  Drains(1, 21 * kMs);
  for (int64_t now_ns = 21 * kMs; now_ns < 40 * kMs; now_ns += kMs) Decide(now_ns);
  EXPECT_NE(In(2), Phase::kRunning);
  Set(2, Slice::kCatchUp, 40 * kMs, 3);
  for (const uint32_t launches : {3U, 5U}) {
    Set(2, Slice::kCatchUp, 40 * kMs, launches);
    Drains(1, 41 * kMs);
    Decide(42 * kMs);
    EXPECT_EQ(In(2), Phase::kRunning);
    EXPECT_EQ(leases_[2].launches, launches);
  }
}

TEST_F(GangHooksTest, WhoGatheredInVainHasNothingToDrain) {
  LetIn();
  Set(2, Slice::kAway, 10 * kMs);
  EXPECT_TRUE(policy_.SeeGang(2, 10 * kMs).drained);
  policy_.EndGangDrain(2, 10 * kMs);
  Decide(10 * kMs);
  EXPECT_NE(In(2), Phase::kDraining);
}

TEST_F(GangHooksTest, WhoHasDrainedHereKeepsTheDeviceUntilItHasEverywhere) {
  Revoke();
  Wants(1, 21 * kMs);
  policy_.Drained(2, 21 * kMs, 21 * kMs);
  for (int64_t now_ns = 21 * kMs; now_ns < 100 * kMs; now_ns += kMs) Decide(now_ns);
  EXPECT_EQ(In(2), Phase::kDraining);
  EXPECT_EQ(In(1), Phase::kRunnable);
  policy_.EndGangDrain(2, 100 * kMs);
  Decide(100 * kMs);
  EXPECT_EQ(In(1), Phase::kRunning);
}

// Else a share that asks for gangs keeps one device from others for nothing, with what it does on
// another.
TEST_F(GangHooksTest, WhoKeepsTheDeviceFromOthersPaysForIt) {
  Revoke();
  policy_.Drained(2, 21 * kMs, 21 * kMs);
  Decide(21 * kMs);
  const double drained_ms = ChargedMs(2);
  Decide(31 * kMs);
  EXPECT_NEAR(ChargedMs(2) - drained_ms, 0, 0.1) << "nobody wants it";
  Wants(1, 31 * kMs);
  Decide(41 * kMs);
  EXPECT_NEAR(ChargedMs(2) - drained_ms, 10, 0.1);
}

// Its members are found to have drained at each look, for as long as it keeps the device.
TEST_F(GangHooksTest, WhatItPaidForItsDrainIsGivenBackOnce) {
  Revoke();
  Wants(1, 20 * kMs);
  const double revoked_ms = ChargedMs(2);
  for (int64_t now_ns = 21 * kMs; now_ns <= 30 * kMs; now_ns += kMs) {
    policy_.Drained(2, 20 * kMs, now_ns);
    ASSERT_EQ(In(2), Phase::kDraining);
    Decide(now_ns);
  }
  EXPECT_NEAR(ChargedMs(2) - revoked_ms, 9, 0.1) << "of ten, one was its drain";
}

// Another device of the gang is decided on, and this one is only looked at.
TEST_F(GangHooksTest, ADeviceIdlesWhereWhatIsSeenLetsOneRun) {
  policy_.Remove(1, kMs);
  Add(3, Terms(0), kMs);
  GoesAway(3, kMs);
  Wants(3, 2 * kMs);
  EXPECT_NE(In(3), Phase::kRunning);
  EXPECT_FALSE(policy_.Idles());
  Backlog(3, 0, LeasePolicy::kNever);
  EXPECT_TRUE(policy_.Idles());
  Decide(3 * kMs);
  EXPECT_EQ(In(3), Phase::kRunning);
  EXPECT_FALSE(policy_.Idles());
}

// It would have it back as soon as the gang is let in.
TEST_F(GangHooksTest, WhoHadTheDeviceForLongOwesUntilTheOtherHasHadAsMuch) {
  EXPECT_FALSE(policy_.SeeGang(2, kMs).owes);
  Revoke();
  Wants(1, 21 * kMs);
  policy_.Wanted(2, 21 * kMs);
  Drains(2, 80 * kMs);
  policy_.EndGangDrain(2, 80 * kMs);
  Decide(80 * kMs);
  ASSERT_EQ(In(1), Phase::kRunning);
  Backlog(1, kMs, 81 * kMs);
  EXPECT_TRUE(policy_.SeeGang(2, 90 * kMs).owes);
  EXPECT_TRUE(policy_.SeeGang(2, 90 * kMs).may);
  Decide(150 * kMs);
  EXPECT_FALSE(policy_.SeeGang(2, 150 * kMs).owes);
}

TEST_F(GangHooksTest, WhoIsBehindHasALeaseForAFewLaunches) {
  Revoke();
  policy_.Drained(2, 21 * kMs, 21 * kMs);
  policy_.Wanted(2, 21 * kMs);
  Set(2, Slice::kCatchUp, 22 * kMs, 4);
  EXPECT_EQ(In(2), Phase::kRunning);
  EXPECT_EQ(leases_[2].launches, 4U);
  EXPECT_TRUE(policy_.State(2).closed);
  Set(2, Slice::kAway, 23 * kMs);
  EXPECT_EQ(In(2), Phase::kDraining);
  EXPECT_FALSE(leases_[2].open);
  EXPECT_FALSE(policy_.SeeGang(2, 23 * kMs).drained) << "until its members have said so";
}

TEST_F(GangHooksTest, WhoIsAheadHasAsLongAgainToDrain) {
  Revoke();
  const int64_t deadline_ns = next_ns_;
  Set(2, Slice::kCatchUp, deadline_ns - kMs / 2);
  Decide(deadline_ns);
  EXPECT_EQ(In(2), Phase::kDraining);
  Set(2, Slice::kAway, deadline_ns);
  Decide(deadline_ns + 30 * kMs);
  EXPECT_EQ(In(2), Phase::kStalled);
}

// What its own kernels elsewhere wait for is launched, whatever it owes.
TEST_F(GangHooksTest, ALimitDoesNotKeepItFromCatchingUp) {
  Revoke();
  policy_.SetTerms(2, Terms(0, 0.1), 20 * kMs);
  Measures(2, 2 * kS);
  Drains(2, 2 * kS);  // paid for all of it
  policy_.EndGangDrain(2, 2 * kS);
  Wants(1, 2 * kS);
  Wants(2, 2 * kS);
  ASSERT_EQ(In(1), Phase::kRunning);
  Backlog(1, kMs, 2 * kS + kMs);
  ASSERT_GT(policy_.SeeGang(2, 2 * kS).limited_ns, 0);
  Set(2, Slice::kCatchUp, 2 * kS, 1);
  Drains(1, 2 * kS + kMs);
  EXPECT_EQ(In(2), Phase::kRunning);
  EXPECT_EQ(leases_[2].launches, 1U);
}

TEST_F(GangHooksTest, ADeviceIsFreeWhenWhatRunsThereWillHaveEnded) {
  Backlog(1, 3 * kMs, 4 * kMs);
  EXPECT_EQ(policy_.SeeGang(2, kMs).free_in_ns, 2 * kMs) << "the bound of its backlog, and a grace";
  Backlog(1, kMs / 2, kMs + kMs / 2);
  EXPECT_EQ(policy_.SeeGang(2, kMs).free_in_ns, kMs / 2);
  Drains(1, 2 * kMs);
  EXPECT_EQ(policy_.SeeGang(2, 2 * kMs).free_in_ns, 0);
}

// Nothing of it runs on its other devices either.
TEST_F(GangHooksTest, WhoseWorkIsBlockedStallsOnceNothingOfItRunsAnywhere) {
  LetIn();
  Set(2, Slice::kOn, 10 * kMs);
  Backlog(2, 1, LeasePolicy::kNever, /*blocked=*/true);
  Set(2, Slice::kAway, 20 * kMs);
  Wants(1, 20 * kMs);
  EXPECT_EQ(In(2), Phase::kDraining);
  policy_.EndGangDrain(2, 21 * kMs);
  Decide(21 * kMs);
  EXPECT_EQ(In(2), Phase::kStalled);
  EXPECT_EQ(In(1), Phase::kRunning);
}

// A third waits, too: a gang that is before it is in nobody's way but another gang's.
TEST_F(GangHooksTest, WhoIsBehindGangsOnlyIsAhead) {
  Add(3, Terms(0));
  Set(3, Slice::kAway, 0);
  Decide(kMs);
  Backlog(1, 0, LeasePolicy::kNever);
  policy_.Idle(1, 2 * kMs);
  Wants(3, 2 * kMs);
  const auto second = policy_.SeeGang(2, 3 * kMs), third = policy_.SeeGang(3, 3 * kMs);
  EXPECT_TRUE(second.ready && second.ahead);
  EXPECT_FALSE(third.ready);
  EXPECT_TRUE(third.ahead);
  Add(4, Terms(0.5, 1, /*priority=*/1), 3 * kMs);
  policy_.Wanted(4, 3 * kMs);
  EXPECT_FALSE(policy_.SeeGang(3, 3 * kMs).ahead) << "one that is no gang is before it";
}

// Its devices may not agree for as long as it pauses.
TEST_F(GangHooksTest, WhoIsAboveAndDoesNothingIsNotInTheWay) {
  policy_.SetTerms(1, Terms(0.5, 1, 1), 2 * kMs);
  EXPECT_FALSE(policy_.SeeGang(2, 2 * kMs).may);
  Backlog(1, 0, LeasePolicy::kNever);
  policy_.Idle(1, 5 * kMs);
  EXPECT_TRUE(policy_.SeeGang(2, 5 * kMs).may);
}

}  // namespace
}  // namespace prorata::policy
