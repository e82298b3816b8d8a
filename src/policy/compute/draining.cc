// What becomes of a revoked lease: when it should have drained, when the next share is dispatched
// for that, and what is known when it has, or has not by its deadline.

#include <algorithm>
#include <utility>

#include "policy/compute/time_sharing.h"

namespace prorata::policy {
namespace {

// A revoked share may take this many slices to drain, however long its kernels are.
constexpr int64_t kMaxDrainSlices = 2;
// What a message takes on a busy machine: a drain is not late before that.
constexpr int64_t kDrainGraceNs = 1'000'000;
// A share of which a drain ended later than expected by more than this has kernels that cannot be
// foretold: the next is dispatched when it is seen to have drained. Larger, others are let in
// beside what is left of them, and how they divide the device is not known; smaller, the device
// idles after drains that were late by chance.
constexpr int64_t kUnforetoldNs = 1'000'000;

}  // namespace

int64_t TimeSharing::ExpectedEndNs(const Share& share) const {
  return share.work.end_ns == kNever ? now_ns_ + share.work.backlog_ns : share.work.end_ns;
}

// What draining shares still have to run before the next one is dispatched.
int64_t TimeSharing::RemainingNs() const {
  int64_t remaining_ns = 0;
  for (const Share& share : shares_) {
    if (share.phase != Phase::kDraining) continue;
    if (share.gang != GangSlice::kNone) return kNever;  // until it has drained on all its devices
    if (share.idle_hint || share.work.blocked) continue;
    const bool unforetold = share.overdue_ns > kUnforetoldNs;
    const int64_t end_ns = unforetold ? share.deadline_ns : ExpectedEndNs(share);
    const int64_t until_ns = end_ns - now_ns_;
    remaining_ns += std::clamp<int64_t>(until_ns, 0, kMaxDrainSlices * options_.slice_ns);
  }
  return remaining_ns;
}

void TimeSharing::Revoke(Share& share) {
  const int64_t held_ns = now_ns_ - share.granted_ns;
  share.had_slice = share.alone && held_ns > options_.slice_ns / 2;
  share.phase = Phase::kDraining;
  share.revoked_ns = now_ns_;
  share.taken = !DoesNothing(share);
  share.gathered = share.boosted = share.past_limit = share.claimed = share.gang_drained = false;
  share.drain_charged_ns = 0;
  share.drain_settled = false;
  share.expected_ns = std::max(now_ns_, ExpectedEndNs(share));
  share.deadline_ns = DrainDeadline(share);
}

// The bound that was published, and the longest that was measured here; never its own word.
int64_t TimeSharing::DrainDeadline(const Share& share) const {
  const int64_t bound_ns = share.issued_contended ? kBacklogNs : kNever / 2;
  return now_ns_ + std::min(kMaxDrainSlices * options_.slice_ns,
                            bound_ns + share.longest_drain_ns + kDrainGraceNs);
}

// A turn that was taken from it at once is none: it goes on waiting for one.
void TimeSharing::BecomesRunnable(Share& share, bool wakes) {
  share.runnable_ns = share.active_ns = now_ns_;
  const bool in_vain =
      share.taken && share.revoked_ns - share.granted_ns < options_.slice_ns / 2 && !wakes;
  if (!in_vain) share.waits_from_ns = now_ns_;
}

void TimeSharing::EndDrain(Share& share) {
  const bool again = share.wants_again;
  share.phase = again ? Phase::kRunnable : Phase::kIdle;
  share.wants_again = share.claims = share.gang_drained = false;
  share.idle_hint = true;
  share.deadline_ns = kNever;
  drained_ns_ = now_ns_;
  if (again) share.active_ns = now_ns_;
}

void TimeSharing::Stall(Share& share) {
  if (share.idle_hint) {
    ChargeLate(share, static_cast<double>(now_ns_ - share.revoked_ns));
    share.idle_hint = false;
  }
  share.phase = Phase::kStalled;
  share.had_slice = false;
  share.paid_rest_ns = 0;
  if (share.work.blocked && !share.work.stopped) {
    SettleReleased(share);
    share.idle_from_ns = share.revoked_ns - kIdleReportNs;
  }
  share.released = false;
  share.occupied_part = 1;
  if (!share.wants_again) share.runnable_ns = now_ns_;
  share.waits_from_ns = share.runnable_ns;
  share.deadline_ns = kNever;
}

// From when on its processes do not run: its container has used up its processor quota, say. A
// gang's other ranks may.
int64_t TimeSharing::AwayNs(const Share& share) {
  return share.gang == GangSlice::kNone ? share.work.away_ns : kNever;
}

bool TimeSharing::IsAway(const Share& share) const { return now_ns_ >= AwayNs(share); }

void TimeSharing::StallLateDrains() {
  for (Share& share : shares_) {
    // A gang that has drained here waits for the rest of it, on its other devices (gangs.h).
    if (share.phase != Phase::kDraining || share.gang_drained) continue;
    const bool late = now_ns_ >= share.deadline_ns || IsAway(share);
    if (late || (share.work.blocked && share.gang == GangSlice::kNone)) Stall(share);
  }
}

void TimeSharing::Drained(Key key, int64_t since_ns, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return;
  if (share->phase != Phase::kDraining && share->phase != Phase::kStalled) return;
  // A gang keeps the device until it has drained elsewhere, too, and is seen to have drained here
  // again and again.
  if (std::exchange(share->drain_settled, true) && share->gang_drained) return;
  const int64_t drain_ns = std::clamp(since_ns, share->revoked_ns, now_ns_) - share->revoked_ns;
  const auto of_late = [](int64_t before_ns, int64_t ns) {
    return ns > before_ns ? ns : (3 * before_ns + ns) / 4;
  };
  const int64_t overdue_ns = share->revoked_ns + drain_ns - share->expected_ns;
  share->longest_drain_ns = of_late(share->longest_drain_ns, drain_ns);
  // What stalls may wait for its own share's next launch.
  if (share->phase == Phase::kDraining) {
    share->overdue_ns = of_late(share->overdue_ns, std::max<int64_t>(0, overdue_ns));
  }
  if (share->idle_hint && share->phase == Phase::kDraining) {
    // It was said to be idle and was not: that was not charged yet.
    ChargeLate(*share, static_cast<double>(drain_ns));
  } else {
    Refund(*share, since_ns);
  }
  SettleReleased(*share);
  SeeGaps(*share, drain_ns);
  share->idle_from_ns = since_ns;
  if (share->gang == GangSlice::kNone || share->phase == Phase::kStalled) return EndDrain(*share);
  share->gang_drained = true;
}

}  // namespace prorata::policy
