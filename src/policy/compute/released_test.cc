// What pays for work that comes out from behind a wait while others run (beside_stalled.cc).

#include <array>

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

class ReleasedTest : public TimeSharingTest {
 protected:
  // 1 has launched behind a wait, and 2 runs; 1 owes nothing, and comes out at the time it answers.
  int64_t FirstComesOut() {
    Add(1, Terms(0.7));
    Add(2, Terms(0.3));
    Wants(1, 0);
    Backlog(1, kMs, LeasePolicy::kNever, /*blocked=*/true);
    Wants(2, 0);
    int64_t now_ns = 0;
    while (In(1) != Phase::kStalled && now_ns < 100 * kMs) Decide(now_ns += kMs);
    Decide(now_ns);
    EXPECT_EQ(In(2), Phase::kRunning);
    Says(2, 0, kMs);
    Decide(now_ns += kMs);
    Says(1, 0, kMs);
    Decide(now_ns += 1);
    before_ = {ChargedMs(1), ChargedMs(2)};
    return now_ns;
  }
  void Says(LeasePolicy::Key key, int64_t busy_ns, int64_t backlog_ns, bool blocked = false) {
    LeasePolicy::Work work;
    work.busy_total_ns = work.occupied_total_ns = static_cast<uint64_t>(busy_ns);
    work.backlog_ns = backlog_ns;
    work.blocked = blocked;
    policy_.Observe(key, work);
  }
  void IsDone(LeasePolicy::Key key, int64_t busy_ns, int64_t now_ns) {
    Says(key, busy_ns, 0);
    policy_.Drained(key, now_ns, now_ns);
    Decide(now_ns);
  }
  // It comes out, runs beside the other, and is dispatched. Answers half of that time.
  double ThenHasALease() {
    const int64_t since_ns = FirstComesOut();
    now_ns_ = since_ns;
    while (In(2) == Phase::kRunning && now_ns_ < since_ns + kS) Decide(now_ns_ += kMs / 2);
    Says(2, 0, 0);
    policy_.Drained(2, now_ns_, now_ns_);
    Wants(2, now_ns_);
    EXPECT_EQ(In(1), Phase::kRunning);
    return static_cast<double>(now_ns_ - since_ns) / 2 / kMs;
  }
  void IsBehindAWaitAgain(int64_t busy_ns, int64_t after_ns) {
    Says(1, busy_ns, kMs, /*blocked=*/true);
    Decide(now_ns_ += after_ns);
    Decide(now_ns_);
    EXPECT_EQ(In(1), Phase::kStalled);
  }
  double Paid(LeasePolicy::Key key) { return ChargedMs(key) - before_[key - 1]; }

  std::array<double, 2> before_ = {};
  int64_t now_ns_ = 0;
};

TEST_F(ReleasedTest, WhatWaitsForASliceOfAnothersPaysWhatItMeasured) {
  const int64_t now_ns = FirstComesOut();
  const double lag = LagMs(1);
  IsDone(1, 300 * kUs, now_ns + 2 * kMs);
  EXPECT_NEAR(Paid(1), 0.3, 0.001);
  EXPECT_NEAR(Paid(2), 1.7, 0.001);
  EXPECT_GT(LagMs(1), lag) << "less than its part";
}

TEST_F(ReleasedTest, WhatIsRefundedSinceItWasDoneIsNotGivenBackAgain) {
  const int64_t now_ns = FirstComesOut();
  Says(1, 100 * kUs, 0);
  policy_.Drained(1, now_ns + kMs, now_ns + 2 * kMs);
  EXPECT_NEAR(Paid(1), 0.1, 0.001);
}

TEST_F(ReleasedTest, AndNoMoreWhenItIsBehindAWaitAgain) {
  const int64_t now_ns = FirstComesOut();
  Decide(now_ns + kMs);
  Says(1, 300 * kUs, kMs, /*blocked=*/true);
  Decide(now_ns + 2 * kMs);
  EXPECT_NEAR(Paid(1), 0.3, 0.001);
  EXPECT_NEAR(Paid(2), 1.7, 0.001);
}

// Half of the device's time is the most that it had beside one other.
TEST_F(ReleasedTest, WhatItMeasuresBesideOthersNeverMakesItPayMore) {
  const int64_t now_ns = FirstComesOut();
  IsDone(1, 2 * kMs, now_ns + 2 * kMs);
  EXPECT_NEAR(Paid(1), 1, 0.001);
  EXPECT_NEAR(Paid(2), 1, 0.001);
}

// It is paid for as a whole: in the time of its lease ran what had not run before.
TEST_F(ReleasedTest, WhatRanInTheTimeOfItsLeaseIsNotPaidForTwice) {
  const double late = ThenHasALease();
  EXPECT_NEAR(Paid(1), late, 0.001) << "not known yet what it used";
  EXPECT_NEAR(Paid(2), late, 0.001);
  IsBehindAWaitAgain(2'900 * kUs, 3 * kMs);
  EXPECT_NEAR(Paid(1), 3, 0.001) << "it measured less than the time of its lease";
  EXPECT_NEAR(Paid(2), 2 * late, 0.001);
}

TEST_F(ReleasedTest, WhatItMeasuredBeyondTheTimeOfItsLeaseItPaysFor) {
  const double late = ThenHasALease();
  IsBehindAWaitAgain(3'400 * kUs, 3 * kMs);
  EXPECT_NEAR(Paid(1), 3.4, 0.001);
  EXPECT_NEAR(Paid(2), 2 * late - 0.4, 0.001);
}

// It is not known when a stopped one's work ran, nor how long that took.
TEST_F(ReleasedTest, OneThatIsStoppedIsGivenNothingBack) {
  const int64_t now_ns = FirstComesOut();
  Decide(now_ns + 2 * kMs);
  Stops(1);
  Decide(now_ns + 3 * kMs);
  EXPECT_GE(Paid(1), 1);
}

// Late kernels that stand behind no wait: nobody knows how they divided the device with others.
TEST_F(ReleasedTest, OneThatStallsWithoutAWaitPaysItsPart) {
  const int64_t since_ns = FirstStalls();
  before_ = {ChargedMs(1), ChargedMs(2)};
  Decide(since_ns + 2 * kMs);
  Drains(1, since_ns + 2 * kMs);
  EXPECT_NEAR(Paid(1), 1, 0.001);
}

}  // namespace
}  // namespace prorata::policy
