// Charges against what the device itself says.

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

using TimeAuditTest = TimeSharingTest;

TEST_F(TimeAuditTest, TheAuditChargesWhatIsMissing) {
  Add(1, Terms(0.5, 0.5));
  Add(2, Terms(0));
  Wants(1, 0);
  policy_.Audit({{1, 0.0}}, 0);
  // Nothing of it is tracked: it seems idle.
  policy_.Idle(1, kMs);
  Decide(kMs);
  Drains(1, kMs);
  const double before = ChargedMs(1);
  policy_.Audit({{1, 1e9}}, kS);
  EXPECT_NEAR(ChargedMs(1) - before, 200, 5) << "what nobody was charged for, of late";
  Wants(1, kS);
  EXPECT_EQ(In(1), Phase::kRunnable) << "its limit is used up";
  Decide(kS + 900 * kMs);
  EXPECT_EQ(In(1), Phase::kRunnable);
  Decide(4 * kS);
  EXPECT_EQ(In(1), Phase::kRunning);
}

TEST_F(TimeAuditTest, AnAuditThatShowsNoMoreThanWasChargedChangesNothing) {
  TwoBusy();
  Decide(10 * kMs);
  const double first = ChargedMs(1), lag = LagMs(2);
  policy_.Audit({{1, 5e6}, {2, 0}}, 10 * kMs);
  EXPECT_EQ(ChargedMs(1), first);
  EXPECT_EQ(LagMs(2), lag);
  // Whole percentages of a second: a figure may be wrong by as much.
  policy_.Audit({{1, 12e6}, {2, 0}}, 10 * kMs);
  EXPECT_EQ(ChargedMs(1), first);
}

// The time in which both had the device was divided equally, and one had all of it.
TEST_F(TimeAuditTest, WhatIsMissingToOneIsTakenBackFromTheOther) {
  Add(1, Terms(0.5));
  Add(2, Terms(0.5));
  Wants(1, 0);
  Backlog(1, kS, kS);
  Wants(2, 0);
  for (int64_t now_ns = 0; now_ns <= kS; now_ns += kMs) {
    Decide(now_ns);
    Backlog(1, kS, kS + now_ns);
    if (In(2) == Phase::kRunning) Backlog(2, kMs, now_ns + kMs);
    if (In(2) == Phase::kDraining) Drains(2, now_ns), policy_.Wanted(2, now_ns);
  }
  const double first = ChargedMs(1), second = ChargedMs(2);
  EXPECT_NEAR(first + second, 1000, 5);
  policy_.Audit({{1, (first + 150) * 1e6}, {2, (second - 150) * 1e6}}, kS);
  EXPECT_NEAR(ChargedMs(1), first + 150, 5);
  EXPECT_NEAR(ChargedMs(2), second - 150, 5);
}

// Whoever runs for 4 ms of each second has a figure of 0, and would pay for others each second.
TEST_F(TimeAuditTest, WhatARoundedFigureHidesIsNotTakenBack) {
  Add(1, Terms(0.5));
  Add(2, Terms(0.5));
  for (int64_t second = 0; second < 20; ++second) {
    const int64_t from_ns = second * kS;
    Wants(2, from_ns);
    Wants(1, from_ns);
    Backlog(2, 4 * kMs, from_ns + 4 * kMs);
    policy_.Idle(2, from_ns + 4 * kMs);
    Decide(from_ns + 4 * kMs);
    Drains(2, from_ns + 4 * kMs);
    Decide(from_ns + kS - kMs);
    // Of the other one more is missing than was charged to nobody.
    policy_.Audit({{1, 1.02e9}, {2, 0}}, from_ns + kS - kMs);
    policy_.Idle(1, from_ns + kS - kMs);
  }
  EXPECT_GE(ChargedMs(2), 20 * 4);
}

}  // namespace
}  // namespace prorata::policy
