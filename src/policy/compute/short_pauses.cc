// Short pauses: a share with a request that would be too slow, since it loses its lease in each of
// its pauses, keeps it.
//
// A program that computes on the host between its kernels gives the device to others meanwhile, and
// waits for what those have submitted each time that it is back: for a backlog of 1 ms, or for a
// kernel of theirs. Where its pauses are no longer than that it may have less of its speed than its
// request says. While it has, its members say that they are idle only after a pause that is long.
// The pauses are charged to it, so nobody loses what was promised to him; and as soon as its
// kernels have made good for what was missing, others have its pauses again.

#include <algorithm>
#include <utility>

#include "policy/compute/time_sharing.h"

namespace prorata::policy {
namespace {

// What a share made in a slice of its own tells its speed for so long, and what it has missed is
// forgotten over as long. Longer, a change of its speed is seen late; shorter, shares keep their
// leases more often only to find out.
constexpr double kKnownForNs = 1e9;
// Longer pauses count as so long. Larger, a program that sleeps now and then waits for more short
// pauses until it keeps its lease in them.
constexpr int64_t kMaxPauses = 4;

}  // namespace

// Of the last pauses the longest counts, and less with each after it.
void TimeSharing::NotePause(Share& share) {
  const int64_t idle_from_ns = std::exchange(share.idle_from_ns, kNever);
  if (idle_from_ns > now_ns_) return;
  const int64_t pause_ns = std::min(now_ns_ - idle_from_ns, kMaxPauses * kShortPauseNs);
  const bool longer = share.pause_ns == kNever || pause_ns > share.pause_ns;
  share.pause_ns = longer ? pause_ns : (3 * share.pause_ns + pause_ns) / 4;
}

bool TimeSharing::KnowsSpeed(const Share& share) const {
  return static_cast<double>(now_ns_ - share.gaps_seen_ns) < kKnownForNs;
}

// Its speed alone is what it made in a slice of its own. It is too slow from when it has missed as
// much as it makes in one, so that slices of others alone are no reason, until nothing is missing.
void TimeSharing::NoteProgress(Share& share, double passed_ns) {
  if (share.phase == Phase::kStalled && !share.work.blocked) NotePause(share);
  if (!WasActive(share)) return;
  const double alone = KnowsSpeed(share) ? std::max(share.busy_part, share.earlier_busy_part) : 1;
  if (share.missed_ns > 0) share.missed_ns *= std::max(0.0, 1 - passed_ns / kKnownForNs);
  share.missed_ns += share.terms.request.value() * alone * passed_ns - share.pending_busy_ns;
  const double most = kMaxCreditSlices * SliceNs();
  share.missed_ns = std::clamp(share.missed_ns, -most, most);
  share.too_slow = share.missed_ns > (share.too_slow ? 0 : alone * SliceNs());
}

// Not what runs on several devices: its kernels on one may wait for those on another, which wait
// for their lease there.
bool TimeSharing::KeepsInPauses(const Share& share) const {
  const bool loses_it = share.pause_ns > kIdleReportNs && share.pause_ns <= kShortPauseNs;
  return !free_ && !share.elsewhere && share.too_slow && loses_it;
}

}  // namespace prorata::policy
