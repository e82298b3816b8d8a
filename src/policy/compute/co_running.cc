// Co-running: shares that leave gaps hold leases at the same time, instead of one by one.
//
// One at a time, a program that waits for each of its kernels, and launches the next a moment
// later, leaves the device idle in between; and so does one whose kernels end sooner than it
// launches the next. Shares of which every active one was seen to leave gaps, each in its own
// slice, run together as long as every one of them makes at least the progress that its entitlement
// alone would give it; else they are scheduled one at a time again, for a while. A slice is judged
// when it has drained: until then the counters of its members lag behind.

#include <algorithm>
#include <utility>

#include "policy/compute/time_sharing.h"

namespace prorata::policy {
namespace {

// A share that was proven idle in the rest of its own slice, or ran no kernels, leaves gaps.
// Larger, shares join that gain nothing by it; smaller, gaps stay unused.
constexpr double kGapsBelow = 0.75;
// One of a set that is proven idle for less than the rest of the time may have lost its gaps: what
// it did in its own slice then tells nothing any more. Smaller, sets end because of their own load.
constexpr double kNoGapsAbove = 0.95;
// One that was not proven idle in its own slice either, but ran few kernels, is believed for so
// long. Longer, one that becomes busy has less than its due until then; shorter, slices of their
// own take more of the time.
constexpr int64_t kBelievedNs = 500'000'000;
// A slice in which another had yet to drain for so long tells nothing. Larger, shares join that
// have no gaps; smaller, of a share behind one whose drains are long nothing is known.
constexpr int64_t kLateNs = 1'000'000;
// Of what its entitlement alone would give it.
constexpr double kMinProgress = 0.97;
// After a set in which one made too little progress: the first time, and the longest of those that
// double from one such set to the next. Shorter, more time goes into trials; longer, gaps stay
// unused when a program has changed.
constexpr int64_t kPauseNs = 1'000'000'000, kMaxPauseNs = 16 * kPauseNs;

}  // namespace

void TimeSharing::SeeGaps(Share& share, int64_t drain_ns) {
  if (!std::exchange(share.had_slice, false)) return;
  // It had to wait for what another had yet to finish.
  const auto stalled = [](const Share& other) { return other.phase == Phase::kStalled; };
  if (drained_ns_ > share.granted_ns + kLateNs) return;
  if (std::any_of(shares_.begin(), shares_.end(), stalled)) return;
  const auto held_ns = static_cast<double>(share.revoked_ns - share.granted_ns + drain_ns);
  const auto part = [held_ns](uint64_t now, uint64_t then) {
    return static_cast<double>(now - then) / held_ns;
  };
  share.earlier_busy_part = share.busy_part;
  share.busy_part = part(share.work.busy_total_ns, share.busy_at_grant_ns);
  share.occupied_part = part(share.work.occupied_total_ns, share.occupied_at_grant_ns);
  if (!KnowsSpeed(share)) share.missed_ns = 0;
  share.gaps_seen_ns = now_ns_;
}

bool TimeSharing::MayCoRun() const {
  int active = 0;
  for (const Share& share : shares_) {
    if (!IsActive(share)) continue;
    ++active;
    const bool pauses = share.occupied_part < kGapsBelow;
    // In two slices: one is worth little, in which it had to wait for what another had yet to
    // finish. Of one that ran no kernels at all no progress could be told.
    const double busy_part = std::max(share.busy_part, share.earlier_busy_part);
    const bool between_launches = share.busy_part > 0 && busy_part < kGapsBelow;
    if (share.occupied_part < 0 || (!pauses && !between_launches)) return false;
    if (Limited(share) || share.gang != GangSlice::kNone) return false;
    if (IsBelowAnother(share) || share.phase == Phase::kStalled) return false;
  }
  return active > 1;
}

bool TimeSharing::ProgressIsShort(const Share& share, double passed_ns) const {
  if (share.busy_at_check_ns == 0 || share.busy_part <= 0) return false;
  const auto made = static_cast<double>(share.work.busy_total_ns - share.busy_at_check_ns);
  return made < kMinProgress * Entitled(share) * share.busy_part * passed_ns;
}

bool TimeSharing::IsNeverIdle(const Share& share, double passed_ns) const {
  const auto occupied =
      static_cast<double>(share.work.occupied_total_ns - share.occupied_at_check_ns);
  return share.phase == Phase::kRunning && occupied > kNoGapsAbove * passed_ns;
}

void TimeSharing::EndCoRun() { co_running_ = false; }

void TimeSharing::StepCoRun() {
  const auto begin_check = [this] {
    co_run_checked_ns_ = now_ns_;
    for (Share& share : shares_) {
      share.busy_at_check_ns = IsActive(share) ? share.work.busy_total_ns : 0;
      share.occupied_at_check_ns = share.work.occupied_total_ns;
    }
  };
  const bool may = MayCoRun();
  if (!co_running_) {
    if (!may || now_ns_ < co_run_after_ns_) return;
    co_running_ = true;
    for (Share& share : shares_) share.alone = false;
    return begin_check();
  }
  const int64_t passed_ns = now_ns_ - co_run_checked_ns_;
  bool short_of_it = false, outdated = false;
  if (passed_ns >= kCoRunCheckNs) {
    const auto passed = static_cast<double>(passed_ns);
    for (Share& share : shares_) {
      if (!IsActive(share)) continue;
      short_of_it = short_of_it || ProgressIsShort(share, passed);
      if (!IsNeverIdle(share, passed)) continue;
      const bool had_pauses = share.occupied_part < kGapsBelow;
      if (!had_pauses && now_ns_ - share.gaps_seen_ns < kBelievedNs) continue;
      share.occupied_part = -1;  // its next slice will tell
      outdated = true;
    }
    begin_check();
    if (!short_of_it) co_run_pause_ns_ = 0;
  }
  if (may && !short_of_it && !outdated) return;
  if (short_of_it) {
    co_run_pause_ns_ = std::clamp(2 * co_run_pause_ns_, kPauseNs, kMaxPauseNs);
    co_run_after_ns_ = now_ns_ + co_run_pause_ns_;
  }
  EndCoRun();
}

}  // namespace prorata::policy
