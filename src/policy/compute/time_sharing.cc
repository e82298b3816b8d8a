#include "policy/compute/time_sharing.h"

#include <algorithm>

namespace prorata::policy {
namespace {

// The next share is dispatched when what a draining one still has to run takes no longer than this:
// about as long as it takes to wake a thread and to launch. Doubled, both run at once for a moment;
// halved, the device idles between them.
constexpr int64_t kHandoverNs = 80'000;
// A share that went idle counts as active for this long: a program that waits for its last kernel
// before it launches again does not lose its lag. Longer, sleepers are entitled to more.
constexpr int64_t kLingerNs = 3'000'000;
// For how long after the last other share was active leases stay contended. Shorter, each pause of
// a neighbour costs two messages.
constexpr int64_t kContendedLingerNs = 20'000'000;
// A share that is short by this many slices ends another's slice. Smaller, slices are cut short.
constexpr double kShortSlices = 1.25;
// A share with a request that wakes is dispatched at once unless it owes more than this.
constexpr double kNoDebtNs = 1'000'000;
// A share in debt waits until a pause of the others has lasted this part of its longest drain.
// Doubled, a share that is owed time loses twice as much by each of its pauses; halved, a share
// with long kernels leaves the device idle for longer.
constexpr int64_t kPausePart = 16;
// Who is entitled to a smaller part of the device than this waits as if it were to this one.
// Smaller, it waits for longer while the device idles; larger, it is back before the other has had
// its part.
constexpr double kMinPart = 0.01;
// Who is granted the lease may have nothing but work behind waits until its thread has woken and
// launched. Shorter, it loses the lease before; longer, others wait for nothing.
constexpr int64_t kWakeUpNs = 500'000;
// A share that seems to be stopped is polled so often. Shorter, the agent wakes more often for one
// that is stopped for long; longer, one that goes on waits for longer.
constexpr int64_t kPollStoppedNs = 52'000'000;
// A share waits for those of higher priority for so long at most, while they leave less than this
// part of the device to turns; then it gets a slice. Where they leave more its own turn comes.
constexpr int64_t kStarvedNs = 2'000'000'000;
constexpr double kNothingLeft = 0.05;
// One that waits for so long gets a slice in any case; if it stalls, also one that is below nobody
// and whatever it owes: what it waits for may be its own next launch. As long as debts are kept, so
// that no kernel that ends is free.
constexpr int64_t kStarvedInAnyCaseNs = 10'000'000'000;
// There is one such slice in so many. Fewer, many shares together take more from the highest
// priority; more, each of many waits for longer.
constexpr int64_t kSlicesForOneStarved = 20;
// No deadline is nearer than this; and a step for what is seen by looking again.
constexpr int64_t kMinStepNs = 30'000;
// Members do not say that what drains is found to stand behind a wait: it is looked for.
constexpr int64_t kDrainStepNs = 1'000'000;

}  // namespace

TimeSharing::Share* TimeSharing::Find(Key key) {
  return const_cast<Share*>(static_cast<const TimeSharing*>(this)->Find(key));
}

const TimeSharing::Share* TimeSharing::Find(Key key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &shares_[found->second];
}

// --- Events -------------------------------------------------------------------------------------

void TimeSharing::Add(Key key, const ComputeTerms& terms, const Work& work, int64_t now_ns) {
  Account(now_ns);
  Share share;
  share.key = key;
  share.terms = terms;
  share.work = work;
  share.added_ns = now_ns;
  share.limit_tokens_ns = ReopenTokens();
  share.request_tokens_ns = ReopenTokens();
  if (shares_.empty()) ceiling_tokens_ns_ = ReopenTokens();
  index_[key] = shares_.size();
  shares_.push_back(share);
}

void TimeSharing::Remove(Key key, int64_t now_ns) {
  Account(now_ns);
  std::erase_if(shares_, [key](const Share& share) { return share.key == key; });
  index_.clear();
  for (size_t i = 0; i < shares_.size(); ++i) index_[shares_[i].key] = i;
}

void TimeSharing::SetTerms(Key key, const ComputeTerms& terms, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return;
  share->terms = terms;
  // A credit under the old limit is none under the new one; a debt stays.
  share->limit_tokens_ns = std::min(share->limit_tokens_ns, ReopenTokens());
}

void TimeSharing::Wanted(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return;
  if (share->phase == Phase::kIdle) {
    // One whose slice was over in a gap between two launches does not wake: it goes on.
    const bool wakes = !(share->taken && IsActive(*share));
    NotePause(*share);
    share->phase = Phase::kRunnable;
    BecomesRunnable(*share, wakes);
    share->claims = wakes && Claims(*share);
  } else if (share->phase == Phase::kDraining || share->phase == Phase::kStalled) {
    const bool waits = share->wants_again || share->phase == Phase::kStalled;
    if (!waits) BecomesRunnable(*share, /*wakes=*/false);
    share->wants_again = true;
  }
}

void TimeSharing::Idle(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share != nullptr && share->phase == Phase::kRunning) share->idle_hint = true;
}

// --- What is seen -------------------------------------------------------------------------------

// It runs, or would if it were let. Not: what has nothing but work behind waits.
bool TimeSharing::IsAtIt(const Share& share) const {
  if (share.phase == Phase::kRunning) return !share.idle_hint;
  const bool blocked = share.phase == Phase::kStalled && share.work.blocked && !share.wants_again &&
                       share.gang == GangSlice::kNone;
  return share.phase != Phase::kIdle && !blocked;
}

bool TimeSharing::IsActive(const Share& share) const {
  if (share.work.stopped) return false;
  return IsAtIt(share) || now_ns_ - share.active_ns < kLingerNs;
}

// A share with a request that wakes is dispatched at once.
bool TimeSharing::Claims(const Share& share) const {
  return share.terms.request > Fraction::Zero() && share.lag_ns >= -kNoDebtNs;
}

bool TimeSharing::IsFree() const {
  if (HasCeiling()) return false;
  const Share* first = nullptr;
  for (const Share& share : shares_) {
    if (!IsActive(share)) continue;
    if (first == nullptr) first = &share;
    // Whoever is above them may come at any moment, and waits for what all of them have submitted.
    if (IsBelowAnother(share)) return false;
    const bool plain = share.terms.request == Fraction::Zero() && !Limited(share) &&
                       share.gang == GangSlice::kNone;
    if (!plain || share.terms.priority != first->terms.priority ||
        share.terms.weight != first->terms.weight) {
      return false;
    }
  }
  return true;
}

bool TimeSharing::IsBelowAnother(const Share& share) const {
  return std::any_of(shares_.begin(), shares_.end(), [&share](const Share& other) {
    return other.terms.priority > share.terms.priority;
  });
}

bool TimeSharing::Waits(const Share& share) const {
  if (share.phase == Phase::kRunnable) return true;
  // One that stalls would rather have the device for itself, whether it launches again or not.
  const bool runs = share.work.backlog_ns > 0 && !share.work.blocked;
  return share.phase == Phase::kStalled && (share.wants_again || runs);
}

// Of what those of higher priorities leave to it, what others that stall do not have anyway.
double TimeSharing::LeftToTurns(const Share& share) const {
  double left = LeftTo(share.terms.priority);
  for (const Share& other : shares_) {
    const bool stalls = other.phase == Phase::kStalled && &other != &share;
    if (stalls && other.terms.priority <= share.terms.priority) left -= other.had_lately;
  }
  return left;
}

// From when on a share that waits starves.
int64_t TimeSharing::StarvesAtNs(const Share& share) const {
  const bool below = IsBelowAnother(share);
  if (!below && share.phase != Phase::kStalled && !share.work.stopped) return kNever;
  const bool nothing_left = below && LeftToTurns(share) < kNothingLeft;
  const int64_t at_ns = share.waits_from_ns + (nothing_left ? kStarvedNs : kStarvedInAnyCaseNs);
  // A gang needs all its devices at a time, and the one slice in so many is seldom there on all.
  if (share.gang != GangSlice::kNone) return at_ns;
  return std::max(at_ns, boosted_ns_ + kSlicesForOneStarved * options_.slice_ns);
}

bool TimeSharing::Starves(const Share& share) const {
  return Waits(share) && now_ns_ >= StarvesAtNs(share);
}

bool TimeSharing::Eligible(const Share& share) const {
  if (!Waits(share)) return false;
  // Its gang's kernels on other devices wait for them.
  if (share.gang == GangSlice::kCatchUp) return share.launches > 0;
  if ((share.work.stopped || IsAway(share)) && !Starves(share)) return false;
  const bool too_long = share.phase == Phase::kStalled && Starves(share);
  if (PauseLeftNs(share) > 0 && !HasTurn(share)) return false;
  return !Limited(share) || too_long || TokensAfterNs(share) == 0;
}

// A share with long kernels that owes time to others does not use a short pause of theirs: it would
// keep the device for long after they are back. Answers for how long it still has to wait; no more
// once another such drain is no more than its own part of the time for which it has waited.
int64_t TimeSharing::PauseLeftNs(const Share& share) const {
  if (share.lag_ns >= -SliceNs() || Starves(share)) return 0;
  int64_t left_ns = 0;
  for (const Share& other : shares_) {
    const bool owed = &other != &share && other.terms.priority == share.terms.priority &&
                      other.lag_ns > share.lag_ns && !Waits(other);
    // A limited one was revoked for its pause, any other because somebody uses that already.
    const bool drains_in_pause =
        other.idle_hint && Limited(other) && other.gang == GangSlice::kNone;
    const bool paused = other.phase == Phase::kDraining ? drains_in_pause : !IsAtIt(other);
    if (!owed || !paused) continue;
    const int64_t until_ns = other.active_ns + share.longest_drain_ns / kPausePart;
    left_ns = std::max(left_ns, until_ns - now_ns_);
  }
  if (left_ns == 0) return 0;
  const double part = std::max(kMinPart, Entitled(share));
  const auto waits_ns = static_cast<int64_t>(static_cast<double>(share.longest_drain_ns) / part);
  return std::clamp<int64_t>(share.runnable_ns + waits_ns - now_ns_, 0, left_ns);
}

// Whoever has waited for too long is above all, and has one slice for it.
int64_t TimeSharing::RankOf(const Share& share) const {
  return share.boosted || Starves(share) ? kNever : share.terms.priority;
}

TimeSharing::Share* TimeSharing::Running() {
  const auto running = std::find_if(shares_.begin(), shares_.end(), [](const Share& share) {
    return share.phase == Phase::kRunning;
  });
  return running == shares_.end() ? nullptr : &*running;
}

// --- Dispatch -----------------------------------------------------------------------------------

bool TimeSharing::IsBefore(const Share& share, const Share& other) const {
  const int64_t rank = RankOf(share), of_other = RankOf(other);
  if (rank != of_other) return rank > of_other;
  if (rank != kNever) {
    if (share.claims != other.claims) return share.claims;
    if (share.lag_ns != other.lag_ns) return share.lag_ns > other.lag_ns;
  }
  return share.runnable_ns < other.runnable_ns;
}

TimeSharing::Share* TimeSharing::Best(bool gangs_too) {
  Share* best = nullptr;
  Share* on = nullptr;
  for (Share& share : shares_) {
    if (!Eligible(share)) continue;
    if (share.gang == GangSlice::kCatchUp) return &share;
    if (share.gang == GangSlice::kAway && !gangs_too) continue;
    if (HasTurn(share) && on == nullptr) on = &share;
    if (best == nullptr || IsBefore(share, *best)) best = &share;
  }
  return on != nullptr ? on : best;
}

// A gang that all its devices have agreed on.
bool TimeSharing::HasTurn(const Share& share) {
  return share.gang == GangSlice::kGather || share.gang == GangSlice::kOn || share.launches > 0;
}

// Its members are idle, or have nothing but work behind waits and have had the time to launch more.
bool TimeSharing::DoesNothing(const Share& running) const {
  const bool blocked = running.work.blocked && running.work.backlog_ns > 0;
  return running.idle_hint || (blocked && now_ns_ - running.granted_ns >= kWakeUpNs);
}

// It is owed so much that it does not wait for the end of the other's slice.
bool TimeSharing::IsShort(const Share& share, const Share& other) const {
  return share.lag_ns > std::max(SliceNs(), other.lag_ns + kShortSlices * SliceNs());
}

bool TimeSharing::MustYield(const Share& running, const Share& next) const {
  if (running.gang == GangSlice::kCatchUp || running.gang == GangSlice::kGather) return false;
  if (DoesNothing(running) || HasTurn(next)) return true;
  if (IsAway(running) && now_ns_ - running.granted_ns >= kWakeUpNs) return true;
  const int64_t rank = RankOf(running), next_rank = RankOf(next);
  const bool slice_over = now_ns_ - running.granted_ns >= options_.slice_ns;
  if (running.boosted) return slice_over;
  if (next_rank != rank) return next_rank > rank;
  if (next.claims && !running.claimed) return true;
  // It has paid for the time in which it gathered.
  const bool has_turn = running.gathered && !slice_over;
  return (!has_turn && IsShort(next, running)) || (slice_over && next.lag_ns > running.lag_ns);
}

void TimeSharing::Grant(Share& share) {
  share.boosted = Starves(share);
  if (share.boosted) boosted_ns_ = now_ns_;
  share.past_limit = share.boosted && share.phase == Phase::kStalled;
  if (share.phase == Phase::kStalled) {
    share.longest_drain_ns = std::max(share.longest_drain_ns, now_ns_ - share.revoked_ns);
  }
  share.phase = Phase::kRunning;
  share.granted_ns = share.active_ns = now_ns_;
  share.alone = !free_ && !co_running_;
  share.busy_at_grant_ns = share.work.busy_total_ns;
  share.occupied_at_grant_ns = share.work.occupied_total_ns;
  share.claimed = share.claims;
  share.claims = share.wants_again = share.idle_hint = share.gang_drained = false;
  share.deadline_ns = share.idle_from_ns = kNever;
  share.unmeasured_ns = std::min(0.0, share.unmeasured_ns);  // what it owes stays
  share.beside_ns = share.given_ns = 0;
}

// Nothing is promised to anybody: all hold their leases.
void TimeSharing::CoRun() {
  for (Share& share : shares_) {
    share.alone = false;
    if (share.phase == Phase::kRunning || share.work.stopped) continue;
    const bool plain = share.terms.request == Fraction::Zero() && !Limited(share) &&
                       share.gang == GangSlice::kNone;
    if (!plain && !Waits(share)) continue;
    const bool idle = share.phase == Phase::kIdle;
    const int64_t active_ns = share.active_ns;
    Grant(share);
    share.idle_hint = idle;
    if (idle) share.active_ns = active_ns;
  }
}

void TimeSharing::Schedule() {
  for (Share& share : shares_) {
    if (share.phase != Phase::kRunning || !Limited(share)) continue;
    if (share.gang == GangSlice::kCatchUp) continue;  // for a few launches
    if (MayRunNs(share) <= 0 || DoesNothing(share)) Revoke(share);
  }
  StepCoRun();
  Share* best = Best();
  if (co_running_) {
    for (; best != nullptr; best = Best()) Grant(*best);
    return;
  }
  // Those that held leases together a moment ago: one may go on.
  Share* running = nullptr;
  for (Share& share : shares_) {
    if (share.phase != Phase::kRunning) continue;
    if (running == nullptr) {
      running = &share;
      continue;
    }
    const bool better = running->idle_hint || (!share.idle_hint && share.lag_ns > running->lag_ns);
    Revoke(better ? *running : share);
    if (better) running = &share;
  }
  if (best == nullptr) return;
  if (running != nullptr && MustYield(*running, *best)) {
    Revoke(*running);
    running = nullptr;
  }
  if (running == nullptr && RemainingNs() <= kHandoverNs) Grant(*best);
}

// It need not ask. A limited one does: from the grant on it may run only for as long as its bucket
// lasts.
void TimeSharing::GrantToWhoIsAlone() {
  if (shares_.size() != 1) return;
  Share& share = shares_.front();
  if (share.phase != Phase::kIdle || share.gang == GangSlice::kAway || Limited(share)) return;
  const int64_t active_ns = share.active_ns;
  Grant(share);
  share.idle_hint = true;
  share.active_ns = active_ns;
}

TimeSharing::Decisions TimeSharing::Decide(int64_t now_ns) {
  Account(now_ns);
  StallLateDrains();
  GrantToWhoIsAlone();
  free_ = IsFree();
  if (free_) {
    EndCoRun();
    CoRun();
  } else {
    Schedule();
    if (!Running()) Schedule();  // what was revoked may have been in the way
  }
  Decisions decisions;
  MarkContended(decisions);
  Collect(decisions);
  decisions.next_ns = std::min(decisions.next_ns, NextDeadline());
  return decisions;
}

// --- What is carried out, and when to poll again ------------------------------------------------

// While others are active members bound their backlog and say when they are idle.
void TimeSharing::MarkContended(Decisions& decisions) {
  for (Share& share : shares_) {
    if (share.phase != Phase::kRunning || share.launches > 0) continue;
    bool contended = !free_ && (Limited(share) || IsBelowAnother(share));
    for (const Share& other : shares_) {
      if (&other == &share || free_) continue;
      const int64_t until_ns = other.active_ns + kContendedLingerNs;
      const bool there =
          other.phase != Phase::kIdle && !(other.phase == Phase::kRunning && other.idle_hint);
      contended = contended || there || now_ns_ < until_ns;
      if (!there && now_ns_ < until_ns) decisions.next_ns = std::min(decisions.next_ns, until_ns);
    }
    if (share.issued_open && share.issued_contended == contended) continue;
    share.issued_contended = contended;
    share.issued_open = false;  // issued again
  }
}

bool TimeSharing::IsOpen(const Share& share) {
  return share.phase == Phase::kRunning && share.gang != GangSlice::kGather;
}

void TimeSharing::Collect(Decisions& decisions) {
  for (const bool opening : {false, true}) {
    for (Share& share : shares_) {
      const bool open = IsOpen(share);
      if (open != opening || share.issued_open == open) continue;
      share.issued_open = open;
      const uint32_t launches = open ? share.launches : 0;
      decisions.changes.push_back({share.key, open, open && share.issued_contended, launches});
    }
  }
}

// When `next` will have the larger lag, if nothing else happens. Past the end of a slice that did
// not end for it, time alone changes nothing: a gang that is away, say.
int64_t TimeSharing::NextYield(const Share& running, const Share& next) const {
  const int64_t over_ns = running.granted_ns + options_.slice_ns;
  if (RankOf(next) != RankOf(running) || running.boosted || next.lag_ns > running.lag_ns) {
    return over_ns > now_ns_ ? over_ns : kNever;
  }
  // The one that runs pays all of the time, and both earn what they are entitled to.
  const std::vector<double> entitled = EntitledAmong({&running, &next});
  const double pays = entitled[1] / (entitled[0] + entitled[1]) + 0.01;
  const auto crossed_ns = static_cast<int64_t>((running.lag_ns - next.lag_ns) / pays);
  return std::max(over_ns, now_ns_ + std::min(crossed_ns / 2 + kMinStepNs, options_.slice_ns));
}

int64_t TimeSharing::NextDeadline() {
  int64_t next_ns = kNever;
  const auto by = [&](int64_t when_ns) { next_ns = std::min(next_ns, when_ns); };
  const Share* best = Best(/*gangs_too=*/true);
  const Share* plain = Best();
  for (const Share& share : shares_) {
    if (share.phase == Phase::kDraining && !share.gang_drained) {
      by(std::min(share.deadline_ns, AwayNs(share)));
    }
    if (share.phase == Phase::kRunning && !free_) {
      if (best != nullptr && !co_running_) by(NextYield(share, *best));
      if (plain != nullptr && !co_running_) by(NextYield(share, *plain));
      // Whether it still does anything.
      if (best != nullptr && RankOf(share) > RankOf(*best)) by(now_ns_ + options_.slice_ns);
      if (share.work.blocked) by(std::max(share.granted_ns + kWakeUpNs, now_ns_ + kMinStepNs));
      const int64_t left_ns = MayRunNs(share);
      if (!share.idle_hint && left_ns != kNever) by(now_ns_ + std::max(kMinStepNs, left_ns));
    }
    if (share.work.stopped || IsAway(share)) {
      by(now_ns_ + kPollStoppedNs);
    } else if (Waits(share) && !Eligible(share)) {
      by(now_ns_ + std::max(TokensAfterNs(share), PauseLeftNs(share)));
    }
    if (Waits(share) && !Starves(share)) {
      by(StarvesAtNs(share));
      // What those above leave is looked at again.
      const int64_t again_ns = std::max(share.waits_from_ns, now_ns_ - kStarvedNs / 2) + kStarvedNs;
      if (IsBelowAnother(share)) by(again_ns);
    }
    const bool idle =
        share.phase == Phase::kIdle || (share.phase == Phase::kRunning && share.idle_hint);
    if (idle && IsActive(share) && !free_) by(share.active_ns + kLingerNs);
  }
  if (best != nullptr && !free_ && RemainingNs() != kNever && RemainingNs() > 0) {
    by(now_ns_ + std::clamp(RemainingNs() - kHandoverNs, kMinStepNs, kDrainStepNs));
  }
  if (co_running_) by(co_run_checked_ns_ + kCoRunCheckNs);
  return next_ns == kNever ? kNever : std::max(next_ns, now_ns_ + 1);
}

const char* TimeSharing::CheckInvariants() const {
  int running = 0;
  for (const Share& share : shares_) {
    running += share.phase == Phase::kRunning;
    // More was given back than was paid. Rounding apart.
    if (share.charged_ns < -1'000) return "a share was charged less than nothing";
    const bool drains = share.phase == Phase::kDraining;
    if (drains != (share.deadline_ns != kNever)) return "a deadline that follows from no state";
    if (share.issued_open != IsOpen(share)) return "a lease that is not issued";
  }
  if (running > 1 && !free_ && !co_running_) return "two shares run on a scheduled device";
  if (Idles()) return "a share could run, and none does";
  return nullptr;
}

}  // namespace prorata::policy
