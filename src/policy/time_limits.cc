// The bounds of TimeSharing: how much a share may still take, and from when on it may begin again.
//
// A limit is a bucket of device time that fills with wall time at the limit's rate. So is the
// elastic ceiling, one bucket for all shares of the device: everybody's device time is taken out of
// it, and when it is empty, a share may go on only within its own request, which is a bucket, too.
// What a share used above its request puts it no further behind than half a quantum: it was
// allowed.

#include <algorithm>
#include <cmath>

#include "policy/time_sharing.h"

namespace prorata::policy {
namespace {

// A limited share is let in again when it has saved this part of a quantum times its limit.
constexpr double kReopenPart = 0.5;
constexpr double kLeastReopenNs = 500'000;
// A limit's debt is kept, but not for ever: ten seconds of it is somebody's measuring error.
constexpr double kLimitDebtNs = 10e9;

// Until a bucket that fills at `rate` holds `wanted_ns`.
double FillsIn(double wanted_ns, double held_ns, double rate) {
  if (held_ns >= wanted_ns) return 0;
  return rate > 0 ? (wanted_ns - held_ns) / rate : std::numeric_limits<double>::infinity();
}

}  // namespace

bool TimeSharing::Limited(const Share& share) const {
  return share.terms.limit < Fraction::One() || HasCeiling();
}

double TimeSharing::ReopenTokens(double rate) const {
  return std::max(kLeastReopenNs, kReopenPart * rate * static_cast<double>(options_.quantum_ns));
}

bool TimeSharing::HasSaved(const Share& share) const { return SavedAfterNs(share) == 0; }

bool TimeSharing::Eligible(const Share& share) const {
  return share.phase == Phase::kClosed && (!Limited(share) || HasSaved(share));
}

bool TimeSharing::AtLimit(Key key) const {
  const Share* share = Find(key);
  return share != nullptr && Limited(*share) && !HasSaved(*share);
}

// For how long a share that runs alone may go on; what it has launched counts as used.
int64_t TimeSharing::LeftNs(const Share& share) const {
  const auto backlog = static_cast<double>(share.backlog_ns);
  double left = static_cast<double>(options_.quantum_ns);
  if (share.terms.limit < Fraction::One()) {
    left = std::min(left, (share.tokens_ns - backlog) / (1 - share.terms.limit.value()));
  }
  if (HasCeiling()) {
    const double elastic = (elastic_ns_ - backlog) / (1 - options_.elastic_ceiling.value());
    const double requested =
        (share.requested_ns - backlog) / std::max(0.01, 1 - share.terms.request.value());
    left = std::min(left, std::max(elastic, requested));
  }
  return static_cast<int64_t>(std::floor(left));
}

// Until a closed share may be let in again; 0: now.
int64_t TimeSharing::SavedAfterNs(const Share& share) const {
  constexpr double kNearlyNs = 1, kLongestNs = 1e15;
  double wait = 0;
  if (share.terms.limit < Fraction::One()) {
    const double limit = share.terms.limit.value();
    wait = FillsIn(ReopenTokens(limit) - kNearlyNs, share.tokens_ns, limit);
  }
  if (HasCeiling()) {
    const double ceiling = options_.elastic_ceiling.value();
    const double request = share.terms.request.value();
    wait = std::max(
        wait, std::min(FillsIn(ReopenTokens(ceiling) - kNearlyNs, elastic_ns_, ceiling),
                       FillsIn(ReopenTokens(request) - kNearlyNs, share.requested_ns, request)));
  }
  return static_cast<int64_t>(std::ceil(std::min(wait, kLongestNs)));
}

void TimeSharing::CloseWhatIsPastItsLimit() {
  for (Share& share : shares_) {
    if (share.phase == Phase::kOpen && Limited(share) && LeftNs(share) <= 0) Close(share, true);
  }
}

// What is launched and not yet charged for will be taken out: what flows in while it runs fits in
// beyond a quantum, or a bucket with a high rate would run over while a long batch runs, and what
// ran over would be lost. No more than that, for a backlog is an estimate.
void TimeSharing::FillBuckets(double passed_ns) {
  const auto quantum = static_cast<double>(options_.quantum_ns);
  struct Use {
    double taken_ns = 0, coming_ns = 0;
  };
  const auto fill = [&](double held_ns, double rate, const Use& use, double most_owed_ns) {
    const double filled = std::min(held_ns + rate * passed_ns, quantum + rate * use.coming_ns);
    return std::max(filled - use.taken_ns, -most_owed_ns);
  };
  Use together;
  for (Share& share : shares_) {
    const Use use = {share.pending_ns, share.pending_ns + static_cast<double>(share.backlog_ns)};
    together.taken_ns += use.taken_ns;
    together.coming_ns += use.coming_ns;
    share.tokens_ns = fill(share.tokens_ns, share.terms.limit.value(), use, kLimitDebtNs);
    share.requested_ns = fill(share.requested_ns, share.terms.request.value(), use, quantum / 2);
  }
  elastic_ns_ = fill(elastic_ns_, options_.elastic_ceiling.value(), together, kLimitDebtNs);
}

}  // namespace prorata::policy
