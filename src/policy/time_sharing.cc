#include "policy/time_sharing.h"

#include <algorithm>

namespace prorata::policy {
namespace {

constexpr int64_t kStepNs = 200'000;  // a turn near its end is looked at this often
// A turn of which no more than this would be left is over: another kernel may take long.
constexpr int64_t kTurnRestNs = 300'000;
// A draining share this often, if it does not say when it should have drained: what it reports is
// too much by what has run of its oldest batch.
constexpr int64_t kDrainStepNs = 400'000;
constexpr int64_t kLeastDrainStepNs = 30'000;
// A gang's this often, whoever waits: what stands still there is let go on soon (gangs.cc).
constexpr int64_t kGangDrainStepNs = 200'000;
// Drained by so much later than its backlog said (word of it takes a quarter of a millisecond), a
// share's estimates are not to be gone by: for so many turns at most the next one waits for its
// word.
constexpr int64_t kLateDrainNs = 600'000;
constexpr int kMostDistrust = 8;
// What a member keeps queued beyond the bound of what is fenced; and the least such bound.
constexpr int64_t kUnfencedNs = 1'000'000;
constexpr int64_t kLeastBacklogNs = 500'000;
// The most queued under an elastic ceiling: as under a limit (agent/share_time.cc).
constexpr int64_t kCeilingBacklogNs = 5'000'000;
// Passed over for so long, a share has a kernel that is long indeed: others must live with it.
constexpr int64_t kLongPassedOverNs = 500'000'000;
// Above all lags: for whom the last turn was ended.
constexpr double kPromised = 1e12;
constexpr int64_t kLimitStepNs = 500'000;  // and a limit near exhaustion this often
// A share short by this many quanta is let in before the holder's turn is over.
constexpr double kShortQuanta = 1.25;
// What a share uses of a turn that has no gaps.
constexpr double kBusyPart = 0.75;
// In debt by no more than this many quanta counts as not in debt.
constexpr double kNoDebtQuanta = 0.05;

}  // namespace

TimeSharing::Share* TimeSharing::Find(Key key) {
  for (Share& share : shares_) {
    if (share.key == key) return &share;
  }
  return nullptr;
}

const TimeSharing::Share* TimeSharing::Find(Key key) const {
  return const_cast<TimeSharing*>(this)->Find(key);
}

std::vector<TimeSharing::Key> TimeSharing::Shares() const {
  std::vector<Key> keys;
  for (const Share& share : shares_) keys.push_back(share.key);
  return keys;
}

void TimeSharing::Add(Key key, const ComputeTerms& terms, uint64_t charged_total_ns,
                      int64_t now_ns) {
  Account(now_ns);
  Share share;
  share.key = key;
  share.terms = terms;
  share.charged_total_ns = charged_total_ns;
  share.quantum_ns = options_.quantum_ns;
  share.hungry_since_ns = now_ns_;
  share.tokens_ns = ReopenTokens(share.terms.limit.value());
  shares_.push_back(share);
}

void TimeSharing::Remove(Key key, int64_t now_ns) {
  Account(now_ns);
  std::erase_if(shares_, [key](const Share& share) { return share.key == key; });
}

void TimeSharing::SetTerms(Key key, const ComputeTerms& terms, int64_t now_ns) {
  Account(now_ns);
  if (Share* share = Find(key)) share->terms = terms;
}

void TimeSharing::Wanted(Key key, int64_t now_ns) {
  Share* share = Find(key);
  if (share == nullptr || share->phase == Phase::kOpen || share->wanting) return;
  Account(now_ns);
  share->wanting = true;
  share->wanting_since_ns = now_ns_;
  if (share->idle || share->fed_ns >= options_.quantum_ns / 2) {
    share->hungry_since_ns = now_ns_;
    share->fed_ns = 0;
  }
  share->active_ns = now_ns_;
  share->woke = share->idle;
  share->idle = false;
}

void TimeSharing::Idle(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return;
  if (share->phase == Phase::kDraining || share->phase == Phase::kPassedOver) EndDrain(*share);
  if (!share->idle) share->active_ns = now_ns_;
  share->wanting = false;
  share->idle = true;
  share->backlog_ns = 0;
}

void TimeSharing::Drained(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return;
  if (share->gang != GangTurn::kNone && share->phase == Phase::kDraining && share->occupies) {
    share->drained = true;
    return;
  }
  if (share->phase == Phase::kDraining || share->phase == Phase::kPassedOver) EndDrain(*share);
}

void TimeSharing::DrainedSince(Key key, int64_t drained_ns) {
  Share* share = Find(key);
  if (share == nullptr || share->phase != Phase::kDraining || share->occupies) return;
  share->drained_since_ns = std::max(drained_ns, share->closed_ns);
}

// Nor is it to be let in before the other's turn is over: it owes, has no claim by having woken,
// is not above the other, and that is not idle. Whether it wants another turn is seen then, if it
// is not known.
bool TimeSharing::DrainUnawaited(Key key) const {
  const Share* share = Find(key);
  return share != nullptr && share->phase == Phase::kDraining && !share->occupies &&
         (share->wanting || share->was_busy) && !share->woke && share->lag_ns <= 0 &&
         share->gang == GangTurn::kNone &&
         std::any_of(shares_.begin(), shares_.end(), [&](const Share& other) {
           return other.phase == Phase::kOpen && !other.idle && RankOf(other) >= RankOf(*share);
         });
}

bool TimeSharing::DrainForeseen(Key key) const {
  const Share* share = Find(key);
  return share != nullptr && share->phase == Phase::kDraining && share->occupies &&
         have_successor_ && share->distrust == 0 && share->gang == GangTurn::kNone &&
         share->expected_end_ns != kNever;
}

bool TimeSharing::Draining(Key key) const {
  const Share* share = Find(key);
  return share != nullptr &&
         (share->phase == Phase::kDraining || share->phase == Phase::kPassedOver);
}

void TimeSharing::Open(Share& share) {
  share.lifted = IsStarved(share) && IsBelowAnother(share);
  share.phase = Phase::kOpen;
  share.idle = share.idle && !share.wanting;
  share.wanting = false;
  share.woke = false;
  share.opened_ns = now_ns_;
  share.turn_began_ns = now_ns_;
  share.active_ns = now_ns_;
  share.turn_charged_ns = 0;
  // What it ran before is charged for, but for what no fence was behind: the rest of the time that
  // it was let in for it did not use. A gang's last kernels may have waited for peers until now.
  if (share.gang == GangTurn::kNone) {
    share.possible_ns = std::min(share.possible_ns, static_cast<double>(kUnfencedNs));
  }
}

void TimeSharing::Close(Share& share, bool occupies) {
  const auto turn_ns = static_cast<double>(now_ns_ - share.turn_began_ns);
  const double used_ns = share.turn_charged_ns + static_cast<double>(share.backlog_ns);
  share.was_busy = !share.idle && used_ns >= kBusyPart * turn_ns;
  share.lifted = share.together = false;
  share.phase = Phase::kDraining;
  share.occupies = occupies;
  share.drained = false;
  share.closed_ns = now_ns_;
  share.fed_ns += now_ns_ - share.turn_began_ns;
  share.closing_backlog_ns = share.backlog_ns;
  share.active_ns = now_ns_;
  share.drained_at_ns = kNever;
  share.drain_by_ns = now_ns_ + share.backlog_ns + options_.drain_grace_ns;
  share.turn_charged_ns = 0;  // from here on: what it took after it was called back
}

// An end may be late for once: one drain is waited for. One that is late again and again is.
void TimeSharing::Trust(Share& share, bool in_time) {
  if (!in_time) {
    share.distrust = share.next_distrust;
    share.next_distrust = std::min(kMostDistrust, 2 * share.next_distrust);
  } else if (share.distrust > 0) {
    --share.distrust;
  } else {
    share.next_distrust = std::max(1, share.next_distrust - 1);
  }
}

void TimeSharing::EndDrain(Share& share) {
  const int64_t drained_ns = std::min(now_ns_, share.drained_since_ns);
  if (share.drained_at_ns != kNever) {
    const bool late = drained_ns - share.drained_at_ns > kLateDrainNs;
    Trust(share, !late);
  }
  share.phase = Phase::kClosed;
  share.occupies = share.drained = false;
  share.active_ns = drained_ns;
  share.drained_since_ns = kNever;
  share.last_turn_ns = static_cast<double>(options_.quantum_ns) + share.turn_charged_ns;
}

void TimeSharing::PassOverLateDrainers() {
  for (Share& share : shares_) {
    if (share.phase != Phase::kDraining || now_ns_ < share.drain_by_ns) continue;
    if (share.drained) {
      EndDrain(share);  // the rest of its gang has not, on its devices
      continue;
    }
    const double held = static_cast<double>(now_ns_ - share.closed_ns) - share.turn_charged_ns;
    if (share.occupies && held > 0) {
      share.pending_ns += held;
      share.provisional_ns += held;
    }
    share.phase = Phase::kPassedOver;
    share.occupies = false;
  }
}

TimeSharing::Share* TimeSharing::Occupant() {
  for (Share& share : shares_) {
    if (share.phase == Phase::kOpen || (share.phase == Phase::kDraining && share.occupies)) {
      return &share;
    }
  }
  return nullptr;
}

bool TimeSharing::IsStarved(const Share& share) const {
  return share.wanting && now_ns_ - share.hungry_since_ns >= options_.starved_ns;
}

// Whoever has waited too long, or holds the device for that, is above all.
int64_t TimeSharing::RankOf(const Share& share) const {
  return share.lifted || IsStarved(share) ? kNever : share.terms.priority;
}

bool TimeSharing::IsBelowAnother(const Share& share) const {
  return std::any_of(shares_.begin(), shares_.end(), [&share](const Share& other) {
    return other.terms.priority > share.terms.priority;
  });
}

int64_t TimeSharing::ContendedBacklogNs(Key key) const {
  const Share* asked = Find(key);
  int64_t bound_ns = options_.backlog_contended_ns;
  if (asked == nullptr) return bound_ns;
  // Beside a kernel that does not end everything takes longer, and what is queued is measured by
  // that; a program must have work there for each of the device's time slices that is its own.
  for (const Share& share : shares_) {
    const bool passed_over = share.phase == Phase::kPassedOver;
    if (passed_over && now_ns_ - share.closed_ns >= kLongPassedOverNs) {
      bound_ns += options_.backlog_contended_ns;
    }
  }
  if (asked->together) bound_ns = kLeastBacklogNs;
  for (const Share& share : shares_) {
    if (share.terms.priority <= asked->terms.priority) continue;
    // Beyond what is fenced, a batch may be under way, and another may just have passed the bound.
    const int64_t fenced_ns = share.terms.yield_within_ns - kUnfencedNs;
    bound_ns = std::min(bound_ns, std::max(kLeastBacklogNs, fenced_ns));
  }
  return bound_ns;
}

// Under a ceiling a share is called back when the bucket is empty, and what flows into that while
// it drains, beyond what it holds, is lost: a queue must be short beside it.
int64_t TimeSharing::MostBacklogNs() const { return HasCeiling() ? kCeilingBacklogNs : kNever; }

// Who is next: the highest priority, and in it the largest lag, a share that just woke and has a
// claim going before; the longest wait between equals. What a share launched and was not yet
// charged for counts as used, here as in TurnIsOver: measured by two measures, a share could be the
// next and past its turn at once, and be opened and closed for ever while the device idles.
TimeSharing::Share* TimeSharing::Best(bool gangs_too) {
  const auto quantum = static_cast<double>(options_.quantum_ns);
  Share* best = nullptr;
  Share* on = nullptr;
  double best_score = 0;
  for (Share& share : shares_) {
    if (!share.wanting || !Eligible(share)) continue;
    if (share.gang == GangTurn::kCatchUp) return &share;
    if (share.gang == GangTurn::kAway && !gangs_too) continue;
    if (share.gang == GangTurn::kOn && on == nullptr) on = &share;
    if (best != nullptr && RankOf(share) != RankOf(*best)) {
      if (RankOf(share) < RankOf(*best)) continue;
      best = nullptr;
    }
    const bool claims = share.woke && share.terms.request > Fraction::Zero() &&
                        share.lag_ns >= -kNoDebtQuanta * quantum;
    const bool promised = have_successor_ && share.key == successor_;
    const double score = share.lag_ns - static_cast<double>(share.backlog_ns) +
                         (claims ? quantum : 0) + (promised ? kPromised : 0);
    const bool longer = best != nullptr && share.wanting_since_ns < best->wanting_since_ns;
    if (best == nullptr || score > best_score || (score == best_score && longer)) {
      best = &share;
      best_score = score;
    }
  }
  return on != nullptr ? on : best;
}

bool TimeSharing::TurnIsOver(const Share& holder, const Share& next) const {
  const auto quantum = static_cast<double>(options_.quantum_ns);
  if (holder.gang == GangTurn::kCatchUp) return false;
  if (holder.idle || next.gang == GangTurn::kOn) return true;
  if (RankOf(next) > RankOf(holder)) return true;
  // What it has launched, or the time it held without using: a holder that does nothing and says
  // nothing (a stopped process) must not keep its turn for ever because nothing is charged.
  const double unused =
      static_cast<double>(now_ns_ - holder.turn_began_ns) - holder.turn_charged_ns;
  const double holder_lag =
      holder.lag_ns - std::max(static_cast<double>(holder.backlog_ns), unused);
  if (RankOf(next) < RankOf(holder)) {
    // It may go on for ever; but not one that does nothing and says nothing, nor one that is there
    // because it had to wait so long.
    const bool turn_is_over = now_ns_ >= holder.turn_began_ns + options_.quantum_ns;
    return turn_is_over && (holder.lifted || unused >= quantum);
  }
  const bool claims =
      next.woke && next.terms.request > Fraction::Zero() && next.lag_ns >= -kNoDebtQuanta * quantum;
  const double next_lag = next.lag_ns - static_cast<double>(next.backlog_ns);
  if ((claims || next.lag_ns >= kShortQuanta * quantum) && next_lag >= holder_lag) return true;
  const int64_t anticipated = std::min(holder.backlog_ns, options_.backlog_contended_ns);
  if (now_ns_ + anticipated + kTurnRestNs < holder.opened_ns + holder.quantum_ns) return false;
  return next_lag >= holder_lag;
}

void TimeSharing::MarkContended(Decisions& decisions) {
  for (Share& share : shares_) {
    share.contended = false;
    if (share.phase != Phase::kOpen) continue;
    share.contended = share.together || IsBelowAnother(share);
    for (const Share& other : shares_) {
      if (&other == &share) continue;
      if (other.wanting || (other.phase != Phase::kClosed && other.phase != Phase::kOpen)) {
        share.contended = true;
        continue;
      }
      const int64_t until = other.active_ns + options_.contended_linger_ns;
      if (now_ns_ >= until) continue;
      share.contended = true;
      decisions.next_ns = std::min(decisions.next_ns, until);
    }
  }
}

void TimeSharing::Collect(Decisions& decisions) {
  for (const bool opening : {false, true}) {
    for (Share& share : shares_) {
      const bool open = share.phase == Phase::kOpen;
      if (open != opening) continue;
      if (open == share.issued_open && share.contended == share.issued_contended) continue;
      const bool was_watched = !share.issued_open || share.issued_contended;
      if (!was_watched) share.watched_since_ns = now_ns_;
      share.issued_open = open;
      share.issued_contended = share.contended;
      decisions.changes.push_back({share.key, open, share.contended});
    }
  }
}

// When the next one may be let in, as far as is known. That the rest of it has drained is said.
int64_t TimeSharing::NextDrainLook(const Share& share) const {
  const int64_t steps_ns = now_ns_ + kDrainStepNs;
  if (share.expected_end_ns == kNever) {
    const int64_t let_in_ns = std::min(share.drained_at_ns, steps_ns + kDrainStepNs);
    return std::clamp(let_in_ns - options_.handover_ns, now_ns_ + kLeastDrainStepNs, steps_ns);
  }
  if (share.distrust > 0 || share.gang != GangTurn::kNone) return kNever;
  return std::max(share.drained_at_ns - options_.handover_ns, now_ns_ + kLeastDrainStepNs);
}

int64_t TimeSharing::NextDeadline() {
  int64_t next = CompanyDeadline();
  const Share* best = Best(/*gangs_too=*/true);
  // One that drains unawaited waits for its next turn, though it could not be let in yet.
  const bool waited_for =
      best != nullptr || std::any_of(shares_.begin(), shares_.end(), [this](const Share& share) {
        return DrainUnawaited(share.key);
      });
  for (const Share& share : shares_) {
    if (share.phase == Phase::kDraining) {
      // One that nobody waits for is looked at when something else is to be, as a rule.
      const int64_t unhurried_ns = share.occupies ? 0 : options_.drain_grace_ns;
      next = std::min(next, share.drain_by_ns + unhurried_ns);
    }
    if (share.gang != GangTurn::kNone && share.phase == Phase::kDraining && !share.drained) {
      next = std::min(next, now_ns_ + kGangDrainStepNs);
    }
    if (share.phase == Phase::kDraining && share.occupies && best != nullptr) {
      next = std::min(next, NextDrainLook(share));
    }
    if (share.phase == Phase::kOpen && waited_for) {
      const int64_t end = share.opened_ns + share.quantum_ns - kTurnRestNs;
      // As much is queued as at the end of its last turn, as a rule; half of that is left when it
      // is looked at, so that one look ends the turn. By all of it most turns took a second look.
      const int64_t early =
          end - std::min(share.closing_backlog_ns, options_.backlog_contended_ns) / 2;
      next = std::min(
          next, early > now_ns_ ? early : std::max(now_ns_ + kStepNs, end - share.backlog_ns));
    }
    if (share.phase == Phase::kOpen && Limited(share)) {
      next = std::min(next, now_ns_ + std::max(kLimitStepNs, LeftNs(share)));
    }
    if (share.wanting && !IsStarved(share) && IsBelowAnother(share)) {
      next = std::min(next, share.hungry_since_ns + options_.starved_ns);
    }
    const bool waits = share.wanting || shares_.size() == 1;
    if (share.phase == Phase::kClosed && waits && !Eligible(share)) {
      next = std::min(next, now_ns_ + 1 + SavedAfterNs(share));
    }
    if (share.phase == Phase::kClosed && !share.idle && !share.wanting) {
      next = std::min(next, share.active_ns + options_.linger_ns);
    }
  }
  return next;
}

TimeSharing::Decisions TimeSharing::Decide(int64_t now_ns) {
  Account(now_ns);
  for (Share& share : shares_) {
    if (share.phase == Phase::kClosed && !share.wanting &&
        now_ns_ - share.active_ns >= options_.linger_ns) {
      share.idle = true;
    }
    // What it was owed when it went idle is remembered for a moment only.
    if (share.idle && now_ns_ - share.active_ns >= options_.contended_linger_ns) {
      share.lag_ns = std::min(share.lag_ns, static_cast<double>(options_.quantum_ns) / 2);
    }
  }
  PassOverLateDrainers();
  CloseWhatIsPastItsLimit();
  EndCompany();

  for (Share& share : shares_) {
    // The next one's first launch arrives about when the last kernel of this one ends.
    if (share.occupies && share.distrust == 0 && share.gang == GangTurn::kNone &&
        share.drained_at_ns <= now_ns_ + options_.handover_ns) {
      share.occupies = false;
    }
  }

  Share* occupant = Occupant();
  Share* best = Best();
  if (occupant != nullptr && best != nullptr && occupant->phase == Phase::kOpen) {
    const bool over = TurnIsOver(*occupant, *best);
    if (over) JudgeGaps(*occupant);
    if (MayJoin(*best)) {
      Join(*best);
    } else if (over) {
      // A holder that said it is idle has nothing to drain: the next begins at once. Should it have
      // launched in that very moment, two programs overlap for one kernel.
      if (best->gang == GangTurn::kOn && occupant->gang == GangTurn::kOn) {
        CallBackGang(*occupant);
      } else {
        Close(*occupant, !occupant->idle);
      }
      successor_ = best->key;
      have_successor_ = true;
      if (!occupant->occupies) occupant = nullptr;
    } else if (now_ns_ >= occupant->opened_ns + occupant->quantum_ns) {
      occupant->opened_ns = now_ns_;  // still the furthest behind: another turn, without a gap
    }
  }
  if (occupant == nullptr && best != nullptr) {
    Open(*best);
    have_successor_ = false;
  }
  if (occupant == nullptr && best == nullptr && shares_.size() == 1 && Eligible(shares_[0]) &&
      shares_[0].gang != GangTurn::kAway) {
    Open(shares_[0]);
  }

  Decisions decisions;
  MarkContended(decisions);
  Collect(decisions);
  decisions.next_ns = std::min(decisions.next_ns, NextDeadline());
  return decisions;
}

}  // namespace prorata::policy
