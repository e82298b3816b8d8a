// Charges against what the device itself says.

#include <map>

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

constexpr double kLookNs = 200e6;

class TimeAuditTest : public TimeSharingTest {
 protected:
  void TwoTakeTurns(int64_t to_ns) {
    Add(1, Terms(0.5));
    Add(2, Terms(0.5));
    Run(0, to_ns);
  }
  // Each is done as soon as its lease is revoked.
  void Run(int64_t from_ns, int64_t to_ns) {
    for (now_ns_ = from_ns; now_ns_ < to_ns; now_ns_ += kMs) {
      for (const LeasePolicy::Key key : {1, 2}) {
        if (In(key) == Phase::kDraining) Drains(key, now_ns_);
        if (In(key) == Phase::kIdle) Wants(key, now_ns_);
        if (In(key) == Phase::kRunning) Works(key);
      }
      Decide(now_ns_);
    }
  }
  // For the whole millisecond: it leaves no gaps.
  void Works(LeasePolicy::Key key) {
    LeasePolicy::Work work;
    busy_ns_[key] += kMs;
    work.busy_total_ns = work.occupied_total_ns = busy_ns_[key];
    work.backlog_ns = kMs;
    work.end_ns = now_ns_ + kMs;
    policy_.Observe(key, work);
  }
  // A moment 6 ms before and after which the share had no lease.
  int64_t WithoutLease(LeasePolicy::Key key) {
    for (const bool running : {false, true}) {
      for (int i = 0; i < 1000 && (In(key) == Phase::kRunning) == running; ++i) {
        Run(now_ns_, now_ns_ + kMs);
      }
    }
    const int64_t since_ns = now_ns_;
    Run(now_ns_, now_ns_ + 10 * kMs);
    EXPECT_NE(In(key), Phase::kRunning);
    return since_ns + 7 * kMs;
  }

  // Fifty looks, each at a moment without a lease.
  template <typename LookAt>
  void EveryLookIsForgiven(LookAt look_at) {
    TwoTakeTurns(kS);
    for (int look = 0; look < 50; ++look) {
      const int64_t at_ns = WithoutLease(1);
      EXPECT_TRUE(policy_.Audit({look_at(at_ns)}, now_ns_).empty());
      Run(now_ns_, now_ns_ + 180 * kMs);
    }
  }

  std::map<LeasePolicy::Key, uint64_t> busy_ns_;
  int64_t now_ns_ = 0;
};

// The looks of the H100 named one of two equal shares 14 times in a row.
TEST_F(TimeAuditTest, WhoHeldALeaseIsNotChargedAgainHoweverOftenItIsNamed) {
  TwoTakeTurns(kS);
  for (int look = 0; look < 50; ++look) {
    for (int i = 0; i < 1000 && In(1) != Phase::kRunning; ++i) Run(now_ns_, now_ns_ + kMs);
    ASSERT_EQ(In(1), Phase::kRunning);
    EXPECT_TRUE(policy_.Audit({{1, kLookNs, now_ns_}}, now_ns_).empty());
    Run(now_ns_, now_ns_ + 180 * kMs);
  }
}

TEST_F(TimeAuditTest, WhoRunsWithoutALeaseIsChargedAndWhoeverHeldItGetsThatBack) {
  TwoTakeTurns(5 * kS + kMs);
  policy_.Audit({}, now_ns_);
  double charged_ms = 0, given_back_ms = 0;
  for (int look = 0; look < 30; ++look) {
    // It is met in a third of the time in which it has no lease.
    const int64_t at_ns = WithoutLease(1);
    for (const auto& one : policy_.Audit({{1, look % 3 == 0 ? kLookNs : 0, at_ns}}, now_ns_)) {
      (one.share == 1 ? charged_ms : given_back_ms) += one.charged_ns / kMs;
    }
    Run(now_ns_, now_ns_ + 180 * kMs);
  }
  EXPECT_NEAR(charged_ms, 1'800, 250);
  EXPECT_NEAR(charged_ms + given_back_ms, 0, 210) << "but for what nobody had been charged for";
  EXPECT_LE(ChargedMs(1) + ChargedMs(2), static_cast<double>(now_ns_) / kMs + 1);
}

TEST_F(TimeAuditTest, WhoIsMetWithoutALeaseOnceIsForgiven) {
  TwoTakeTurns(kS);
  for (int window = 0; window < 4; ++window) {
    const int64_t at_ns = WithoutLease(1);
    EXPECT_TRUE(policy_.Audit({{1, kLookNs, at_ns}}, now_ns_).empty());
    Run(now_ns_, now_ns_ + 5 * kS);
  }
}

TEST_F(TimeAuditTest, NearItsLeaseTheClockMayBeWrong) {
  EveryLookIsForgiven([](int64_t at_ns) { return LeasePolicy::Look{1, kLookNs, at_ns - 4 * kMs}; });
}

// Alone, and within a limit. One says how long it was at work, the other that it hardly was.
TEST_F(TimeAuditTest, WhoSaysThatItUsedLittleOfItsLimitPaysForWhatItIsMetFor) {
  for (const bool lies : {false, true}) {
    const LeasePolicy::Key key = lies ? 2 : 1;
    Add(key, Terms(0, 0.3), now_ns_);
    uint64_t used_ns = 0, met = 0;
    double corrected_ms = 0;
    for (const int64_t from_ns = now_ns_; now_ns_ < from_ns + 20 * kS; now_ns_ += kMs) {
      if (In(key) == Phase::kDraining) Drains(key, now_ns_);
      if (In(key) == Phase::kIdle) Wants(key, now_ns_);
      const bool runs = In(key) == Phase::kRunning;
      used_ns += runs ? kMs : 0;
      Measures(key, static_cast<int64_t>(lies ? used_ns / 50 : used_ns));
      Decide(now_ns_);
      // Its context is met where it runs, each 200 ms.
      if (used_ns / 200'000'000 == met || !runs) continue;
      ++met;
      for (const auto& one : policy_.Audit({{key, kLookNs, now_ns_}}, now_ns_)) {
        corrected_ms += one.share == key ? one.charged_ns / kMs : 0;
      }
    }
    if (lies) {
      EXPECT_GT(corrected_ms, 3'000);
    } else {
      EXPECT_EQ(corrected_ms, 0);
      EXPECT_NEAR(static_cast<double>(used_ns) / 20e9, 0.3, 0.01);
    }
    policy_.Remove(key, now_ns_);
  }
}

TEST_F(TimeAuditTest, WhoRunsWithoutALeasePaysForItWithItsLimit) {
  Add(1, Terms(0.5, 0.5));
  Add(2, Terms(0));
  Wants(1, 0);
  policy_.Idle(1, kMs);
  Decide(kMs);
  Drains(1, kMs);
  Wants(2, 2 * kMs);
  for (int64_t look = 1; look <= 26; ++look) {
    const int64_t now_ns = look * 200 * kMs;
    Backlog(2, kMs, now_ns + kMs);
    Decide(now_ns);
    policy_.Audit({{1, kLookNs, now_ns - 10 * kMs}}, now_ns);
  }
  EXPECT_GT(ChargedMs(1), 4'000);
  Wants(1, 5'210 * kMs);
  EXPECT_EQ(In(1), Phase::kRunnable) << "its limit is used up";
  Decide(8 * kS);
  EXPECT_EQ(In(1), Phase::kRunnable);
}

// A device that is idle is said to have the context that was there last.
TEST_F(TimeAuditTest, WhoHeldALeaseInTheTimeThatALookStandsForMayHaveRunThen) {
  EveryLookIsForgiven(
      [](int64_t at_ns) { return LeasePolicy::Look{1, kLookNs / 2, at_ns, 200 * kMs}; });
}

// Its lease is open, since nobody else wants the device.
TEST_F(TimeAuditTest, WhoIsNamedAgainAndAgainWhileItSaysThatItIsIdleIsCharged) {
  Add(1, Terms(0, 0.3));
  Wants(1, 0);
  policy_.Idle(1, kMs);
  for (int64_t look = 1; look <= 60; ++look) {
    const int64_t now_ns = look * 200 * kMs;
    Decide(now_ns);
    policy_.Audit({{1, kLookNs, now_ns - 10 * kMs}}, now_ns);
  }
  EXPECT_GT(ChargedMs(1), 6'000);
  EXPECT_LT(ChargedMs(1), 12'000);
}

// What stands behind a wait is not charged. Another program has the device meanwhile.
TEST_F(TimeAuditTest, WhoIsNamedAgainAndAgainWhileItSaysThatItIsBlockedIsCharged) {
  Add(1, Terms(0, 0.3));
  Add(2, Terms(0.5));
  Wants(1, 0);
  Backlog(1, kMs, kMs, /*blocked=*/true);
  Decide(kMs);
  Decide(2 * kMs);
  ASSERT_EQ(In(1), Phase::kStalled);
  for (int64_t look = 1; look <= 60; ++look) {
    const int64_t now_ns = look * 200 * kMs;
    Wants(2, now_ns - 10 * kMs);
    Backlog(2, kMs, now_ns + kMs);
    Decide(now_ns);
    policy_.Audit({{1, look % 2 == 0 ? kLookNs : 0, now_ns - 10 * kMs}}, now_ns);
  }
  EXPECT_GT(ChargedMs(1), 2'000);
  EXPECT_LE(ChargedMs(1) + ChargedMs(2), 12'000);
  policy_.Wanted(1, 12 * kS);
  Backlog(1, kMs, LeasePolicy::kNever);
  Decide(12 * kS + kMs);
  EXPECT_EQ(In(1), Phase::kStalled) << "its limit is used up";
}

// What it says that it measured is what it pays.
TEST_F(TimeAuditTest, WhoIsNamedAgainAndAgainBesideOneThatStallsAndMeasuresNothingIsCharged) {
  const int64_t since_ns = FirstStalls();
  policy_.Audit({}, since_ns);
  const double before = ChargedMs(2);
  double corrected_ms = 0;
  for (int64_t look = 1; look <= 60; ++look) {
    const int64_t now_ns = since_ns + look * 200 * kMs;
    Measures(2, look * 1'000);
    Decide(now_ns);
    if (look == 20) {
      EXPECT_LT(ChargedMs(2) - before, 10);
    }
    const double ran_ns = look % 2 == 0 ? kLookNs : 0;
    for (const auto& one : policy_.Audit({{2, ran_ns, now_ns - 10 * kMs}}, now_ns)) {
      if (one.share == 2) corrected_ms += one.charged_ns / kMs;
    }
  }
  EXPECT_GT(corrected_ms, 2'000);
  EXPECT_LE(ChargedMs(1) + ChargedMs(2), static_cast<double>(since_ns) / kMs + 12'000 + 1);
}

TEST_F(TimeAuditTest, OneThatIsNamedAboutAsOftenAsItIsChargedIsNot) {
  Add(1, Terms(0));
  Wants(1, 0);
  LeasePolicy::Work work;
  for (int64_t look = 1; look <= 300; ++look) {
    const int64_t now_ns = look * 200 * kMs;
    policy_.Idle(1, now_ns - 30 * kMs);
    Decide(now_ns - 30 * kMs);
    work.busy_total_ns += 20 * kMs, work.occupied_total_ns += 20 * kMs;
    policy_.Observe(1, work);
    // It has a tenth of the device, and is met three times as often.
    const bool met = look % 10 < 3;
    EXPECT_TRUE(policy_.Audit({{1, met ? kLookNs : 0, now_ns - 10 * kMs}}, now_ns).empty());
  }
  EXPECT_NEAR(ChargedMs(1), 300 * 20, 100);
}

TEST_F(TimeAuditTest, OfATimeThatIsNotKnownNothingIsSaid) {
  TwoTakeTurns(5 * kS);
  Add(3, Terms(0), now_ns_);
  EXPECT_TRUE(policy_.Audit({{3, kLookNs, now_ns_ - 20 * kMs}}, now_ns_).empty())
      << "it was no share of this device yet";
  EXPECT_TRUE(policy_.Audit({{1, kLookNs, now_ns_ - 4 * kS}}, now_ns_).empty()) << "too old";
  EXPECT_TRUE(policy_.Audit({{7, kLookNs, now_ns_}}, now_ns_).empty()) << "no such share";
}

}  // namespace
}  // namespace prorata::policy
