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
    return ComesOut(0);
  }
  int64_t ComesOut(int64_t now_ns, LeasePolicy::Key other = 2) {
    Wants(1, now_ns);
    Backlog(1, kMs, LeasePolicy::kNever, /*blocked=*/true);
    Wants(other, now_ns);
    while (In(1) != Phase::kStalled && now_ns < kS) Decide(now_ns += kMs);
    Decide(now_ns);
    EXPECT_EQ(In(other), Phase::kRunning);
    Says(other, 0, kMs);
    Decide(now_ns += kMs);
    if (is_gang_) policy_.SetGang(1, LeasePolicy::GangSlice::kAway, now_ns, 0);
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
  bool is_gang_ = false;
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

TEST_F(ReleasedTest, WhoRanBesideItOnceDoesNotPayTheNextTime) {
  int64_t now_ns = FirstComesOut() + 2 * kMs;
  IsDone(1, 300 * kUs, now_ns);
  policy_.Idle(2, now_ns);
  Wants(1, now_ns += 100 * kMs);
  Drains(2, now_ns);
  Add(3, Terms(0), now_ns);
  now_ns = ComesOut(now_ns, 3);
  const double paid = ChargedMs(3);
  IsDone(1, 400 * kUs, now_ns + 2 * kMs);
  EXPECT_NEAR(Paid(1), 0.1, 0.001);
  EXPECT_NEAR(Paid(2), 0, 0.001);
  EXPECT_NEAR(ChargedMs(3) - paid, 1.9, 0.001);
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

// Its kernels may have waited for those on its other devices.
TEST_F(ReleasedTest, AGangIsGivenNothingBack) {
  is_gang_ = true;
  const int64_t now_ns = FirstComesOut() + 2 * kMs;
  Decide(now_ns);
  IsDone(1, 300 * kUs, now_ns);
  EXPECT_NEAR(Paid(1), 1, 0.001);
}

// Their limits keep 1 and 3 from a lease, and they stall beside each other once 2 is idle: what 1
// pays then is not for 2 to pay.
TEST_F(ReleasedTest, WhatItPaidWhileNobodyHadALeaseNobodyElsePays) {
  for (const LeasePolicy::Key key : {1, 3}) Add(key, Terms(0, 0.1));
  Add(2, Terms(0.5));
  for (const LeasePolicy::Key key : {1, 3}) {
    Wants(key, now_ns_);
    Says(key, 0, kMs, /*blocked=*/true);
    while (In(key) != Phase::kStalled && now_ns_ < kS) Decide(now_ns_ += kMs);
  }
  Wants(2, now_ns_);
  Says(2, 0, kMs);
  for (const LeasePolicy::Key key : {1, 3}) Says(key, 0, kMs);
  Decide(now_ns_ += 1);
  before_ = {ChargedMs(1), ChargedMs(2)};
  Decide(now_ns_ += 300 * kMs);
  Says(2, 0, 0);
  policy_.Idle(2, now_ns_);
  Decide(now_ns_);
  EXPECT_NEAR(Paid(1), 100, 0.001) << "a third";
  Decide(now_ns_ += 10 * kMs);
  ASSERT_EQ(In(1), Phase::kStalled);
  ASSERT_EQ(In(3), Phase::kStalled);
  IsDone(1, 0, now_ns_);
  EXPECT_NEAR(Paid(1), 5, 0.001) << "half of the time with 3";
  EXPECT_NEAR(Paid(2), 200, 0.001);
}

// Who says that its work waits, and then that it took nothing, is met by the driver's looks.
TEST_F(ReleasedTest, WhoMeasuresNothingIsChargedByTheAudit) {
  Add(1, Terms(0));
  Add(2, Terms(0.9));
  int64_t now_ns = ComesOut(0);
  double corrected_ms = 0;
  for (int look = 1; look <= 60; ++look) {
    Says(1, 0, kMs);
    Decide(now_ns += 1);
    Decide(now_ns += 190 * kMs);
    const int64_t met_ns = now_ns - 50 * kMs;
    Says(1, 0, kMs, /*blocked=*/true);
    Decide(now_ns += 10 * kMs);
    for (const auto& one : policy_.Audit({{1, 200.0 * kMs, met_ns}}, now_ns)) {
      if (one.share == 1) corrected_ms += one.charged_ns / kMs;
    }
  }
  EXPECT_GT(corrected_ms, 2'000);
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
