#pragma once

// Who may run on one device, and until when: a share's request, limit and weight on GPU time.
//
// The problem. A device runs what it is given; the only handle on it is a share's lease, which lets
// launches pass until it is called back. A called-back lease ends when what was launched under it
// has drained. So time is shared by turns, while somebody waits; and while nobody else wants the
// device, a lease stays open and a launch costs nothing.
//
// How turns are given. As mClock does for disks, a share has a claim by reservation, a claim by
// weight and a bound by limit, but the clock of the claims is the device time that was really
// delivered, not the wall: requests are thereby scaled to the capacity there is.
//   - Each share has a *lag*: the device time it is entitled to (Entitlements over the shares that
//     take part) less what it was charged. The next turn goes to the largest lag. Lags of those
//     that take part add up to zero.
//   - A lag is capped at two quanta either way: nobody repays an old debt by starving, nobody
//     hoards. Where a recent turn was longer, two of that: a debt by the share's own, a claim by
//     the longest of those that take part; so long kernels are paid for, to each of the others.
//   - A share is charged no more than the time for which it was let in: its members, when they run
//     at once, each measure the others' time too.
//   - A share that reported idle earns nothing, and its debt is forgiven at the rate of its
//     entitlement: using less than one's entitlement never counts against one.
//   - A share that wakes from idleness, has a request and is not in debt is let in at once; so is
//     one that is short by more than a quantum. Others wait for the end of the turn.
//   - The limit is a token bucket over wall time, at most a quantum deep; its debt is kept, for a
//     limit is a promise to somebody too.
//   - The elastic ceiling is one such bucket for all shares: when it is empty, a share goes on only
//     within a bucket of its own request (time_limits.cc).
//   - Shares of a higher priority come first: while one wants the device, no lower one has it.
//     What a lower one keeps queued is bounded by the smallest `yield_within` of those above it,
//     whether they are there or asleep. Lags are kept among shares of the same priority: each of
//     them has its part of what those above leave. Nobody waits for ever: after two seconds of
//     waiting a lower share gets one turn.
//   - Beside a share that is entitled to half of the device or more, those entitled to little have
//     turns of 0.4 quanta: two of them in a row would put that one behind by more than a
//     turn.
//   - The next turn begins a moment before the last one has drained, by the backlog that its share
//     reports: between two turns the device has no time to wait for messages. A share whose drains
//     took longer than its backlog said is waited for, for the next few turns. For whom a turn was
//     ended, that share is next, whatever the drain changed.
//   - Shares that leave the device idle in gaps too short to be told of run together, as long as
//     nobody is short of its entitlement and nobody waits who leaves none (time_company.cc).
//   - A called-back share that does not drain by its reported backlog and a grace is charged the
//     time it held the device up, and passed over until it drains; the next turn begins without it.
//
// A share *takes part* while it holds, drains, waits, or did so a moment ago without saying that it
// is idle (a program that waits for its last kernel before it launches again takes part).
//
// How to use: lease_policy.h.

#include <cstdint>
#include <limits>
#include <vector>

#include "policy/lease_policy.h"

namespace prorata::policy {

struct TimeSharingOptions {
  int64_t quantum_ns = 13'000'000;  // of a turn; TurnOf says whose are longer or shorter
  // The most work a contended holder keeps queued: a turn is called back this much before its end.
  int64_t backlog_contended_ns = LeasePolicy::kContendedBacklogNs;
  // How long a closed, drained share that did not report idle still takes part.
  int64_t linger_ns = 3'000'000;
  // How long the holder's lease stays marked contended after the others went idle.
  int64_t contended_linger_ns = 20'000'000;
  // Beyond its reported backlog, how long a called-back share may take to drain.
  int64_t drain_grace_ns = 10'000'000;
  // For so long at most a share waits for those of higher priority; then it gets one turn.
  int64_t starved_ns = 2'000'000'000;
  // The next is let in when what a called-back holder still has to run takes no longer than this:
  // waking a thread and its first launch take about as long.
  int64_t handover_ns = 50'000;
  // For so long at most shares that leave gaps run together before they are judged again.
  int64_t company_ns = 500'000'000;
  // GaiaGPU's maximum utilization: shares grow above their requests only as long as all of them
  // together use less of the device's time than this. A request is kept above it, too.
  Fraction elastic_ceiling = Fraction::One();
};

class TimeSharing final : public LeasePolicy {
 public:
  explicit TimeSharing(const TimeSharingOptions& options = {}) : options_(options) {}

  void Add(Key share, const ComputeTerms& terms, uint64_t charged_total_ns,
           int64_t now_ns) override;
  void Remove(Key share, int64_t now_ns) override;
  void SetTerms(Key share, const ComputeTerms& terms, int64_t now_ns) override;
  void Report(Key share, uint64_t charged_total_ns, int64_t backlog_ns) override;
  void ExpectEnd(Key share, int64_t end_ns) override;
  void Wanted(Key share, int64_t now_ns) override;
  void Idle(Key share, int64_t now_ns) override;
  void Drained(Key share, int64_t now_ns) override;
  void DrainedSince(Key share, int64_t drained_ns) override;
  Decisions Decide(int64_t now_ns) override;
  std::vector<Key> Shares() const override;
  ShareState State(Key share) const override;
  bool Draining(Key share) const override;
  bool DrainUnawaited(Key share) const override;
  bool DrainForeseen(Key share) const override;
  int64_t ContendedBacklogNs(Key share) const override;
  int64_t MostBacklogNs() const override;
  bool AtLimit(Key share) const override;
  void SetGang(Key share, GangTurn turn, int64_t now_ns) override;
  void EndGangDrain(Key share, int64_t now_ns) override;
  GangSeen SeeGang(Key share, int64_t now_ns) override;

 private:
  enum class Phase : uint8_t { kClosed, kOpen, kDraining, kPassedOver };
  struct Share {
    Key key = 0;
    double possible_ns = 0;  // time in which it may have run and for which it was not charged
    ComputeTerms terms;
    Phase phase = Phase::kClosed;
    bool wanting = false;
    bool idle = true;  // reported idle, or never wanted anything
    bool woke = true;  // was idle when it last began to want: may be let in at once
    bool contended = false;
    bool lifted = false;    // holds the device for it waited too long for those above it
    bool occupies = false;  // drains, and the next turn waits for it
    GangTurn gang = GangTurn::kNone;
    bool drained = false;      // of a gang: it keeps the device until it has on all of its devices
    bool leaves_gaps = false;  // in its last whole turn it left the device idle, and did not say so
    bool together = false;     // open beside others
    bool was_busy = false;     // it used its last turn to the end: it will want another
    bool issued_open = false;
    bool issued_contended = false;
    uint64_t charged_total_ns = 0;
    double pending_ns = 0;      // reported, not yet accounted
    double provisional_ns = 0;  // charged in advance when passed over
    int64_t backlog_ns = 0;
    double lag_ns = 0;
    double tokens_ns = 0;     // of its limit
    double requested_ns = 0;  // of its request, where there is an elastic ceiling
    double turn_charged_ns = 0;
    double last_turn_ns = 0;
    int64_t quantum_ns = 0;  // of its turns, as of now (TurnOf)
    int64_t opened_ns = 0;   // its present quantum; one that stays furthest behind gets another
    int64_t turn_began_ns = 0;
    int64_t closed_ns = 0;
    // When it was last called back; one that was not yet may have much queued, or a long kernel.
    int64_t closing_backlog_ns = kNever;
    int64_t drain_by_ns = 0;
    int distrust = 0;              // so many of its drains are not anticipated
    int next_distrust = 1;         // that, after the next one that is late
    int64_t watched_since_ns = 0;  // its members report their backlog often since then
    // Is expected to have drained, by all it reported since it was closed.
    int64_t drained_at_ns = 0;
    int64_t drained_since_ns = kNever;  // had drained by then, of which the word comes late
    int64_t expected_end_ns = kNever;   // kNever: its members do not say
    int64_t active_ns = std::numeric_limits<int64_t>::min() / 2;  // last known to take part
    int64_t wanting_since_ns = 0;
    // Since it was last idle, or had had half a turn, in however many moments, when it wanted
    // another: for so long it starves, if it wants.
    int64_t hungry_since_ns = 0;
    int64_t fed_ns = 0;  // of its turns since then
  };

  Share* Find(Key key);
  const Share* Find(Key key) const;
  bool TakesPart(const Share& share) const;
  bool HasCeiling() const { return options_.elastic_ceiling < Fraction::One(); }
  bool Limited(const Share& share) const;
  double ReopenTokens(double rate) const;
  bool HasSaved(const Share& share) const;
  bool Eligible(const Share& share) const;
  int64_t LeftNs(const Share& share) const;
  int64_t SavedAfterNs(const Share& share) const;
  void FillBuckets(double passed_ns);
  std::vector<double> EntitledWhile(const std::vector<const Share*>& taking_part) const;

  void Account(int64_t now_ns);
  void ChargeNoMoreThanPossible(Share& share, double passed_ns, int64_t now_ns) const;
  // Those of one priority that take part, and what each is entitled to of what that priority gets.
  struct Rank {
    int32_t priority = 0;
    std::vector<Share*> taking_part;
    std::vector<double> entitled;  // adds up to 1
    double delivered_ns = 0;
  };
  std::vector<Rank> Ranks();
  int64_t TurnOf(const Rank& rank, size_t index) const;
  void CapAndBalance(const Rank& rank);
  void Open(Share& share);
  void Close(Share& share, bool occupies);
  static void Trust(Share& share, bool in_time);
  void EndDrain(Share& share);
  void CallBackGang(Share& share);
  void PassOverLateDrainers();
  void CloseWhatIsPastItsLimit();
  int OpenShares() const;
  void JudgeGaps(Share& holder) const;
  bool MayHaveCompany(const Share& share) const;
  bool MayJoin(const Share& next) const;
  void Join(Share& next);
  void EndCompany();
  int64_t CompanyDeadline() const;
  void ChargeCompanyOnce(double passed_ns);
  Share* Occupant();
  Share* Best(bool gangs_too = false);
  bool IsStarved(const Share& share) const;
  int64_t RankOf(const Share& share) const;
  bool IsBelowAnother(const Share& share) const;
  bool TurnIsOver(const Share& holder, const Share& next) const;
  void MarkContended(Decisions& decisions);
  void Collect(Decisions& decisions);
  int64_t NextDrainLook(const Share& share) const;
  int64_t NextDeadline();

  TimeSharingOptions options_;
  std::vector<Share> shares_;
  // For whom the last turn was ended: it is next, whatever the holder's last work took. Else a
  // holder would be called back, drain, and be the next itself.
  Key successor_ = 0;
  bool have_successor_ = false;
  int64_t company_until_ns_ = 0;
  double company_ns_ = 0;  // of the time that they ran together, what nobody was charged for yet
  double elastic_ns_ = 0;  // what may still be taken under the elastic ceiling
  int64_t now_ns_ = 0;
  bool started_ = false;
};

}  // namespace prorata::policy
