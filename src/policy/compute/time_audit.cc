// The audit of device time: a share that ran where it held no lease is charged for it. It needs no
// trust in what members publish, and catches what no rule of the accounts foresees. It is late by
// seconds, and coarse, therefore the accounts do not rest on it.
//
// Five times a second the driver looks whose context the device has, and names that process
// (bench/results: an H100). How often each share is named says little of how the device was
// divided: of slices of 13 ms the looks meet now these and now those, for seconds on end. But a
// share that is named while it held no lease did run past its lease, and in the mean it did so for
// as long as a look stands for. One that holds a lease and pays by its members' word (nothing,
// where they say that they are idle, or that all their work stands behind a wait; what they
// measured, beside a share that stalls; within a limit, while nobody waits, for how long they say
// that it was not idle), and is named far more often than it pays for, lies.

#include <algorithm>
#include <utility>

#include "policy/compute/time_sharing.h"

namespace prorata::policy {
namespace {

// So long looks are collected, 25 of them, and judged together.
constexpr int64_t kJudgedNs = 5'000'000'000;
// How old a look may be when it comes, and how long leases are remembered for that.
constexpr int64_t kOldestNs = 3'000'000'000;
constexpr int64_t kRememberedNs = kOldestNs + kJudgedNs;
// The driver's clock and ours agree better (0.5 ms on the H100). Larger, less is caught of a share
// that runs on after its lease; smaller, one might be charged for an error of the clock.
constexpr int64_t kClockErrorNs = 5'000'000;
// What waited behind a host function or another stream may be released after its lease, and is met
// now and then: a look stands for 200 ms, and would stop a share with a limit for a second. Larger,
// a share runs past its lease for longer, and nobody sees it.
constexpr double kWithoutSlackNs = 500e6;
// An honest share may be met while it seems idle: what it launches under an open lease is known a
// tenth of a second later, and charged then. It is met for more than twice what it is charged, and
// a second, once in millions of times.
constexpr double kWordFactor = 2;
constexpr double kWordSlackNs = 1e9;

}  // namespace

// From `from_ns` until now, in which no share changed its phase.
void TimeSharing::NoteHeld(int64_t from_ns, bool waited) {
  const bool counted = IsCounted(waited);
  for (Share& share : shares_) {
    while (!share.held.empty() && share.held.front().to_ns < from_ns - kRememberedNs) {
      share.held.pop_front();
    }
    if (share.phase == Phase::kIdle || share.phase == Phase::kRunnable) continue;
    const bool by_word = HeldSince(share, waited) == 0 || IsBesideStalled(share) ||
                         (share.released && RunsBeside(share)) || (counted && Limited(share));
    if (share.held.empty() || share.held.back().to_ns < from_ns ||
        share.held.back().by_word != by_word) {
      share.held.push_back({from_ns, from_ns, by_word});
    }
    share.held.back().to_ns = now_ns_;
  }
}

void TimeSharing::NoteUncharged(double passed_ns, const std::vector<double>& charges) {
  for (const double charge : charges) passed_ns -= charge;
  uncharged_ns_ =
      std::clamp(uncharged_ns_ + passed_ns, 0.0, static_cast<double>(kJudgedNs + kOldestNs));
}

double TimeSharing::TakeUncharged(double wanted_ns) {
  const double taken_ns = std::min(wanted_ns, uncharged_ns_);
  uncharged_ns_ -= taken_ns;
  unclaimed_ns_ = std::min(unclaimed_ns_, uncharged_ns_);
  return taken_ns;
}

TimeSharing::Standing TimeSharing::StandingAt(const Share& share, const Look& look) {
  const int64_t from_ns = look.at_ns - look.within_ns - kClockErrorNs;
  const int64_t to_ns = look.at_ns + kClockErrorNs;
  Standing standing = Standing::kWithoutLease;
  for (const Span& span : share.held) {
    if (to_ns < span.from_ns || span.to_ns < from_ns) continue;
    if (!span.by_word) return Standing::kHeld;
    standing = Standing::kByWord;
  }
  return standing;
}

// All together are charged no more than the wall time: what this one had was charged to nobody, or
// to those who held leases then.
void TimeSharing::ChargeForLook(Share& share, const Look& look,
                                std::vector<Correction>& corrections) {
  std::vector<Share*> holders;
  for (Share& other : shares_) {
    const bool held = StandingAt(other, look) == Standing::kHeld;
    if (&other != &share && held) holders.push_back(&other);
  }
  double charge_ns = TakeUncharged(look.ran_ns);
  const double left_ns = look.ran_ns - charge_ns;
  for (Share* holder : holders) {
    const double part_ns =
        std::min(left_ns / static_cast<double>(holders.size()), holder->charged_ns);
    charge_ns += part_ns;
    MoveCharge(*holder, -part_ns);
    if (part_ns > 0) corrections.push_back({holder->key, -part_ns});
  }
  share.limit_tokens_ns = std::max(share.limit_tokens_ns - look.ran_ns, -kMaxDebtNs);
  share.charged_ns += charge_ns;
  share.lag_ns = std::max(share.lag_ns - charge_ns, -kMaxDebtNs);
  corrections.push_back({share.key, charge_ns});
}

void TimeSharing::JudgeLooks(Share& share, std::vector<Correction>& corrections) {
  const auto sum = [](const std::vector<Look>& looks) {
    double sum_ns = 0;
    for (const Look& one : looks) sum_ns += one.ran_ns;
    return sum_ns;
  };
  const std::vector<Look> without = std::exchange(share.met_without, {});
  if (sum(without) > kWithoutSlackNs) {
    for (const Look& one : without) ChargeForLook(share, one, corrections);
  }
  const std::vector<Look> by_word = std::exchange(share.met_by_word, {});
  const double charged_ns = std::max(0.0, share.charged_ns - share.by_word_charged_ns);
  const double met_ns = sum(by_word);
  const double by_ns = met_ns - kWordFactor * charged_ns - kWordSlackNs;
  for (Look one : by_word) {
    if (by_ns <= 0) break;
    one.ran_ns *= by_ns / met_ns;
    ChargeForLook(share, one, corrections);
  }
  share.by_word_charged_ns = share.charged_ns;
}

std::vector<TimeSharing::Correction> TimeSharing::Audit(const std::vector<Look>& looks,
                                                        int64_t now_ns) {
  Account(now_ns);
  for (const Look& one : looks) {
    Share* share = Find(one.share);
    if (share == nullptr || one.at_ns < now_ns - kOldestNs) continue;
    if (one.at_ns - one.within_ns - kClockErrorNs < share->added_ns) continue;
    const Standing standing = StandingAt(*share, one);
    if (standing == Standing::kByWord) share->met_by_word.push_back(one);
    if (standing == Standing::kWithoutLease) share->met_without.push_back(one);
  }
  std::vector<Correction> corrections;
  if (now_ns - looks_judged_ns_ < kJudgedNs) return corrections;
  looks_judged_ns_ = now_ns;
  for (Share& share : shares_) JudgeLooks(share, corrections);
  return corrections;
}

}  // namespace prorata::policy
