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
    uint64_t occupied_ns = 0;
  };
  void Run(int64_t from_ns, int64_t to_ns, double first_part, bool promptly) {
    for (int64_t now_ns = from_ns; now_ns < to_ns; now_ns += kMs) {
      int running = 0;
      for (const LeasePolicy::Key key : {1, 2}) {
        One& one = ones_[key];
        const double part = key == 1 ? first_part : second_part_;
        if (In(key) == Phase::kRunning) {
          ++running;
          one.occupied_ns += static_cast<uint64_t>(part * kMs);
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
    work.busy_total_ns = work.occupied_total_ns = one.occupied_ns;
    work.backlog_ns = backlog_ns;
    work.end_ns = end_ns;
    policy_.Observe(key, work);
  }

  std::map<LeasePolicy::Key, One> ones_;
  double second_part_ = 0.3;
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

}  // namespace
}  // namespace prorata::policy
