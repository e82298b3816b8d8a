// The accounts of TimeSharing: what each share is charged, what it is entitled to, and what it may
// still take of its limit.

#include <algorithm>
#include <cmath>
#include <utility>

#include "policy/compute/time_sharing.h"

namespace prorata::policy {
namespace {

// A limit's bucket is opened again when it is filled to this part. Larger, a limited share runs
// less often and longer; smaller, each of its slices costs a handover.
constexpr double kReopenPart = 0.5;

// What shares of a higher priority leave is taken from what they had for about so long. Longer, a
// change is seen late; shorter, what is left changes with each of their slices.
constexpr double kLatelyNs = 1e9;
// Whoever is below a share that is always busy has a slice in two seconds (kStarvedNs).
constexpr double kMinLeft = 0.0065;

// What members publish is at most this old (the agent looks at all of it ten times a second).
constexpr double kMaxUnclaimedNs = 200e6;
// The bound of the backlog beside a share that stalls: two time slices of the hardware (2 ms on the
// simulated GPU). Smaller, the one that stalls has more than its part of the device.
constexpr int64_t kBesideStalledNs = 4'000'000;

// Until a bucket that fills at `rate` holds `wanted_ns`.
double FillsIn(double wanted_ns, double held_ns, double rate) {
  if (held_ns >= wanted_ns) return 0;
  return rate > 0 ? (wanted_ns - held_ns) / rate : std::numeric_limits<double>::infinity();
}

}  // namespace

void TimeSharing::Observe(Key key, const Work& work) {
  Share* share = Find(key);
  if (share == nullptr) return;
  const auto grown = [](uint64_t now, uint64_t& before) {
    const uint64_t by = now > before ? now - before : 0;  // one that goes back stands still
    before = std::max(before, now);
    return static_cast<double>(by);
  };
  share->pending_busy_ns += grown(work.busy_total_ns, share->work.busy_total_ns);
  share->pending_occupied_ns += grown(work.occupied_total_ns, share->work.occupied_total_ns);
  share->work.backlog_ns = std::max<int64_t>(0, work.backlog_ns);
  share->work.end_ns = work.end_ns;
  share->work.away_ns = work.away_ns;
  share->work.contexts = std::max(1u, work.contexts);
  const bool released = share->work.blocked && !work.blocked && work.backlog_ns > 0;
  share->work.blocked = work.blocked;
  // It pays for what ran meanwhile. That it was not proven idle means nothing.
  if (share->work.stopped && !work.stopped) {
    ChargeLate(*share, share->pending_busy_ns);
    share->pending_busy_ns = share->pending_occupied_ns = 0;
  }
  share->work.stopped = work.stopped;
  if (released && share->phase == Phase::kStalled) {
    share->runnable_ns = share->waits_from_ns = now_ns_;
    share->claims = Claims(*share);
    share->released = share->gang == GangSlice::kNone;
    share->late_ns = share->own_ns = share->measured_ns = 0;
  }
  if (share->phase == Phase::kRunning && share->work.backlog_ns > 0) share->idle_hint = false;
}

// No more than a new share has.
void TimeSharing::ResumeLimit(Key key, double tokens_ns) {
  Share* share = Find(key);
  if (share != nullptr)
    share->limit_tokens_ns = std::clamp(tokens_ns, -kMaxDebtNs, share->limit_tokens_ns);
}

bool TimeSharing::AnyoneWaits() const {
  return std::any_of(shares_.begin(), shares_.end(),
                     [this](const Share& share) { return Waits(share) && Eligible(share); });
}

// With how many contexts a share holds the device, as far as is known.
double TimeSharing::Held(const Share& share, bool waited) const {
  const auto contexts = static_cast<double>(share.work.contexts);
  switch (share.phase) {
    case Phase::kRunning:
      return (share.idle_hint || share.work.stopped) && !waited ? 0 : contexts;
    case Phase::kDraining:
      // It has drained, and keeps the device for what it has elsewhere.
      if (share.gang_drained) return waited ? contexts : 0;
      // It should have drained; if it has not, the time is charged when it stalls, or has.
      return share.idle_hint || share.work.blocked ? 0 : contexts;
    case Phase::kStalled:
      // Nothing is left but a member that cannot say so (it is stopped), or it waits for others.
      return share.work.backlog_ns == 0 || share.work.blocked ? 0 : contexts;
    case Phase::kIdle:
    case Phase::kRunnable:
      return 0;
  }
  return 0;
}

// In the time since the last look: what stalls may have ended, or have come out from behind a wait,
// just now. Not a gang's: its members wait for each other between looks.
double TimeSharing::HeldSince(const Share& share, bool waited) const {
  const bool stalls = share.phase == Phase::kStalled ||
                      (share.phase == Phase::kDraining && share.work.blocked && !share.idle_hint);
  if (stalls && share.gang == GangSlice::kNone)
    return share.was_at_work ? static_cast<double>(share.work.contexts) : 0;
  return Held(share, waited);
}

// Whether what members say they occupied is charged; else whoever holds the device pays for all.
bool TimeSharing::IsCounted(bool waited) const {
  // One that stalls waits for itself.
  const auto matters = [&](const Share& share) {
    return HeldSince(share, waited) > 0 || (Waits(share) && Eligible(share));
  };
  return free_ || co_running_ || std::count_if(shares_.begin(), shares_.end(), matters) <= 1;
}

std::vector<double> TimeSharing::Charges(double passed_ns, bool waited) const {
  std::vector<double> charges(shares_.size());
  double running = 0;
  for (const Share& share : shares_) running += HeldSince(share, waited);
  const bool counted = IsCounted(waited);
  // Members publish now and then: what they say of an earlier time may be more than has passed now.
  const double available_ns = passed_ns + unclaimed_ns_;
  // A co-run set has the device for as long as one of it was not proven idle, and divides that as
  // their kernels ran.
  double busy = 0, occupied = 0;
  for (const Share& share : shares_) {
    busy += share.pending_busy_ns;
    occupied = std::max(occupied, share.pending_occupied_ns);
  }
  double sum = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const Share& share = shares_[i];
    if (co_running_ && busy > 0) {
      charges[i] = share.pending_busy_ns * std::max(1.0, occupied / busy);
    } else if (!counted) {
      const double held = HeldSince(share, waited);
      charges[i] = held > 0 ? passed_ns * held / running : 0;
    } else {
      charges[i] = share.pending_occupied_ns;
    }
    sum += charges[i];
  }
  // All together never more than the wall time.
  if (sum > available_ns) {
    for (double& charge : charges) charge *= available_ns / sum;
  }
  return charges;
}

// What those of higher priorities leave to a share of this one, by what they had of late.
double TimeSharing::LeftTo(int32_t priority) const {
  double left = 1;
  for (const Share& share : shares_) {
    if (share.terms.priority > priority) left -= share.had_lately;
  }
  return std::max(kMinLeft, left);
}

// Of shares of one priority. Requests are parts of the device, so of what is left to that priority
// they come first.
std::vector<double> TimeSharing::EntitledAmong(const std::vector<const Share*>& shares) const {
  std::vector<ComputeTerms> terms;
  for (const Share* share : shares) terms.push_back(share->terms);
  return Entitlements(terms, LeftTo(shares.front()->terms.priority));
}

// To what a share is entitled among those of its priority that are active.
double TimeSharing::Entitled(const Share& share) const {
  std::vector<const Share*> among = {&share};
  for (const Share& other : shares_) {
    const bool same = other.terms.priority == share.terms.priority;
    if (&other != &share && same && IsActive(other)) among.push_back(&other);
  }
  return EntitledAmong(among).front();
}

// In the time since the last look, which may be 100 ms: what has come out from behind a wait just
// now is owed nothing of that.
bool TimeSharing::WasActive(const Share& share) const {
  const bool blocked = share.phase == Phase::kStalled && share.was_blocked && !share.wants_again &&
                       share.gang == GangSlice::kNone;
  return IsActive(share) && !blocked;
}

std::vector<TimeSharing::Class> TimeSharing::Classes() {
  std::vector<Class> classes;
  std::vector<int32_t> priorities;
  for (Share& share : shares_) {
    if (!WasActive(share)) continue;
    const auto at = std::find(priorities.begin(), priorities.end(), share.terms.priority);
    const auto index = static_cast<size_t>(at - priorities.begin());
    if (at == priorities.end()) {
      priorities.push_back(share.terms.priority);
      classes.emplace_back();
    }
    classes[index].active.push_back(&share);
  }
  for (Class& one : classes) {
    one.entitled = EntitledAmong({one.active.begin(), one.active.end()});
    double sum = 0;
    for (const double e : one.entitled) sum += e;
    for (double& e : one.entitled) e = sum > 0 ? e / sum : 0;
  }
  return classes;
}

void TimeSharing::MoveLags(const std::vector<double>& charges) {
  for (const Class& one : Classes()) {
    double delivered = 0;
    for (const Share* share : one.active) {
      delivered += charges[static_cast<size_t>(share - shares_.data())];
    }
    for (size_t i = 0; i < one.active.size(); ++i) {
      Share& share = *one.active[i];
      const double charged = charges[static_cast<size_t>(&share - shares_.data())];
      share.lag_ns = std::max(share.lag_ns + one.entitled[i] * delivered - charged, -kMaxDebtNs);
    }
    // What others owe is no saved-up credit: were it capped, too, their debt would be halved.
    double owed = 0;
    for (const Share* share : one.active) owed += std::max(0.0, -share->lag_ns);
    for (Share* share : one.active) {
      share->lag_ns = std::min(share->lag_ns, kMaxCreditSlices * SliceNs() + owed);
    }
  }
}

// Who is idle forgets what it owes and is owed, as fast as it would have used the device.
void TimeSharing::ForgetLags(double passed_ns) {
  for (Share& share : shares_) {
    const bool forgets = free_ || !WasActive(share);
    if (!forgets || share.lag_ns == 0) continue;
    const double forgotten = Entitled(share) * passed_ns;
    share.lag_ns = share.lag_ns < 0 ? std::min(0.0, share.lag_ns + forgotten)
                                    : std::max(0.0, share.lag_ns - forgotten);
  }
}

void TimeSharing::FillBuckets(const std::vector<double>& charges, double passed_ns) {
  double all = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[i];
    all += charges[i];
    const double limit = share.terms.limit.value();
    // What flows in during the slices of others is not lost.
    const double most = kMaxCreditSlices * SliceNs();
    share.limit_tokens_ns =
        std::clamp(share.limit_tokens_ns + limit * passed_ns - charges[i], -kMaxDebtNs, most);
    // What it has beyond its request while something is left below the ceiling it does not owe.
    const double earned = share.request_tokens_ns + share.terms.request.value() * passed_ns;
    const double floor = ceiling_tokens_ns_ > 0 ? std::min(earned, -SliceNs() / 2) : -kMaxDebtNs;
    share.request_tokens_ns = std::clamp(earned - charges[i], floor, most);
  }
  const double ceiling = options_.elastic_ceiling.value();
  ceiling_tokens_ns_ =
      std::clamp(ceiling_tokens_ns_ + ceiling * passed_ns - all, -kMaxDebtNs, SliceNs());
}

void TimeSharing::Account(int64_t now_ns) {
  if (!started_) now_ns_ = now_ns;
  started_ = true;
  if (now_ns <= now_ns_) return;
  const auto passed_ns = static_cast<double>(now_ns - now_ns_);
  const int64_t from_ns = std::exchange(now_ns_, now_ns);
  const bool waited = AnyoneWaits();
  NoteHeld(from_ns, waited);
  const bool counted = IsCounted(waited);
  const std::vector<double> charges = Charges(passed_ns, waited);
  for (const double charge : charges) unclaimed_ns_ -= charge;
  unclaimed_ns_ = std::clamp(unclaimed_ns_ + passed_ns, 0.0, kMaxUnclaimedNs);
  NoteUncharged(passed_ns, charges);
  // In a co-run set each has its part at least: none owes what it has beyond it.
  if (!co_running_) MoveLags(charges);
  ForgetLags(passed_ns);
  const double kept = std::exp(-passed_ns / kLatelyNs);
  for (size_t i = 0; i < shares_.size(); ++i) {
    double& had = shares_[i].had_lately;
    had = std::min(1.0, kept * had + (1 - kept) * charges[i] / passed_ns);
  }
  FillBuckets(charges, passed_ns);
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[i];
    share.charged_ns += charges[i];
    // What was counted is not paid back: it was not proven idle.
    share.stalled_charge_ns = share.phase == Phase::kStalled && !counted ? charges[i] : 0;
    if (share.phase == Phase::kDraining && !counted) share.drain_charged_ns += charges[i];
  }
  SettleBesideStalled(charges);
  for (Share& share : shares_) {
    NoteProgress(share, passed_ns);
    share.pending_busy_ns = share.pending_occupied_ns = 0;
    share.was_at_work = share.work.backlog_ns > 0 && !share.work.blocked;
    // One that is taken for stopped may have run before it is seen to.
    share.was_blocked = share.work.blocked && !share.work.stopped;
    if (IsAtIt(share)) share.active_ns = now_ns_;
  }
  passed_ns_ = now_ns_ - from_ns;
}

// A share was said to be idle and was not: nothing was charged for that time.
void TimeSharing::ChargeLate(Share& share, double late_ns) {
  const double charge = std::min(late_ns, unclaimed_ns_);  // the rest others have paid for
  unclaimed_ns_ -= charge;
  uncharged_ns_ = std::max(0.0, uncharged_ns_ - charge);
  share.charged_ns += charge;
  share.lag_ns -= late_ns;
  share.limit_tokens_ns -= late_ns;
}

// It had drained by `since_ns`, which is known only now.
void TimeSharing::Refund(Share& share, int64_t since_ns) {
  if (share.phase == Phase::kStalled && passed_ns_ > 0) {
    // Of the time since the last look, the rest.
    const auto late = static_cast<double>(std::clamp(now_ns_ - since_ns, int64_t{0}, passed_ns_));
    const double charge = share.stalled_charge_ns * late / static_cast<double>(passed_ns_);
    share.stalled_charge_ns = 0;
    share.late_ns = std::max(0.0, share.late_ns - charge);
    return MoveCharge(share, -charge);
  }
  const auto drained = static_cast<double>(now_ns_ - share.revoked_ns);
  if (share.phase != Phase::kDraining || drained <= 0) return;
  const auto late = static_cast<double>(now_ns_ - std::clamp(since_ns, share.revoked_ns, now_ns_));
  const double part = late / drained;
  const double charge = part * share.drain_charged_ns;
  share.charged_ns -= charge;
  share.unmeasured_ns -= charge;
  share.beside_ns = std::max(share.given_ns, share.beside_ns - charge);
  share.lag_ns += charge;
  share.request_tokens_ns += charge;
  ceiling_tokens_ns_ += charge;
  share.limit_tokens_ns += charge;
}

bool TimeSharing::Limited(const Share& share) const {
  return share.terms.limit < Fraction::One() || HasCeiling();
}

double TimeSharing::ReopenTokens() const { return kReopenPart * SliceNs(); }

// What a limit leaves of the lease; kNever: no limit ends it.
int64_t TimeSharing::MayRunNs(const Share& running) const {
  if (!Limited(running)) return kNever;
  // Its thread needs the slice to wake, and to launch what the work that does not end waits for.
  if (running.past_limit) return running.granted_ns + options_.slice_ns - now_ns_;
  return TokensLastNs(running);
}

// For how long a running share may go on.
int64_t TimeSharing::TokensLastNs(const Share& share) const {
  double left = std::numeric_limits<double>::infinity();
  if (share.terms.limit < Fraction::One()) {
    left = share.limit_tokens_ns / (1 - share.terms.limit.value());
  }
  if (HasCeiling()) {
    const double elastic = ceiling_tokens_ns_ / (1 - options_.elastic_ceiling.value());
    const double requested =
        share.request_tokens_ns / std::max(0.01, 1 - share.terms.request.value());
    left = std::min(left, std::max(elastic, requested));
  }
  return left > 1e15 ? kNever : static_cast<int64_t>(std::floor(left));
}

// Until a share may be dispatched again; 0: now.
int64_t TimeSharing::TokensAfterNs(const Share& share) const {
  constexpr double kNearlyNs = 1, kLongestNs = 1e15;
  double wait = 0;
  if (share.terms.limit < Fraction::One()) {
    const double limit = share.terms.limit.value();
    wait = FillsIn(ReopenTokens() - kNearlyNs, share.limit_tokens_ns, limit);
  }
  if (HasCeiling()) {
    const double ceiling = options_.elastic_ceiling.value();
    const double request = share.terms.request.value();
    const double until = FillsIn(ReopenTokens() - kNearlyNs, share.request_tokens_ns, request);
    wait = std::max(
        wait, std::min(until, FillsIn(ReopenTokens() - kNearlyNs, ceiling_tokens_ns_, ceiling)));
  }
  return static_cast<int64_t>(std::ceil(std::min(wait, kLongestNs)));
}

// For how long a limit still keeps it from running.
int64_t TimeSharing::LimitedNs(const Share& share) const {
  return Limited(share) && share.phase != Phase::kRunning ? TokensAfterNs(share) : 0;
}

TimeSharing::ShareState TimeSharing::State(Key key) const {
  const Share* asked = Find(key);
  if (asked == nullptr) return {};
  ShareState state;
  state.phase = asked->phase;
  state.entitled = Entitled(*asked);
  state.active = IsActive(*asked);
  state.lag_ns = asked->lag_ns;
  state.charged_ns = asked->charged_ns;
  state.waits = Waits(*asked) || asked->wants_again;
  state.co_running = co_running_ && asked->phase == Phase::kRunning;
  state.stopped = asked->work.stopped;
  state.gang = asked->gang != GangSlice::kNone;
  // Beside one that stalls the device slices: a share needs work there for each slice of its own.
  const bool beside_stalled = std::any_of(shares_.begin(), shares_.end(), [&](const Share& other) {
    return &other != asked && other.phase == Phase::kStalled && Held(other, true) > 0;
  });
  if (beside_stalled) state.backlog_ns = kBesideStalledNs;
  if (KeepsInPauses(*asked)) state.idle_report_ns = kShortPauseNs;
  // Beside what has yet to drain, too.
  const bool beside_drain = std::any_of(shares_.begin(), shares_.end(), [&](const Share& other) {
    return &other != asked && other.phase == Phase::kDraining && Held(other, true) > 0;
  });
  state.in_slices = beside_stalled || asked->phase == Phase::kStalled ||
                    (beside_drain && asked->phase == Phase::kRunning);
  const bool running = asked->phase == Phase::kRunning;
  state.limited_ns = LimitedNs(*asked);
  state.at_limit = state.limited_ns > 0;
  state.limit_tokens_ns = asked->limit_tokens_ns;
  state.idle = running && asked->idle_hint;
  state.closed = running && (asked->launches > 0 || asked->gang == GangSlice::kGather);
  return state;
}

}  // namespace prorata::policy
