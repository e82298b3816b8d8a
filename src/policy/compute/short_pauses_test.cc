// A share that would be too slow for its request keeps its lease in short pauses.

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

constexpr int64_t kStepNs = 50 * kUs;

// Share 1 runs a kernel, pauses, and so on; 2 is always busy, and takes a millisecond to drain.
class ShortPausesTest : public TimeSharingTest {
 protected:
  struct Pausing {
    int64_t kernel_ns = 300 * kUs;
    int64_t pause_ns = 700 * kUs;
    bool blocked = false;  // its next kernel stands behind a wait meanwhile
  };
  struct Speeds {
    double first = 0, second = 0;  // of what each makes alone
  };
  void SetUp() override {
    Add(1, Terms(0.7));
    Add(2, Terms(0.3));
  }
  Speeds Run(const Pausing& pausing, int64_t for_ns) {
    const int64_t first_before = first_ns_, second_before = second_ns_;
    for (const int64_t until_ns = now_ns_ + for_ns; now_ns_ < until_ns; now_ns_ += kStepNs) {
      StepFirst(pausing);
      StepSecond();
      Decide(now_ns_);
      keeps_ = keeps_ || ReportNs() > LeasePolicy::kIdleReportNs;
    }
    const double alone =
        static_cast<double>(pausing.kernel_ns) / (pausing.kernel_ns + pausing.pause_ns);
    const auto part = [for_ns](int64_t ns) { return static_cast<double>(ns) / for_ns; };
    return {part(first_ns_ - first_before) / alone, part(second_ns_ - second_before)};
  }
  int64_t ReportNs() const { return policy_.State(1).idle_report_ns; }

  int64_t now_ns_ = 0;
  int64_t kernel_left_ns_ = 0, ready_ns_ = 0, idle_since_ns_ = 0;
  int64_t first_ns_ = 0, second_ns_ = 0, second_revoked_ns_ = -1;
  bool keeps_ = false;  // at any time

 private:
  void StepFirst(const Pausing& pausing) {
    const bool was_at_it = kernel_left_ns_ > 0;
    if (was_at_it) {
      kernel_left_ns_ -= kStepNs;
      first_ns_ += kStepNs;
      if (kernel_left_ns_ == 0) {
        idle_since_ns_ = now_ns_;
        ready_ns_ = now_ns_ + pausing.pause_ns;
      }
    }
    if (kernel_left_ns_ == 0 && now_ns_ >= ready_ns_) {
      // What stands behind a wait comes out whoever holds the lease, and then waits for the other.
      const bool comes_out = pausing.blocked && first_ns_ > 0 && In(1) != Phase::kRunning;
      if (In(1) == Phase::kRunning || (comes_out && now_ns_ >= ready_ns_ + kMs)) {
        kernel_left_ns_ = pausing.kernel_ns;
      } else {
        policy_.Wanted(1, now_ns_);
      }
    }
    const bool comes_out = pausing.blocked && first_ns_ > 0 && now_ns_ >= ready_ns_;
    const bool busy = kernel_left_ns_ > 0 || comes_out;
    const bool told = now_ns_ - idle_since_ns_ >= ReportNs();
    Publish(1, first_ns_, busy || (pausing.blocked && first_ns_ > 0) ? kernel_left_ns_ + 1 : 0,
            pausing.blocked && !busy && (told || In(1) != Phase::kRunning));
    if (busy || pausing.blocked) return;
    if (In(1) == Phase::kRunning && told) policy_.Idle(1, now_ns_);
    if (In(1) == Phase::kDraining) policy_.Drained(1, idle_since_ns_, now_ns_);
  }
  void StepSecond() {
    const bool runs = In(2) == Phase::kRunning || In(2) == Phase::kDraining;
    if (runs && kernel_left_ns_ == 0) second_ns_ += kStepNs;
    if (In(2) != Phase::kDraining) second_revoked_ns_ = now_ns_;
    const int64_t left_ns = second_revoked_ns_ + kMs - now_ns_;
    Publish(2, second_ns_, left_ns, false);
    if (left_ns == 0) policy_.Drained(2, now_ns_, now_ns_);
    policy_.Wanted(2, now_ns_);
  }
  void Publish(LeasePolicy::Key key, int64_t busy_ns, int64_t backlog_ns, bool blocked) {
    LeasePolicy::Work work;
    work.busy_total_ns = work.occupied_total_ns = static_cast<uint64_t>(busy_ns);
    work.backlog_ns = backlog_ns;
    work.end_ns = now_ns_ + backlog_ns;
    work.blocked = blocked;
    policy_.Observe(key, work);
  }
};

TEST_F(ShortPausesTest, ItHasTheSpeedOfItsRequest) {
  Run({}, kS);
  const Speeds seen = Run({}, 5 * kS);
  EXPECT_GE(seen.first, 0.97 * 0.7);
  EXPECT_GE(seen.second, 0.97 * 0.3);
}

TEST_F(ShortPausesTest, SoHasOneThatIsBlockedInThem) {
  Run({.blocked = true}, kS);
  const Speeds seen = Run({.blocked = true}, 5 * kS);
  EXPECT_TRUE(keeps_);
  EXPECT_GE(seen.first, 0.97 * 0.7);
  EXPECT_GE(seen.second, 0.97 * 0.3);
}

// Its speed is not known before it had a slice of its own, so it keeps the lease for that, now and
// then.
TEST_F(ShortPausesTest, OthersHaveThePausesOfWhoIsFastEnough) {
  policy_.SetTerms(1, Terms(0.2), 0);
  policy_.SetTerms(2, Terms(0.8), 0);
  Run({}, kS);
  const Speeds seen = Run({}, 5 * kS);
  EXPECT_GE(seen.first, 0.25);
  EXPECT_GE(seen.second, 0.97 * 0.8);
}

TEST_F(ShortPausesTest, OthersHavePausesThatAreLong) {
  for (const bool blocked : {false, true}) {
    SCOPED_TRACE(blocked);
    const Pausing pausing{.kernel_ns = kMs, .pause_ns = 2 * kMs, .blocked = blocked};
    Run(pausing, kS);
    keeps_ = false;
    Run(pausing, 5 * kS);
    EXPECT_FALSE(keeps_);
  }
}

TEST_F(ShortPausesTest, OneThatSleepsKeepsItsLeaseInShortPausesSoonAfter) {
  const Pausing sleep{.kernel_ns = 300 * kUs, .pause_ns = 100 * kMs};
  Run({}, kS);
  Run(sleep, 200 * kMs);
  keeps_ = false;
  Run({}, 40 * kMs);
  EXPECT_TRUE(keeps_);
}

// It does not lose its lease in them, so what makes it slow is something else.
TEST_F(ShortPausesTest, WhosePausesAreNotReportedKeepsNothing) {
  policy_.SetTerms(1, Terms(0.9), 0);
  policy_.SetTerms(2, Terms(0.9), 0);
  Run({.pause_ns = 150 * kUs}, 2 * kS);
  EXPECT_FALSE(keeps_);
}

TEST_F(ShortPausesTest, WhatRunsOnOtherDevicesTooKeepsNothing) {
  policy_.SeeGang(1, 0);
  Run({}, 2 * kS);
  EXPECT_FALSE(keeps_);
}

TEST_F(ShortPausesTest, WhoIsPromisedNothingDoesNot) {
  policy_.SetTerms(1, Terms(0), 0);
  Run({}, 2 * kS);
  EXPECT_FALSE(keeps_);
}

// It has pauses of a millisecond, and then none: what it made in them says no more of its speed.
TEST_F(ShortPausesTest, WhatAShareMadeLongAgoDoesNotTellItsSpeed) {
  Run({.kernel_ns = 100 * kUs, .pause_ns = 900 * kUs}, 2 * kS);
  const Pausing now{.kernel_ns = 600 * kUs, .pause_ns = 400 * kUs};
  Run(now, 2 * kS);
  const Speeds seen = Run(now, 5 * kS);
  EXPECT_GE(seen.first, 0.97 * 0.7);
  EXPECT_GE(seen.second, 0.97 * 0.3);
}

}  // namespace
}  // namespace prorata::policy
