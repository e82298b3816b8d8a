// The books of TimeSharing: what each share earned, owes and may still take.

#include <algorithm>
#include <cmath>

#include "policy/time_sharing.h"

namespace prorata::policy {
namespace {

// However long a kernel was, its share is not made to pay for more than this at once.
constexpr double kLongestTurnNs = 1e9;
// Members with a lease that nobody else wants report their backlog now and then only: what is seen
// of it is believed so long after they were told to look often.
constexpr int64_t kWatchedNs = 500'000;
// An unreported turn is not charged at all below this.
constexpr double kDebtNs = 1;
// Of the time it left unused, what a share with nothing outstanding may still be charged for.
constexpr double kKeptQuanta = 2;
// Entitled to so much, or to so little, of the device.
constexpr double kMuch = 0.5;
constexpr double kLittle = 0.05;
constexpr double kShortTurnQuanta = 0.4;
// Turns of two are longer: neither waits for long, and each handover costs processors.
constexpr size_t kFew = 2;
constexpr double kTurnQuantaOfFew = 1.25;

}  // namespace

void TimeSharing::Report(Key key, uint64_t charged_total_ns, int64_t backlog_ns) {
  Share* share = Find(key);
  if (share == nullptr) return;
  share->backlog_ns = std::max<int64_t>(0, backlog_ns);
  // An open lease is not asked for: it may have been opened for a share that had nothing to do.
  const bool works = share->backlog_ns > 0 || charged_total_ns > share->charged_total_ns;
  if (works && share->phase == Phase::kOpen) share->idle = false;
  if (charged_total_ns <= share->charged_total_ns) return;
  const auto measured = static_cast<double>(charged_total_ns - share->charged_total_ns);
  share->charged_total_ns = charged_total_ns;
  const double ahead = std::min(measured, share->provisional_ns);
  share->provisional_ns -= ahead;
  share->pending_ns += measured - ahead;
}

void TimeSharing::ExpectEnd(Key key, int64_t end_ns) {
  if (Share* share = Find(key)) share->expected_end_ns = end_ns;
}

bool TimeSharing::TakesPart(const Share& share) const {
  if (share.wanting) return true;
  if (share.idle) {
    // One that owes pays; one that is owed is remembered for a moment: its host lost its processor,
    // say, and those who owe it would be free of their debt.
    return share.lag_ns < -kDebtNs ||
           (share.lag_ns > kDebtNs && now_ns_ - share.active_ns < options_.contended_linger_ns);
  }
  switch (share.phase) {
    case Phase::kOpen:
    case Phase::kDraining:
      return true;
    case Phase::kPassedOver:
      return false;
    case Phase::kClosed:
      return now_ns_ - share.active_ns < options_.linger_ns;
  }
  return false;
}

std::vector<double> TimeSharing::EntitledWhile(const std::vector<const Share*>& taking_part) const {
  std::vector<ComputeTerms> terms;
  for (const Share* share : taking_part) terms.push_back(share->terms);
  return Entitlements(terms);
}

// A share is charged what its members measured, each from event to event. Two members at once are
// time-sliced by the device, so each measures the other's time too, and together they report it
// twice. But the device gives a second in a second: a share cannot have used more than the time for
// which it was let in. What it left unused it does not keep for long: that much would be charged
// twice again. "Long" begins when nothing is outstanding; a backlog may be reported a tick too
// late.
void TimeSharing::ChargeNoMoreThanPossible(Share& share, double passed_ns, int64_t now_ns) const {
  if (share.phase != Phase::kClosed) {
    // What it was let in for ended when it had drained, not when that was told.
    const double after_ns = static_cast<double>(now_ns - share.drained_since_ns);
    share.possible_ns += passed_ns - std::clamp(after_ns, 0.0, passed_ns);
  }
  share.pending_ns = std::min(share.pending_ns, share.possible_ns);
  share.possible_ns -= share.pending_ns;
  if (share.backlog_ns == 0) {
    const double kept = kKeptQuanta * static_cast<double>(options_.quantum_ns);
    share.possible_ns = std::min(share.possible_ns, kept);
  }
}

std::vector<TimeSharing::Rank> TimeSharing::Ranks() {
  std::vector<int32_t> priorities;
  for (const Share& share : shares_) {
    const int32_t priority = share.terms.priority;
    if (std::find(priorities.begin(), priorities.end(), priority) == priorities.end()) {
      priorities.push_back(priority);
    }
  }
  std::vector<Rank> ranks;
  for (const int32_t priority : priorities) {
    Rank& rank = ranks.emplace_back();
    rank.priority = priority;
    std::vector<const Share*> same;
    for (Share& share : shares_) {
      if (share.terms.priority != priority) continue;
      rank.delivered_ns += share.pending_ns;
      if (!TakesPart(share)) continue;
      rank.taking_part.push_back(&share);
      same.push_back(&share);
    }
    rank.entitled = EntitledWhile(same);
    double sum = 0;
    for (const double e : rank.entitled) sum += e;
    for (double& e : rank.entitled) e = sum > 0 ? e / sum : 0;
  }
  return ranks;
}

// Two turns in a row of shares entitled to little put one entitled to most of the device behind by
// nearly as much: they are to be shorter together than one of its own.
int64_t TimeSharing::TurnOf(const Rank& rank, size_t index) const {
  const double most = *std::max_element(rank.entitled.begin(), rank.entitled.end());
  const bool is_short = most >= kMuch && rank.entitled[index] <= kLittle;
  const auto quantum = static_cast<double>(options_.quantum_ns);
  const double whole = rank.taking_part.size() <= kFew ? kTurnQuantaOfFew : 1;
  return static_cast<int64_t>(quantum * (is_short ? kShortTurnQuanta : whole));
}

void TimeSharing::Account(int64_t now_ns) {
  if (!started_) now_ns_ = now_ns;
  started_ = true;
  const auto passed = static_cast<double>(std::max<int64_t>(0, now_ns - now_ns_));
  ChargeCompanyOnce(passed);
  for (Share& share : shares_) ChargeNoMoreThanPossible(share, passed, now_ns);
  const std::vector<Rank> ranks = Ranks();
  now_ns_ = std::max(now_ns_, now_ns);
  for (Share& share : shares_) {
    if (share.expected_end_ns != kNever) {
      share.drained_at_ns = share.expected_end_ns;
      continue;
    }
    if (now_ns_ - share.watched_since_ns < kWatchedNs) continue;
    share.drained_at_ns = std::min(share.drained_at_ns, now_ns_ + share.backlog_ns);
  }

  for (const Rank& rank : ranks) {
    for (size_t i = 0; i < rank.taking_part.size(); ++i) {
      Share& share = *rank.taking_part[i];
      share.quantum_ns = TurnOf(rank, i);
      const bool asleep = share.idle && !share.wanting;
      const double earned =
          rank.entitled[i] * (asleep ? std::max(rank.delivered_ns, passed) : rank.delivered_ns);
      if (!asleep) share.lag_ns += earned;
      if (asleep && share.lag_ns < 0) share.lag_ns = std::min(0.0, share.lag_ns + earned);
    }
  }
  FillBuckets(passed);
  for (Share& share : shares_) {
    share.lag_ns -= share.pending_ns;
    share.turn_charged_ns += share.pending_ns;
    share.pending_ns = 0;
  }
  for (const Rank& rank : ranks) CapAndBalance(rank);
}

void TimeSharing::CapAndBalance(const Rank& rank) {
  const auto turn = [this](const Share& share) {
    return std::max(static_cast<double>(options_.quantum_ns),
                    std::min(share.last_turn_ns, kLongestTurnNs));
  };
  // What one owes for a long turn the others are owed, whose own turns are short.
  double longest = 0;
  for (const Share* share : rank.taking_part) longest = std::max(longest, turn(*share));
  for (Share& share : shares_) {
    if (share.terms.priority != rank.priority) continue;
    share.lag_ns = std::clamp(share.lag_ns, -2 * turn(share), 2 * std::max(turn(share), longest));
  }
  // The lags of those that take part add up to zero, so that a lag says what the others have more
  // of, and not what was long ago. What caps, comings and goings added is shared out again.
  double sum = 0;
  double able = 0;
  for (size_t i = 0; i < rank.taking_part.size(); ++i) {
    sum += rank.taking_part[i]->lag_ns;
    if (!rank.taking_part[i]->idle) able += rank.entitled[i];
  }
  if (able <= 0) return;
  for (size_t i = 0; i < rank.taking_part.size(); ++i) {
    Share& share = *rank.taking_part[i];
    if (!share.idle) share.lag_ns -= sum * rank.entitled[i] / able;
  }
}

TimeSharing::ShareState TimeSharing::State(Key key) const {
  const Share* asked = Find(key);
  if (asked == nullptr) return {};
  std::vector<const Share*> taking_part = {asked};
  for (const Share& share : shares_) {
    if (&share != asked && TakesPart(share)) taking_part.push_back(&share);
  }
  return {asked->phase == Phase::kOpen,       asked->wanting, asked->phase == Phase::kPassedOver,
          EntitledWhile(taking_part).front(), asked->lag_ns,  asked->together,
          asked->gang != GangTurn::kNone};
}

}  // namespace prorata::policy
