// What is charged of the time before somebody waited, and what a limit keeps for who is owed time.

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

class AccountsTest : public TimeSharingTest {
 protected:
  // 2 has run beside 1, which stalls, and its lease was just revoked. Answers when; `at_first_ms`
  // becomes what it was charged before.
  int64_t SecondDrainsBesideOneThatStalls(double* at_first_ms) {
    int64_t now_ns = FirstStalls();
    *at_first_ms = ChargedMs(2);
    Add(3, Terms(0.3), now_ns);
    Wants(3, now_ns);
    while (In(2) == Phase::kRunning) Decide(now_ns += kMs);
    EXPECT_EQ(In(2), Phase::kDraining);
    return now_ns;
  }
  void Occupied(LeasePolicy::Key key, int64_t occupied_ns) {
    LeasePolicy::Work work;
    work.occupied_total_ns = static_cast<uint64_t>(occupied_ns);
    work.backlog_ns = kMs;
    policy_.Observe(key, work);
  }
};

// Of 0.7 of the device, the rest of a limit of 0.3: a request of 0.6, and half of what is left.
TEST_F(AccountsTest, BelowAHigherPriorityRequestsComeFirst) {
  Add(1, Terms(0.6));
  Add(2, Terms(0, 0.3, 1));
  Add(3, Terms(0));
  for (int64_t now_ns = kMs; now_ns <= 20 * kS; now_ns += kMs) {
    for (const LeasePolicy::Key key : {1, 2, 3}) {
      if (In(key) == Phase::kDraining) Drains(key, now_ns);
      if (In(key) == Phase::kRunning) Backlog(key, kMs, now_ns + kMs);
      policy_.Wanted(key, now_ns);
    }
    Decide(now_ns);
  }
  EXPECT_NEAR(ChargedMs(2), 6000, 100);
  EXPECT_NEAR(ChargedMs(1), 13000, 200);
  EXPECT_NEAR(ChargedMs(3), 1000, 200);
  EXPECT_NEAR(policy_.State(1).entitled, 0.65, 0.02);
  EXPECT_NEAR(policy_.State(3).entitled, 0.05, 0.02);
}

TEST_F(AccountsTest, BelowOneThatIsAlwaysBusyNobodyIsEntitledToMuch) {
  Add(1, Terms(0.6));
  Add(2, Terms(0.2, 1, 1));
  for (int64_t now_ns = kMs; now_ns <= 5 * kS; now_ns += kMs) {
    for (const LeasePolicy::Key key : {1, 2}) {
      if (In(key) == Phase::kDraining) Drains(key, now_ns);
      if (In(key) == Phase::kRunning) Backlog(key, kMs, now_ns + kMs);
      policy_.Wanted(key, now_ns);
    }
    Decide(now_ns);
  }
  EXPECT_LT(policy_.State(1).entitled, 0.02);
  EXPECT_GT(policy_.State(2).entitled, 0.99);
}

// Alone on its device it waits for nobody but itself: what it ran once its wait was over it pays
// for by its members' word.
TEST_F(AccountsTest, WhoStallsAndWaitsForItselfAlonePaysByItsWord) {
  Add(1, Terms(0, 0.9));
  Wants(1, 0);
  Backlog(1, kMs, kMs, /*blocked=*/true);
  int64_t now_ns = 0;
  while (In(1) != Phase::kStalled && now_ns < kS) Decide(now_ns += kMs);
  ASSERT_EQ(In(1), Phase::kStalled);
  const double before_ms = ChargedMs(1);
  Measures(1, kMs / 2);
  Decide(now_ns += 3 * kMs);
  EXPECT_NEAR(ChargedMs(1) - before_ms, 0.5, 0.01);
}

// Its limit is its request: without that it could never make good for the time in which another's
// long kernel had the device.
TEST_F(AccountsTest, ALimitKeepsWhatOthersOwe) {
  Add(1, Terms(0.5, 0.5));
  Add(2, Terms(0.5));
  Wants(2, 0);
  Backlog(2, 40 * kMs, 40 * kMs);
  policy_.Wanted(1, 0);
  Decide(0);
  Decide(kSliceNs);
  ASSERT_EQ(In(2), Phase::kDraining);
  Drains(2, kSliceNs + 26 * kMs);
  policy_.Wanted(2, kSliceNs + 26 * kMs);
  ASSERT_EQ(In(1), Phase::kRunning);
  // It is owed half of 39 ms; at half of the device's time a slice would last for 26 ms.
  Backlog(1, kMs, kS);
  Decide(kSliceNs + 26 * kMs + 30 * kMs);
  EXPECT_EQ(In(1), Phase::kRunning);
  Decide(kSliceNs + 26 * kMs + 42 * kMs);
  EXPECT_NE(In(1), Phase::kRunning);
}

// Beside one that stalls a share pays an equal part at first. What it is given back since it had
// drained earlier is not given back again when its members publish what they measured.
TEST_F(AccountsTest, WhatWasPaidBesideOneThatStallsIsGivenBackOnce) {
  double at_first = 0;
  int64_t now_ns = SecondDrainsBesideOneThatStalls(&at_first);
  const double before = ChargedMs(2);
  const int64_t revoked_ns = now_ns;
  Decide(now_ns += kMs / 2);
  ASSERT_GT(ChargedMs(2), before);
  policy_.Drained(2, revoked_ns, now_ns);
  EXPECT_NEAR(ChargedMs(2), before, 0.001);
  Measures(2, kUs);
  Decide(now_ns += kUs);
  EXPECT_NEAR(ChargedMs(2) - at_first, 0.001, 0.001) << "what it measured in all that time";
}

// The other way round: what its members measured is known before it is seen to have drained.
TEST_F(AccountsTest, WhatWasGivenBackBesideOneThatStallsIsNotGivenBackByTheDrain) {
  double at_first = 0;
  int64_t now_ns = SecondDrainsBesideOneThatStalls(&at_first);
  const int64_t revoked_ns = now_ns;
  Decide(now_ns += kMs / 2);
  Measures(2, kUs);
  Decide(now_ns += kMs / 10);
  ASSERT_EQ(In(2), Phase::kDraining);
  EXPECT_NEAR(ChargedMs(2) - at_first, 0.001, 0.001);
  Decide(now_ns += kMs / 10);
  policy_.Drained(2, revoked_ns, now_ns);
  EXPECT_NEAR(ChargedMs(2) - at_first, 0.001, 0.001) << "what it measured in all that time";
}

// What it measured late it pays again in its drain: that was not charged for the drain.
TEST_F(AccountsTest, WhatIsTakenAgainBesideOneThatStallsIsNotGivenBackByTheDrain) {
  int64_t now_ns = FirstStalls();
  const double before = ChargedMs(2);
  Measures(2, kUs);
  Decide(now_ns += 10 * kMs);
  EXPECT_NEAR(ChargedMs(2), before, 0.001) << "of 5 ms it has measured nothing";
  Add(3, Terms(0.3), now_ns);
  Wants(3, now_ns);
  while (In(2) == Phase::kRunning) Decide(now_ns += kMs);
  ASSERT_EQ(In(2), Phase::kDraining);
  const int64_t revoked_ns = now_ns;
  Measures(2, 100 * kMs);
  Decide(now_ns += kMs / 2);
  const double all = ChargedMs(2);
  EXPECT_GT(all - before, 5);
  policy_.Drained(2, revoked_ns, now_ns);
  EXPECT_GT(ChargedMs(2), all - 0.5);
}

// The one that had paid the rest has drained when the third publishes what it measured: another
// that stalls is not paid for that.
TEST_F(AccountsTest, WhatIsTakenAgainIsNeverMoreThanTheOneThatStallsHasPaid) {
  TwoBusy();
  Decide(kSliceNs);
  Backlog(1, kMs, LeasePolicy::kNever, /*blocked=*/true);
  int64_t now_ns = kSliceNs;
  Decide(now_ns += kMs);
  ASSERT_EQ(In(1), Phase::kStalled);
  ASSERT_EQ(In(2), Phase::kRunning);
  Add(3, Terms(0.3), now_ns);
  Wants(3, now_ns);
  Backlog(2, kS, 2 * kS);
  while (In(2) != Phase::kStalled && now_ns < kS) Decide(now_ns += kMs);
  ASSERT_EQ(In(3), Phase::kRunning);
  Measures(3, kUs);
  Decide(now_ns += 200 * kMs);
  Drains(2, now_ns);
  Backlog(3, 20 * kMs, now_ns + 20 * kMs);
  Backlog(1, 20 * kMs, now_ns + 20 * kMs);
  Decide(now_ns += kMs / 10);
  ASSERT_EQ(In(1), Phase::kStalled);
  Measures(3, 300 * kMs);
  Decide(now_ns += kMs);
  EXPECT_GE(ChargedMs(1), 0);
  EXPECT_STREQ(policy_.CheckInvariants(), nullptr);
}

// What it measured beyond its part in one lease it still owes in the next.
TEST_F(AccountsTest, WhatWasMeasuredTooMuchBesideOneThatStallsIsOwedInTheNextLease) {
  int64_t now_ns = FirstStalls();
  Measures(2, 100 * kMs);
  Decide(now_ns += 10 * kMs);
  Add(3, Terms(0.3), now_ns);
  Wants(3, now_ns);
  while (In(2) == Phase::kRunning) Decide(now_ns += kMs);
  Drains(2, now_ns);
  policy_.Wanted(2, now_ns);
  while (In(3) == Phase::kRunning && now_ns < kS) Decide(now_ns += kMs);
  Drains(3, now_ns);
  ASSERT_EQ(In(2), Phase::kRunning);
  const double before = ChargedMs(2);
  Decide(now_ns += 4 * kMs);
  Measures(2, 100 * kMs + kUs);
  Decide(now_ns += 4 * kMs);
  EXPECT_EQ(In(1), Phase::kStalled);
  EXPECT_NEAR(ChargedMs(2) - before, 4, 0.01) << "an equal part of 8 ms";
}

// What it has after a host function is found to stand behind that when the rest has run: until then
// that had the device.
TEST_F(AccountsTest, WhatDrainsPaysUntilItIsSeenToBeBehindAWait) {
  TwoBusy();
  Backlog(1, 10 * kMs, kSliceNs + 10 * kMs);
  Decide(kSliceNs);
  ASSERT_EQ(In(1), Phase::kDraining);
  Decide(kSliceNs + kMs);
  const double before = ChargedMs(1);
  Backlog(1, kMs, kSliceNs + 11 * kMs, /*blocked=*/true);
  Decide(kSliceNs + 9 * kMs);
  EXPECT_NEAR(ChargedMs(1) - before, 8, 0.01);
  ASSERT_EQ(In(1), Phase::kStalled);
  Decide(kSliceNs + 20 * kMs);
  EXPECT_NEAR(ChargedMs(1) - before, 8, 0.01) << "from then on not";
}

// What stands behind a wait or a host function takes no time of the device, and that it has come
// out is often the first that is heard of it for long.
TEST_F(AccountsTest, WhatStallsPaysFromWhenItIsNoLongerBehindAWait) {
  int64_t now_ns = FirstStalls();
  Backlog(1, kMs, LeasePolicy::kNever, /*blocked=*/true);
  Decide(now_ns += kMs);
  const double stalled = ChargedMs(1), other = ChargedMs(2);
  Backlog(1, 2 * kMs, now_ns + 7 * kMs);
  Decide(now_ns += 5 * kMs);
  EXPECT_NEAR(ChargedMs(1) - stalled, 0, 0.001);
  EXPECT_NEAR(ChargedMs(2) - other, 5, 0.001);
  ASSERT_EQ(In(1), Phase::kStalled);
  Decide(now_ns += 2 * kMs);
  EXPECT_NEAR(ChargedMs(1) - stalled, 1, 0.001);
}

// Nor does it get anything for that time: it was not active. The agent looks ten times a second at
// a share that is alone.
TEST_F(AccountsTest, WhatComesOutFromBehindAWaitIsOwedNothingOfTheTimeBefore) {
  int64_t now_ns = FirstStalls();
  Backlog(1, kMs, LeasePolicy::kNever, /*blocked=*/true);
  Decide(now_ns += kMs);
  Occupied(2, 50 * kMs);
  Decide(now_ns += 50 * kMs);
  const double owed = policy_.State(1).lag_ns;
  Occupied(2, 150 * kMs);
  Backlog(1, kMs, now_ns + 101 * kMs);
  policy_.Wanted(1, now_ns += 100 * kMs);
  Decide(now_ns);
  EXPECT_NEAR(policy_.State(1).lag_ns, owed, kMs);
  EXPECT_TRUE(policy_.State(1).active);
}

// Gangs are decided on by the same figure, and a device that is decided on later would idle.
TEST_F(AccountsTest, WhoWaitsForItsLimitIsDecidedOnWhenItMayRun) {
  Add(1, Terms(0, 0.3));
  Wants(1, 0);
  int64_t now_ns = 0;
  while (In(1) == Phase::kRunning && now_ns < kS) {
    Measures(1, now_ns);
    Decide(now_ns += kMs);
  }
  ASSERT_EQ(In(1), Phase::kDraining);
  policy_.Wanted(1, now_ns);
  Measures(1, now_ns += kMs / 3);
  Drains(1, now_ns);
  ASSERT_GT(policy_.State(1).limited_ns, 0);
  EXPECT_LE(next_ns_, now_ns + policy_.State(1).limited_ns);
}

}  // namespace
}  // namespace prorata::policy
