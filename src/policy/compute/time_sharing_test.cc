// The states of TimeSharing, transition by transition, and its accounts. What programs get of it is
// tested in the one-process simulation (tests/simulation).

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

// --- Every state, every event -------------------------------------------------------------------

TEST_F(TimeSharingTest, TransitionsPairByPair) {
  enum Event { kWanted, kWentIdle, kDrained, kOthersWait, kDeadline };
  const struct {
    Phase from;
    Event event;
    Phase to;
  } table[] = {
      {Phase::kIdle, kWanted, Phase::kRunning},  // nobody else: granted in the same decision
      {Phase::kIdle, kWentIdle, Phase::kIdle},
      {Phase::kIdle, kDrained, Phase::kIdle},
      {Phase::kRunnable, kWanted, Phase::kRunnable},
      {Phase::kRunnable, kWentIdle, Phase::kRunnable},
      {Phase::kRunnable, kDrained, Phase::kRunnable},
      {Phase::kRunning, kWanted, Phase::kRunning},
      {Phase::kRunning, kWentIdle, Phase::kRunning},  // a hint, while nobody waits
      {Phase::kRunning, kDrained, Phase::kRunning},
      {Phase::kRunning, kOthersWait, Phase::kDraining},
      {Phase::kDraining, kWanted, Phase::kDraining},
      {Phase::kDraining, kWentIdle, Phase::kDraining},
      {Phase::kDraining, kDrained, Phase::kIdle},
      {Phase::kDraining, kDeadline, Phase::kStalled},
      {Phase::kStalled, kWentIdle, Phase::kStalled},
      {Phase::kStalled, kDrained, Phase::kIdle},
      {Phase::kStalled, kDeadline, Phase::kStalled},
  };
  for (const auto& row : table) {
    TimeSharing policy;
    policy.Add(1, Terms(0.2), {}, 0);
    policy.Add(2, Terms(0.2), {}, 0);
    int64_t now_ns = 0;
    const auto others_wait = [&] {
      policy.Wanted(2, now_ns);
      policy.Decide(now_ns);
      now_ns += 3 * kSliceNs;
      policy.Decide(now_ns);
    };
    LeasePolicy::Work work;
    work.backlog_ns = 100 * kMs;
    if (row.from == Phase::kRunnable) {
      policy.Wanted(2, 0);
      policy.Decide(0);
      work.end_ns = LeasePolicy::kNever;
      policy.Observe(2, work);
      policy.Wanted(1, 0);
      policy.Decide(0);
    } else if (row.from != Phase::kIdle) {
      policy.Wanted(1, 0);
      policy.Decide(0);
      policy.Observe(1, work);
      if (row.from != Phase::kRunning) others_wait();
      if (row.from == Phase::kStalled) policy.Decide(now_ns += 3 * kSliceNs);
    }
    ASSERT_EQ(policy.State(1).phase, row.from);
    switch (row.event) {
      case kWanted:
        policy.Wanted(1, now_ns);
        break;
      case kWentIdle:
        policy.Idle(1, now_ns);
        break;
      case kDrained:
        policy.Drained(1, now_ns, now_ns);
        break;
      case kOthersWait:
        others_wait();
        break;
      case kDeadline:
        now_ns += 3 * kSliceNs;
        break;
    }
    policy.Decide(now_ns);
    EXPECT_EQ(policy.State(1).phase, row.to)
        << "from " << static_cast<int>(row.from) << " by event " << static_cast<int>(row.event);
    EXPECT_EQ(policy.CheckInvariants(), nullptr);
  }
}

TEST_F(TimeSharingTest, WhoWantsAgainWhileItDrainsIsRunnableWhenItHasDrained) {
  TwoBusy();
  Decide(kSliceNs);
  ASSERT_EQ(In(1), Phase::kDraining);
  Wants(1, kSliceNs);
  EXPECT_EQ(In(1), Phase::kDraining);
  Drains(1, kSliceNs + kMs);
  EXPECT_EQ(In(1), Phase::kRunnable);
  EXPECT_EQ(In(2), Phase::kRunning);
}

// --- Free devices -------------------------------------------------------------------------------

TEST_F(TimeSharingTest, WithoutTermsAllHoldTheirLeases) {
  for (const LeasePolicy::Key key : {1, 2, 3}) Add(key, Terms(0));
  Decide(0);
  for (const LeasePolicy::Key key : {1, 2, 3}) {
    EXPECT_EQ(In(key), Phase::kRunning);
    EXPECT_FALSE(leases_[key].contended);
  }
}

TEST_F(TimeSharingTest, ARequestThatWakesEndsThat) {
  Add(1, Terms(0));
  Add(2, Terms(0));
  Add(3, Terms(0.3));
  Decide(0);
  EXPECT_EQ(In(3), Phase::kIdle) << "it has asked for nothing";
  for (const LeasePolicy::Key key : {1, 2}) Backlog(key, kMs, 10 * kMs);
  Wants(3, 10 * kMs);
  EXPECT_EQ(In(1), Phase::kDraining);
  EXPECT_EQ(In(2), Phase::kDraining);
  Drains(1, 10 * kMs);
  Drains(2, 10 * kMs);
  EXPECT_EQ(In(3), Phase::kRunning);
  EXPECT_TRUE(leases_[3].contended);
}

// It may come at any moment, and would wait for what all of them have submitted.
TEST_F(TimeSharingTest, BelowAnIdleShareADeviceIsNotFree) {
  Add(1, Terms(0));
  Add(2, Terms(0));
  Add(3, Terms(0, 1, 1));
  Decide(0);
  Wants(1, kS);
  Backlog(1, kMs, kS + kMs);
  Wants(2, kS);
  EXPECT_EQ(In(1), Phase::kRunning);
  EXPECT_NE(In(2), Phase::kRunning);
}

TEST_F(TimeSharingTest, OtherTermsScheduleADevice) {
  ComputeTerms heavy = Terms(0);
  heavy.weight = 200;
  for (const ComputeTerms& other : {Terms(0.1), Terms(0, 0.5), Terms(0, 1, 5), heavy}) {
    TimeSharing policy;
    policy.Add(1, Terms(0), {}, 0);
    policy.Add(2, other, {}, 0);
    policy.Wanted(1, 0);
    policy.Wanted(2, 0);
    policy.Decide(0);
    const bool both =
        policy.State(1).phase == Phase::kRunning && policy.State(2).phase == Phase::kRunning;
    EXPECT_FALSE(both);
  }
}

// --- Charges ------------------------------------------------------------------------------------

TEST_F(TimeSharingTest, WhileSomebodyWaitsTheTimeFromGrantToDrainIsCharged) {
  TwoBusy();
  Backlog(1, kMs, kSliceNs + kMs);
  Decide(kSliceNs);
  ASSERT_EQ(In(1), Phase::kDraining);
  Decide(kSliceNs + kMs / 2);
  Drains(1, kSliceNs + kMs);
  EXPECT_NEAR(ChargedMs(1), 14, 0.2) << "whatever its members say of their kernels";
  EXPECT_NEAR(LagMs(1) + LagMs(2), 0, 0.01);
}

TEST_F(TimeSharingTest, AnEarlyDrainThatIsSaidLateIsNotCharged) {
  TwoBusy();
  Decide(kSliceNs);
  Decide(kSliceNs + 2 * kMs - 1);
  const double before = ChargedMs(1);
  policy_.Drained(1, kSliceNs + kMs, kSliceNs + 2 * kMs);
  EXPECT_LT(ChargedMs(1), before);
}

TEST_F(TimeSharingTest, WhileNobodyWaitsItIsWhatWasNotProvenIdle) {
  Add(1, Terms(0.5));
  Wants(1, 0);
  LeasePolicy::Work work;
  work.occupied_total_ns = 3 * kMs;
  policy_.Observe(1, work);
  Decide(10 * kMs);
  EXPECT_NEAR(ChargedMs(1), 3, 1e-6);
  EXPECT_EQ(LagMs(1), 0) << "it was entitled to all of it";
}

TEST_F(TimeSharingTest, AFalseHintOfIdlenessIsChargedWhenItIsKnown) {
  TwoBusy();
  policy_.Idle(1, kMs);
  Decide(kMs);
  ASSERT_EQ(In(1), Phase::kDraining);
  EXPECT_EQ(In(2), Phase::kRunning) << "it is believed at first";
  policy_.Drained(1, 5 * kMs, 5 * kMs);
  EXPECT_NEAR(ChargedMs(1), 5, 0.01);
}

TEST_F(TimeSharingTest, OneThatStallsGoesOnPayingBesideAnother) {
  const int64_t now_ns = FirstStalls();
  EXPECT_LE(now_ns, 3 * kSliceNs + 2 * kMs) << "two slices at most";
  const double first = ChargedMs(1), second = ChargedMs(2);
  Decide(now_ns + 100 * kMs);
  EXPECT_NEAR(ChargedMs(1) - first, 50, 0.1);
  EXPECT_NEAR(ChargedMs(2) - second, 50, 0.1);
}

// Its kernels are short, and it waits for each of them: the long one beside them has the rest.
TEST_F(TimeSharingTest, BesideOneThatStallsAShareWithShortKernelsPaysWhatItMeasured) {
  const int64_t now_ns = FirstStalls();
  for (const LeasePolicy::Key key : {1, 2}) EXPECT_TRUE(policy_.State(key).in_slices) << key;
  const double first = ChargedMs(1), second = ChargedMs(2);
  const double lag = LagMs(2);
  Measures(2, 3 * kMs);
  Decide(now_ns + 50 * kMs);
  Measures(2, 10 * kMs);
  Decide(now_ns + 100 * kMs);
  EXPECT_NEAR(ChargedMs(2), 10, 0.1) << "with what it paid before the other stalled";
  EXPECT_NEAR(ChargedMs(1) - first, 90 + second, 0.1);
  EXPECT_NEAR(LagMs(2) - lag, 50 - 10 + second, 0.1);
  // What it measured late it pays late, but never more than its part: there is time of the other's
  // in what it measured.
  Measures(2, 200 * kMs);
  Decide(now_ns + 200 * kMs);
  EXPECT_NEAR(ChargedMs(2) - second, 100, 0.1);
  EXPECT_NEAR(ChargedMs(1) - first, 100, 0.1);
}

// It is looked at again when it is done: until then it had the device.
TEST_F(TimeSharingTest, WhatStalledPaysUntilItIsSeenToBeDone) {
  const int64_t now_ns = FirstStalls();
  const double before = ChargedMs(1);
  Backlog(1, 0, now_ns + 40 * kMs);
  policy_.Drained(1, now_ns + 40 * kMs, now_ns + 40 * kMs);
  EXPECT_NEAR(ChargedMs(1) - before, 20, 0.1);
}

TEST_F(TimeSharingTest, WhatStalledPaysNothingAfterItsMembersSayThatItWasDone) {
  const int64_t now_ns = FirstStalls();
  const double before = ChargedMs(1);
  Backlog(1, 0, now_ns + 30 * kMs);
  policy_.Drained(1, now_ns + 30 * kMs, now_ns + 40 * kMs);
  EXPECT_NEAR(ChargedMs(1) - before, 15, 0.1);
}

TEST_F(TimeSharingTest, WhatIsBlockedIsNotCharged) {
  TwoBusy();
  Backlog(1, kMs, kMs, /*blocked=*/true);
  Decide(kMs);
  ASSERT_EQ(In(2), Phase::kRunning) << "the device is not kept for it";
  Decide(kMs);
  EXPECT_EQ(In(1), Phase::kStalled);
  const double before = ChargedMs(1);
  Decide(100 * kMs);
  EXPECT_EQ(ChargedMs(1), before);
}

// Behind a host function, say: it submits nothing more, and would run beside others to its end.
TEST_F(TimeSharingTest, WhatIsReleasedOutsideItsLeaseHasTheDeviceNext) {
  TwoBusy(0.5, 0);
  Backlog(1, 100 * kMs, LeasePolicy::kNever, /*blocked=*/true);
  Decide(kMs);
  Decide(kMs);
  EXPECT_EQ(In(1), Phase::kStalled);
  EXPECT_EQ(In(2), Phase::kRunning);
  Decide(20 * kMs);
  EXPECT_EQ(In(2), Phase::kRunning);
  Backlog(1, 100 * kMs, 120 * kMs);
  Decide(20 * kMs);
  EXPECT_EQ(In(2), Phase::kDraining);
  Drains(2, 21 * kMs);
  EXPECT_EQ(In(1), Phase::kRunning);
}

TEST_F(TimeSharingTest, OneThatStallsAndNeedsALeaseToEndGetsOne) {
  Add(1, Terms(0, 0.1));
  Wants(1, 0);
  const auto go_on = [&](int64_t now_ns) {
    Measures(1, now_ns);
    Decide(now_ns);
  };
  int64_t now_ns = 0;
  for (; In(1) != Phase::kStalled && now_ns < kS; now_ns += kMs) go_on(now_ns);
  ASSERT_EQ(In(1), Phase::kStalled);
  Wants(1, now_ns);
  for (; In(1) != Phase::kRunning && now_ns < 12 * kS; now_ns += 100 * kMs) go_on(now_ns);
  EXPECT_EQ(In(1), Phase::kRunning) << "what it waits for may be its own next launch";
  // Its thread has to wake first: the lease stays for a slice, though nothing is left of the limit.
  const int64_t granted_ns = now_ns - 100 * kMs;
  for (now_ns = granted_ns; In(1) == Phase::kRunning && now_ns < 13 * kS;) {
    Decide(now_ns = std::max(now_ns, next_ns_));
  }
  EXPECT_GE(now_ns - granted_ns, kSliceNs);
  EXPECT_LE(now_ns - granted_ns, kSliceNs + kMs);
}

// --- Who is next --------------------------------------------------------------------------------

TEST_F(TimeSharingTest, ASliceThatIsOverGoesOnWhileNobodyHasALargerLag) {
  TwoBusy(0.9, 0.1);
  Decide(kSliceNs / 2);
  EXPECT_EQ(In(1), Phase::kRunning);
  int64_t now_ns = 0;
  while (In(1) == Phase::kRunning && now_ns < kS) Decide(now_ns += kMs);
  EXPECT_GE(now_ns, kSliceNs);
  const double lag_first = LagMs(1), lag_second = LagMs(2);
  EXPECT_GT(lag_second, lag_first);
}

TEST_F(TimeSharingTest, AShareWithARequestThatWakesWithoutDebtIsNextAtOnce) {
  Add(1, Terms(0));
  Add(2, Terms(0.3));
  Wants(1, 0);
  Backlog(1, kMs, kMs);
  Decide(kMs);
  Wants(2, kMs);
  EXPECT_EQ(In(1), Phase::kDraining);
}

TEST_F(TimeSharingTest, AGangThatIsAwayIsNotWaitedForInCircles) {
  TwoBusy();
  policy_.SetGang(2, LeasePolicy::GangSlice::kAway, 0, 0);
  Backlog(1, kMs, LeasePolicy::kNever);
  Decide(2 * kSliceNs);
  ASSERT_EQ(In(1), Phase::kRunning) << "its devices have not agreed on it yet";
  ASSERT_GT(LagMs(2), LagMs(1));
  EXPECT_GT(next_ns_, 2 * kSliceNs + kMs);
}

TEST_F(TimeSharingTest, AnotherHasItsTurnWhileAGangIsAway) {
  TwoBusy();
  Add(3, Terms(0));
  policy_.SetGang(2, LeasePolicy::GangSlice::kAway, 0, 0);
  Wants(3, kMs);
  Backlog(1, kMs, LeasePolicy::kNever);
  for (int64_t now_ns = kMs; In(3) != Phase::kRunning; now_ns = next_ns_) {
    ASSERT_LT(now_ns, kS) << "nobody looks again";
    Decide(now_ns);
    if (In(1) == Phase::kDraining) Drains(1, now_ns);
  }
}

TEST_F(TimeSharingTest, WhatIsSaidLateOfTheTimeBeforeADrainIsNotPaidBack) {
  Add(1, Terms(0.5));
  Add(2, Terms(0.5));
  Wants(1, 0);
  Backlog(1, kMs, LeasePolicy::kNever);
  Decide(kMs);
  policy_.SetGang(1, LeasePolicy::GangSlice::kAway, 50 * kMs, 0);
  LeasePolicy::Work work;
  work.occupied_total_ns = 40 * kMs;
  policy_.Observe(1, work);
  policy_.Drained(1, 50 * kMs, 51 * kMs);
  EXPECT_NEAR(ChargedMs(1), 40, 1);
}

// In the simulation such a share of 0.9 was charged 0.9 and ran 0.36: what others might have used
// below the ceiling of 0.9 was paid for by nobody's kernels.
TEST_F(TimeSharingTest, AGapBesideWorkBehindAWaitIsNotChargedToALimit) {
  Add(1, Terms(0, 0.9));
  Wants(1, 0);
  Backlog(1, kMs, LeasePolicy::kNever, /*blocked=*/true);
  Decide(kMs);
  EXPECT_NE(In(1), Phase::kRunning);
  Decide(2 * kMs);
  const double charged_ms = ChargedMs(1);
  Decide(8 * kMs);
  EXPECT_NEAR(ChargedMs(1), charged_ms, 0.01);
  Wants(1, 8 * kMs);
  EXPECT_EQ(In(1), Phase::kRunning) << "it launches beside what is blocked";
}

TEST_F(TimeSharingTest, TheNextIsDispatchedShortlyBeforeTheLastHasDrained) {
  TwoBusy();
  Backlog(1, kMs, kSliceNs + kMs);
  Decide(kSliceNs);
  ASSERT_EQ(In(1), Phase::kDraining);
  EXPECT_EQ(In(2), Phase::kRunnable);
  EXPECT_GT(next_ns_, kSliceNs + 800'000);
  EXPECT_LE(next_ns_, kSliceNs + kMs);
  Decide(next_ns_);
  EXPECT_EQ(In(2), Phase::kRunning);
}

// --- Debts, limits ------------------------------------------------------------------------------

TEST_F(TimeSharingTest, ADebtIsKeptWhileActiveAndForgivenWhileIdle) {
  TwoBusy(0.1, 0.9);
  Backlog(1, kS, kS);
  Decide(kSliceNs);
  Wants(1, kSliceNs);
  Decide(3 * kSliceNs);
  ASSERT_EQ(In(1), Phase::kStalled);
  Decide(kS);
  Drains(1, kS);
  const double owed = LagMs(1);
  EXPECT_LT(owed, -350);
  Wants(1, kS);
  Decide(kS + 10 * kMs);
  EXPECT_LE(LagMs(1), owed + 6) << "it pays only by what the other has";
}

// Of a program that is at work for this part of the time in which it holds its lease, and says so
// every 5 ms. Answers how long it was.
class LimitTest : public TimeSharingTest {
 protected:
  double UsedInTenSeconds(double part) {
    Add(1, Terms(0, 0.25));
    Wants(1, 0);
    double used_ns = 0;
    int64_t granted_ns = 0;
    for (int64_t now_ns = 0; now_ns < 10 * kS; now_ns += 100'000) {
      const bool ran = In(1) == Phase::kRunning;
      used_ns += ran ? part * 100'000 : 0;
      if (now_ns % (5 * kMs) == 0) Measures(1, static_cast<int64_t>(used_ns));
      Decide(now_ns);
      if (In(1) == Phase::kDraining) {
        EXPECT_LE(static_cast<double>(now_ns - granted_ns), 2 * kSliceNs / 0.75 + 100'000)
            << "whatever it says";
        Measures(1, static_cast<int64_t>(used_ns));
        Drains(1, now_ns);
        policy_.Wanted(1, now_ns);
      }
      if (!ran && In(1) == Phase::kRunning) granted_ns = now_ns;
    }
    return used_ns / 1e9;
  }
};

TEST_F(LimitTest, IsATokenBucketOverTheTimeInWhichItIsNotIdle) {
  EXPECT_NEAR(UsedInTenSeconds(1), 2.5, 0.05);
}

TEST_F(LimitTest, GapsOfWhichItsMembersSayThatItWasIdleAreNotPaidFor) {
  EXPECT_NEAR(UsedInTenSeconds(0.9), 2.5, 0.05);
}

TEST_F(TimeSharingTest, WhatWasUsedBeyondALimitIsOwedAfterAnOutage) {
  Add(1, Terms(0, 0.25));
  Add(2, Terms(0, 0.25));
  Add(3, Terms(0, 0.25));
  policy_.ResumeLimit(1, -50.0 * kMs);
  policy_.ResumeLimit(2, 1e12);
  EXPECT_GT(policy_.State(1).limited_ns, 200 * kMs);
  EXPECT_EQ(policy_.State(2).limited_ns, 0);
  EXPECT_EQ(policy_.State(2).limit_tokens_ns, policy_.State(3).limit_tokens_ns);
}

// It may run for as long as its bucket lasts from the grant, used or not.
TEST_F(TimeSharingTest, OneWithALimitIsNotGrantedALeaseBeforeItAsks) {
  Add(1, Terms(0, 0.25));
  Decide(0);
  EXPECT_EQ(In(1), Phase::kIdle);
  Wants(1, kS);
  EXPECT_EQ(In(1), Phase::kRunning);
}

TEST_F(TimeSharingTest, OneWithoutALimitThatIsAloneNeedNotAsk) {
  Add(1, Terms(0.5));
  Decide(0);
  EXPECT_EQ(In(1), Phase::kRunning);
  EXPECT_FALSE(leases_[1].contended);
}

// The agent woke three hundred times a second while one ran and another waited.
TEST_F(TimeSharingTest, NobodyIsLookedAtBeforeASliceIsOver) {
  TwoBusy();
  Decide(kSliceNs);
  Drains(1, kSliceNs);
  policy_.Wanted(1, kSliceNs);
  Backlog(2, kMs, kSliceNs + kMs);
  Decide(kSliceNs + kMs);
  ASSERT_EQ(In(1), Phase::kRunnable);
  ASSERT_EQ(In(2), Phase::kRunning);
  EXPECT_GE(next_ns_, 2 * kSliceNs - kMs);
}

TEST_F(TimeSharingTest, AfterEveryEventThereIsADeadlineWhileAnythingIsUnderWay) {
  TwoBusy();
  EXPECT_LE(next_ns_, kSliceNs + kMs);
  Decide(kSliceNs);
  EXPECT_LE(next_ns_, 4 * kSliceNs);
  Decide(4 * kSliceNs);
  Wants(1, 4 * kSliceNs);
  EXPECT_LT(next_ns_, 60 * kS);
}

}  // namespace
}  // namespace prorata::policy
