// When shares hold leases together, and when no more.

#include <cstdint>
#include <map>

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

// Two busy programs of which the first is occupied for the part of a millisecond that
// `occupied_part` says; both publish when they drain, and at every millisecond if `promptly`.
class CoRunningTest : public TimeSharingTest {
 protected:
  struct One {
    uint64_t occupied_ns = 0, busy_ns = 0;
  };
  void Run(int64_t from_ns, int64_t to_ns, double first_part, bool promptly) {
    for (int64_t now_ns = from_ns; now_ns < to_ns; now_ns += kMs) {
      const bool together = In(1) == Phase::kRunning && In(2) == Phase::kRunning;
      int running = 0;
      for (const LeasePolicy::Key key : {1, 2}) {
        One& one = ones_[key];
        const double part = key == 1 ? first_part : second_part_;
        if (In(key) == Phase::kRunning) {
          ++running;
          one.occupied_ns += static_cast<uint64_t>(part * kMs);
          const double slower = together ? together_slower_ : 1;
          one.busy_ns += static_cast<uint64_t>(part * kernels_part_ / slower * kMs);
        }
        const bool drains = In(key) == Phase::kDraining;
        if (promptly || drains) Publish(key, one, drains ? 0 : kMs, now_ns + kMs);
        if (drains) policy_.Drained(key, now_ns, now_ns);
        policy_.Wanted(key, now_ns);
      }
      together_ms_ += running > 1;
      Decide(now_ns);
    }
  }
  void Publish(LeasePolicy::Key key, const One& one, int64_t backlog_ns, int64_t end_ns) {
    LeasePolicy::Work work;
    work.occupied_total_ns = one.occupied_ns;
    work.busy_total_ns = one.busy_ns;
    work.backlog_ns = backlog_ns;
    work.end_ns = end_ns;
    policy_.Observe(key, work);
  }

  std::map<LeasePolicy::Key, One> ones_;
  double second_part_ = 0.3;
  double kernels_part_ = 1;     // of the time in which they are occupied
  double together_slower_ = 1;  // their kernels, while both run
  int together_ms_ = 0;
};

TEST_F(CoRunningTest, SharesThatLeaveGapsRunTogether) {
  TwoBusy();
  Run(0, kS, 0.3, true);
  EXPECT_GT(together_ms_, 800);
}

// One with a kernel of 300 ms beside a busy one: both helpers were late on a busy machine, both
// shares were taken to leave gaps, and so they ran together for ever.
TEST_F(CoRunningTest, WhatIsPublishedLateIsNoGap) {
  TwoBusy();
  second_part_ = 1;
  Run(0, kS, 1, false);
  EXPECT_EQ(together_ms_, 0);
}

TEST_F(CoRunningTest, ASetOfWhichOneHasLostItsGapsEnds) {
  TwoBusy();
  Run(0, kS, 0.3, true);
  Run(kS, kS + 200 * kMs, 1, true);
  together_ms_ = 0;
  Run(kS + 200 * kMs, 5 * kS, 1, true);
  EXPECT_EQ(together_ms_, 0);
}

// The kernels of each end sooner than the next is launched: there is always one under way, and the
// device idles for the most part.
TEST_F(CoRunningTest, SharesWhoseKernelsLeaveGapsRunTogether) {
  TwoBusy();
  second_part_ = 1;
  kernels_part_ = 0.4;
  Run(0, 10 * kS, 1, true);
  EXPECT_GT(together_ms_, 8'500);
  EXPECT_LT(together_ms_, 9'700) << "each is seen in its own slice again and again";
  kernels_part_ = 1;
  Run(10 * kS, 11 * kS, 1, true);
  together_ms_ = 0;
  Run(11 * kS, 15 * kS, 1, true);
  EXPECT_EQ(together_ms_, 0) << "they leave none any more";
}

// It paid for what it had beyond its part, though the other had all that it could use.
TEST_F(CoRunningTest, WhoAskedForLessOwesNothingForIt) {
  TwoBusy(0.1, 0.9);
  second_part_ = 1;
  kernels_part_ = 0.4;
  Run(0, 10 * kS, 1, true);
  EXPECT_GT(together_ms_, 6'000);
  EXPECT_GT(LagMs(1), -50);
}

// Each turn of the device's slices costs more than they gain.
TEST_F(CoRunningTest, ThoseWhoLoseByItTryItLessAndLessOften) {
  TwoBusy();
  second_part_ = 1;
  kernels_part_ = 0.4;
  together_slower_ = 3;
  Run(0, 60 * kS, 1, true);
  EXPECT_GE(together_ms_, 300) << "it is tried";
  EXPECT_LE(together_ms_, 1'000);
  together_slower_ = 1;
  Run(60 * kS, 80 * kS, 1, true);
  together_ms_ = 0;
  Run(80 * kS, 81 * kS, 1, true);
  EXPECT_GT(together_ms_, 800) << "they have changed";
}

}  // namespace
}  // namespace prorata::policy
