// What is charged beside a share that stalls. Others run beside it, and whoever holds the device
// pays an equal part of the time at first, as the hardware divides it among those that are busy. A
// program with short kernels that waits for each of them is not: beside a long kernel it has a
// twentieth of the device, not half. So a share that measured less than it paid pays what it
// measured, and the one that stalls, which nobody has measured yet, pays the rest. Never the other
// way round: what a member measures beside others has some of their time in it.

#include <algorithm>
#include <utility>

#include "policy/compute/time_sharing.h"

namespace prorata::policy {

bool TimeSharing::PaysTheRest(const Share& share) const {
  return share.phase == Phase::kStalled && HeldSince(share, true) > 0;
}

// What it measures tells what it pays. Beside one that came out from behind a wait it pays what the
// other did not measure.
bool TimeSharing::IsBesideStalled(const Share& share) const {
  const auto pays_the_rest = [this](const Share& other) {
    return PaysTheRest(other) && !other.released;
  };
  return !PaysTheRest(share) && std::any_of(shares_.begin(), shares_.end(), pays_the_rest);
}

// It stalls, and others that have leases run beside it.
bool TimeSharing::RunsBeside(const Share& share) const {
  return PaysTheRest(share) && std::any_of(shares_.begin(), shares_.end(), [&](const Share& other) {
           return other.phase != Phase::kStalled && HeldSince(other, false) > 0;
         });
}

void TimeSharing::NoteReleased(const std::vector<double>& charges) {
  bool any_released = false, any_beside = false;
  for (const Share& share : shares_) {
    any_released = any_released || share.released;
    any_beside = any_beside || (share.released && RunsBeside(share));
  }
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[i];
    if (!any_released) share.beside_late_ns = 0;
    if (any_beside && share.phase != Phase::kStalled) share.beside_late_ns += charges[i];
    if (!share.released) continue;
    (RunsBeside(share) ? share.late_ns : share.own_ns) += charges[i];
    share.measured_ns += share.pending_busy_ns;
  }
  for (Share& share : shares_) {
    const bool blocked = share.work.blocked && !share.work.stopped;
    if (blocked && share.phase == Phase::kStalled && share.was_at_work) SettleReleased(share);
  }
}

// A short kernel that came out from behind a wait while others ran had to wait for slices of
// theirs, and its share was charged for that. In all it pays no more than its members measured, and
// no less than it was charged while nobody ran beside it; the others pay the rest.
void TimeSharing::SettleReleased(Share& share) {
  if (!std::exchange(share.released, false)) return;
  const double rest_ns = share.late_ns - std::max(0.0, share.measured_ns - share.own_ns);
  double beside_ns = 0;
  for (const Share& other : shares_) beside_ns += &other == &share ? 0 : other.beside_late_ns;
  if (rest_ns <= 0 || beside_ns <= 0) return;
  for (Share& other : shares_) {
    if (&other != &share) MoveCharge(other, rest_ns * other.beside_late_ns / beside_ns);
  }
  MoveCharge(share, -rest_ns);
}

// Members publish what they measured when a batch is done, of which some may have run before the
// other stalled, or may be published late: what was charged since they last did so before it
// counts, too, and what was given back too early is taken again from those that paid it.
void TimeSharing::SettleBesideStalled(const std::vector<double>& charges) {
  double contexts = 0, paid_ns = 0, rest_ns = 0;
  for (const Share& share : shares_) {
    if (!PaysTheRest(share)) continue;
    contexts += static_cast<double>(share.work.contexts);
    paid_ns += share.paid_rest_ns;
  }
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[i];
    share.unmeasured_ns += charges[i] - share.pending_busy_ns;
    if (contexts > 0) share.beside_ns += charges[i];
    // Until its members publish, it is not known what they measured.
    const bool published = share.pending_busy_ns > 0;
    if (published && contexts > 0 && !PaysTheRest(share)) {
      const double given_ns = std::clamp(share.unmeasured_ns, 0.0, share.beside_ns);
      const double wanted_ns = given_ns - std::exchange(share.given_ns, given_ns);
      const double by_ns = std::max(wanted_ns, -paid_ns - rest_ns);
      rest_ns += by_ns;
      MoveCharge(share, -by_ns);
      // It is not given back once more when it is seen to have drained (Refund).
      share.drain_charged_ns = std::max(0.0, share.drain_charged_ns - std::max(0.0, by_ns));
    }
    const bool idles = share.phase == Phase::kRunning && share.idle_hint;
    if (PaysTheRest(share) || idles || (published && contexts == 0))
      share.unmeasured_ns = share.beside_ns = share.given_ns = 0;
  }
  for (Share& share : shares_) {
    if (rest_ns == 0 || !PaysTheRest(share)) continue;
    const double part = rest_ns > 0 ? static_cast<double>(share.work.contexts) / contexts
                                    : share.paid_rest_ns / paid_ns;
    share.paid_rest_ns += part * rest_ns;
    MoveCharge(share, part * rest_ns);
  }
  NoteReleased(charges);
}

void TimeSharing::MoveCharge(Share& share, double by_ns) {
  share.charged_ns += by_ns;
  share.lag_ns = std::max(share.lag_ns - by_ns, -kMaxDebtNs);
  share.limit_tokens_ns = std::max(share.limit_tokens_ns - by_ns, -kMaxDebtNs);
  share.request_tokens_ns = std::max(share.request_tokens_ns - by_ns, -kMaxDebtNs);
}

}  // namespace prorata::policy
