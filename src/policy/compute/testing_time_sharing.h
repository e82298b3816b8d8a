#pragma once

// TimeSharing with the events of a device's shares, for its tests.

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/units.h"
#include "policy/compute/time_sharing.h"

namespace prorata::policy {

using Phase = LeasePolicy::Phase;
constexpr int64_t kSliceNs = 13 * kMs;

inline ComputeTerms Terms(double request, double limit = 1, int32_t priority = 0) {
  ComputeTerms terms = {{static_cast<uint32_t>(request * 1e6 + 0.5)},
                        {static_cast<uint32_t>(limit * 1e6 + 0.5)}};
  terms.priority = priority;
  return terms;
}

class TimeSharingTest : public ::testing::Test {
 protected:
  void Add(LeasePolicy::Key key, const ComputeTerms& terms, int64_t now_ns = 0) {
    policy_.Add(key, terms, {}, now_ns);
  }
  void Decide(int64_t now_ns) {
    const LeasePolicy::Decisions decisions = policy_.Decide(now_ns);
    next_ns_ = decisions.next_ns;
    for (const LeasePolicy::Lease& lease : decisions.changes) leases_[lease.share] = lease;
    const char* broken = policy_.CheckInvariants();
    EXPECT_EQ(broken, nullptr) << broken << " at " << now_ns;
  }
  void Wants(LeasePolicy::Key key, int64_t now_ns) {
    policy_.Wanted(key, now_ns);
    Decide(now_ns);
  }
  void Backlog(LeasePolicy::Key key, int64_t backlog_ns, int64_t end_ns, bool blocked = false) {
    LeasePolicy::Work work;
    work.backlog_ns = backlog_ns;
    work.end_ns = end_ns;
    work.blocked = blocked;
    policy_.Observe(key, work);
  }
  // All of its members are stopped, as far as is known.
  void Stops(LeasePolicy::Key key) {
    LeasePolicy::Work work;
    work.backlog_ns = 1;
    work.stopped = work.blocked = true;
    policy_.Observe(key, work);
  }
  // None of its members runs from then on, unless they say something.
  void GoesAway(LeasePolicy::Key key, int64_t when_ns, int64_t backlog_ns = kMs) {
    LeasePolicy::Work work;
    work.backlog_ns = backlog_ns;
    work.away_ns = when_ns;
    policy_.Observe(key, work);
  }
  void Drains(LeasePolicy::Key key, int64_t now_ns) {
    Backlog(key, 0, LeasePolicy::kNever);
    policy_.Drained(key, now_ns, now_ns);
    Decide(now_ns);
  }
  Phase In(LeasePolicy::Key key) const { return policy_.State(key).phase; }
  double LagMs(LeasePolicy::Key key) const { return policy_.State(key).lag_ns / kMs; }
  double ChargedMs(LeasePolicy::Key key) const { return policy_.State(key).charged_ns / kMs; }
  // Two busy shares, 1 of which runs since 0 while 2 waits.
  void TwoBusy(double first = 0.5, double second = 0.5) {
    Add(1, Terms(first));
    Add(2, Terms(second));
    Wants(1, 0);
    Backlog(1, kMs, kMs);
    policy_.Wanted(2, 0);
    // Both are new: neither claims what the other holds within a slice that was claimed.
    Decide(0);
    ASSERT_EQ(In(1), Phase::kRunning);
    ASSERT_EQ(In(2), Phase::kRunnable);
  }
  // Shares that are always busy, with kernels that end at once, for so long: a look each
  // millisecond. Answers what each was charged.
  std::map<LeasePolicy::Key, double> KeepBusy(const std::vector<LeasePolicy::Key>& keys,
                                              int64_t from_ns, int64_t for_ns) {
    std::map<LeasePolicy::Key, double> charged;
    for (const auto key : keys) charged[key] = -policy_.State(key).charged_ns;
    for (int64_t now_ns = from_ns; now_ns < from_ns + for_ns; now_ns += kMs) {
      for (const auto key : keys) {
        if (In(key) == Phase::kDraining) Drains(key, now_ns);
        if (In(key) == Phase::kIdle) policy_.Wanted(key, now_ns);
        if (In(key) == Phase::kRunning) Backlog(key, kMs, now_ns + kMs);
      }
      Decide(now_ns);
    }
    for (const auto key : keys) charged[key] += policy_.State(key).charged_ns;
    return charged;
  }
  // Two busy shares, of which 1 has begun to stall, and 2 runs beside it. Answers since when.
  int64_t FirstStalls() {
    TwoBusy();
    Decide(kSliceNs);
    Backlog(1, kS, 2 * kS);
    int64_t now_ns = kSliceNs;
    while (In(1) != Phase::kStalled && now_ns < kS) Decide(now_ns += kMs);
    EXPECT_EQ(In(1), Phase::kStalled);
    EXPECT_EQ(In(2), Phase::kRunning);
    Backlog(2, kMs, now_ns + kMs);
    return now_ns;
  }
  // Of two the first runs, the other waits, as after TwoBusy: it has had kernels of 2 s, and wants
  // more. Answers when.
  int64_t LongKernelsOfTheFirst(int64_t now_ns = 0) {
    const int64_t end_ns = now_ns + 2 * kS;
    Backlog(1, 2 * kS, end_ns);
    Decide(now_ns += kSliceNs);
    Wants(1, now_ns);
    while (now_ns < end_ns) Decide(now_ns += 10 * kMs);
    Backlog(2, kMs, now_ns + kMs);
    Drains(1, now_ns);
    EXPECT_LT(LagMs(1), -500);
    EXPECT_EQ(In(1), Phase::kRunnable);
    return now_ns;
  }
  // It has been busy for so long in all, by its own figures.
  void Measures(LeasePolicy::Key key, int64_t busy_ns) {
    LeasePolicy::Work work;
    work.busy_total_ns = work.occupied_total_ns = static_cast<uint64_t>(busy_ns);
    work.backlog_ns = kMs;
    policy_.Observe(key, work);
  }

  TimeSharing policy_;
  std::map<LeasePolicy::Key, LeasePolicy::Lease> leases_;
  int64_t next_ns_ = 0;
};

}  // namespace prorata::policy
