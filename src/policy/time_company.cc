// Shares that run together, instead of by turns, because each of them leaves the device idle in
// gaps too short to be told of: who waits for its kernel, and launches the next a moment later.
//
// By turns such a pair has what one of them alone can use. So a share that is seen to leave gaps
// (in a turn of its own it was charged clearly less than the turn took, and never said that it is
// idle) is joined by the next, if that one is seen to leave gaps, too. Each of them keeps but a
// small backlog, so that none waits long for the others' kernels.
//
// Company ends as soon as turns would serve better: when one of them is short of its entitlement,
// when one keeps work queued (it leaves no gaps any more), when somebody waits who cannot join, and
// after half a second in any case; then they are judged again, each in a turn of its own, for in
// company what a share is charged tells of the others, too.

#include <algorithm>

#include "policy/time_sharing.h"

namespace prorata::policy {
namespace {

// A turn this long tells whether a share leaves gaps ...
constexpr double kJudgedQuanta = 0.5;
// ... which it does when it used no more of it than this.
constexpr double kGapsBelow = 0.85;
// Who has more than this queued, beyond what no fence tells of, leaves none.
constexpr int64_t kQueuedNs = 800'000;
constexpr int64_t kLookNs = 5'000'000;
// Short by this much of a quantum, a share has no company; and by this much, it gets none.
constexpr double kShortQuanta = 1.25;
constexpr double kNotShortQuanta = 0.75;

}  // namespace

int TimeSharing::OpenShares() const {
  return static_cast<int>(std::count_if(shares_.begin(), shares_.end(), [](const Share& share) {
    return share.phase == Phase::kOpen;
  }));
}

// At the end of a turn, or of a quantum of one.
void TimeSharing::JudgeGaps(Share& holder) const {
  const auto turn_ns = static_cast<double>(now_ns_ - holder.turn_began_ns);
  if (holder.together || turn_ns < kJudgedQuanta * static_cast<double>(options_.quantum_ns)) return;
  const double used_ns = holder.turn_charged_ns + static_cast<double>(holder.backlog_ns);
  holder.leaves_gaps = !holder.idle && holder.backlog_ns < kQueuedNs && used_ns > 0 &&
                       used_ns < kGapsBelow * turn_ns;
}

bool TimeSharing::MayHaveCompany(const Share& share) const {
  return share.leaves_gaps && share.gang == GangTurn::kNone && !Limited(share) && !share.lifted &&
         !IsStarved(share) && share.backlog_ns < kQueuedNs &&
         share.lag_ns <= kNotShortQuanta * static_cast<double>(options_.quantum_ns);
}

bool TimeSharing::MayJoin(const Share& next) const {
  if (!MayHaveCompany(next)) return false;
  return std::all_of(shares_.begin(), shares_.end(), [&](const Share& other) {
    if (other.phase == Phase::kClosed && !other.wanting) return true;
    if (other.phase == Phase::kPassedOver) return false;
    return other.phase == Phase::kDraining ||
           (other.terms.priority == next.terms.priority && MayHaveCompany(other));
  });
}

void TimeSharing::Join(Share& next) {
  for (Share& share : shares_) {
    if (share.phase == Phase::kOpen) share.together = true;
  }
  if (OpenShares() == 1) company_until_ns_ = now_ns_ + options_.company_ns;
  Open(next);
  next.together = true;
}

// Leaves the one that is furthest behind with a turn of its own, if company is to end.
void TimeSharing::EndCompany() {
  if (OpenShares() < 2) return;
  bool ends = now_ns_ >= company_until_ns_;
  for (Share& share : shares_) {
    if (share.wanting && Eligible(share)) ends |= !MayJoin(share);
    if (share.phase != Phase::kOpen) continue;
    const bool is_short = share.lag_ns > kShortQuanta * static_cast<double>(options_.quantum_ns);
    ends |= is_short || Limited(share) || share.backlog_ns >= kQueuedNs;
    if (share.idle && OpenShares() > 1) Close(share, false);
  }
  Share* behind = nullptr;
  for (Share& share : shares_) {
    if (share.phase != Phase::kOpen) continue;
    if (behind == nullptr || share.lag_ns > behind->lag_ns) behind = &share;
  }
  if (!ends && OpenShares() > 1) return;
  for (Share& share : shares_) {
    if (share.phase != Phase::kOpen) continue;
    share.together = false;
    if (ends) share.leaves_gaps = false;
    if (&share != behind) Close(share, false);
  }
  // Its own turn begins now.
  Open(*behind);
}

int64_t TimeSharing::CompanyDeadline() const {
  return OpenShares() < 2 ? kNever : std::min(company_until_ns_, now_ns_ + kLookNs);
}

// What they are charged in company is from event to event, and the others' time is in it. Together
// they cannot have used more than the time that passed; each pays in proportion.
void TimeSharing::ChargeCompanyOnce(double passed_ns) {
  if (OpenShares() < 2) {
    company_ns_ = 0;
    return;
  }
  const double quantum = static_cast<double>(options_.quantum_ns);
  company_ns_ = std::min(company_ns_ + passed_ns, quantum);
  double sum_ns = 0;
  for (const Share& share : shares_) sum_ns += share.together ? share.pending_ns : 0;
  if (sum_ns <= 0) return;
  const double part = std::min(1.0, company_ns_ / sum_ns);
  for (Share& share : shares_) share.pending_ns *= share.together ? part : 1;
  company_ns_ -= sum_ns * part;
}

}  // namespace prorata::policy
