#pragma once

// Who may submit work to one device, and until when: requests, limits, weights and priorities.
//
// The problem. A kernel cannot be interrupted from outside. The only handle on a device is a
// share's lease, which lets launches pass until it is revoked; a revoked lease has drained when
// what was submitted under it is done. The promise is speed: a share with a request of 0.3 runs at
// 0.3 of the speed that it has alone, or faster; one with a limit of 0.3 is held to 0.3 of the
// device's time.
//
//            Wanted             Grant                Revoke
//     IDLE ──────────► RUNNABLE ──────► RUNNING ──────────────► DRAINING ──Drained──► IDLE |
//     RUNNABLE
//                         ▲                ▲ │ Idle: a hint          │ deadline
//                         └── Drained ─────┼─┘ that lets others in   ▼
//                                          └───────────────────── STALLED ──Drained──► IDLE |
//                                          RUNNABLE
//
//   - A device is *free* while no active share has a request, a limit, another priority or weight
//     than the others, or any share above it, or runs as a gang, and the device has no ceiling: all
//     hold their leases, and the hardware slices. Else it is *scheduled*: one share runs at a time,
//     or a co-run set.
//   - While somebody waits, the wall time from a grant until the drain is charged to those who hold
//     the device, equally per context: nobody else could run. While nobody waits, it is the time in
//     which a share was not proven idle.
//   - Lag is entitled minus charged time among the active shares of a priority. It decides who is
//     next: the highest priority, then the largest lag. A slice that is over goes on unless a
//     runnable share has a larger lag.
//   - A share that stalls (does not drain by its deadline) goes on paying; others run beside it,
//     until it is dispatched again by its lag. How they divide that time: beside_stalled.cc.
//   - When the next one is dispatched while another drains: draining.cc.
//   - A limit is a token bucket; so is the elastic ceiling of the device (accounts.cc).
//   - Now and then charges are compared with what the device itself says (time_audit.cc).
//   - Shares that leave gaps hold leases together (co_running.cc); gangs mask eligibility and force
//     a dispatch (gang_hooks.cc).
//
// Pure. How to use it: lease_policy.h.

#include <cstdint>
#include <deque>
#include <limits>
#include <unordered_map>
#include <vector>

#include "policy/compute/lease_policy.h"

namespace prorata::policy {

struct TimeSharingOptions {
  // How long a share runs while others wait. Doubled, a waking share may wait for twice as long;
  // halved, handovers take twice the part of the device's time (about 1 % at 13 ms).
  int64_t slice_ns = 13'000'000;
  // Shares grow above their requests only while all of them together use less of the device.
  Fraction elastic_ceiling = Fraction::One();
};

class TimeSharing final : public LeasePolicy {
 public:
  explicit TimeSharing(const TimeSharingOptions& options = {}) : options_(options) {}

  void Add(Key share, const ComputeTerms& terms, const Work& work, int64_t now_ns) override;
  void Remove(Key share, int64_t now_ns) override;
  void ResumeLimit(Key share, double tokens_ns) override;
  void SetTerms(Key share, const ComputeTerms& terms, int64_t now_ns) override;
  void Observe(Key share, const Work& work) override;
  void Wanted(Key share, int64_t now_ns) override;
  void Idle(Key share, int64_t now_ns) override;
  void Drained(Key share, int64_t since_ns, int64_t now_ns) override;
  std::vector<Correction> Audit(const std::vector<Look>& looks, int64_t now_ns) override;
  Decisions Decide(int64_t now_ns) override;
  ShareState State(Key share) const override;
  const char* CheckInvariants() const override;
  void SetGang(Key share, GangSlice slice, int64_t now_ns, uint32_t launches) override;
  void EndGangDrain(Key share, int64_t now_ns) override;
  GangSeen SeeGang(Key share, int64_t now_ns) override;
  bool Idles() const override;

 private:
  // How often the progress of a co-run set is judged. Shorter, a pause of a program counts as slow.
  static constexpr int64_t kCoRunCheckNs = 100'000'000;
  // A share may save up this many slices, of what it is due and of its limit. Doubled, a share that
  // was kept waiting runs for longer in a row afterwards; halved, a long kernel of another is not
  // made good for.
  static constexpr double kMaxCreditSlices = 2;
  // Debts are kept up to this: a kernel of several seconds is paid for in full. Larger, an error of
  // accounting could stop a share for as long.
  static constexpr double kMaxDebtNs = 10e9;
  // A lease is kept in pauses up to this. Longer, others lose more of the device by them; shorter,
  // more programs wait after each pause for longer than it was.
  static constexpr int64_t kShortPauseNs = kBacklogNs;
  static constexpr int64_t kLongAgoNs = std::numeric_limits<int64_t>::min() / 4;

  struct Span {
    int64_t from_ns = 0;
    int64_t to_ns = 0;
    bool by_word = false;  // what it paid, if anything, its members said
  };
  enum class Standing : uint8_t { kWithoutLease, kByWord, kHeld };
  struct Share {
    Key key = 0;
    ComputeTerms terms;
    Phase phase = Phase::kIdle;
    GangSlice gang = GangSlice::kNone;
    bool elsewhere = false;      // on other devices, too: it may become a gang
    uint32_t launches = 0;       // kCatchUp: of each member
    bool idle_hint = true;       // RUNNING, DRAINING: its members said that they are idle
    bool wants_again = false;    // DRAINING, STALLED: a launch waits for the next lease
    bool claims = false;         // RUNNABLE: woke without debt, and has a request
    bool taken = false;          // its last lease was taken from it while it was at work
    bool claimed = false;        // RUNNING: was dispatched for that
    bool boosted = false;        // RUNNING: was dispatched because it had waited for too long
    bool gathered = false;       // RUNNING, of a gang: on all its devices at once
    bool past_limit = false;     // RUNNING: for a slice, whatever is left of its limit
    bool gang_drained = false;   // DRAINING, of a gang: nothing of it is left on this device
    bool drain_settled = false;  // DRAINING: it was seen to have drained, and paid for that
    bool was_at_work = false;    // when the last Account ended, by its members' word
    bool was_blocked = false;    // then: behind a wait
    bool issued_open = false;
    bool issued_contended = false;
    Work work;
    double pending_busy_ns = 0;  // published since the last Account
    double pending_occupied_ns = 0;
    double stalled_charge_ns = 0;  // STALLED: of the last Account
    // Beside one that stalls (beside_stalled.cc): what it was charged, and its members have not
    // measured; what of that it was charged beside such a one; and what of that it was given back.
    double unmeasured_ns = 0;
    double beside_ns = 0;
    double given_ns = 0;
    double paid_rest_ns = 0;  // STALLED: what it paid of that, of all that ran beside it
    // Since it came out from behind a wait: what it was charged while others ran beside it, what
    // it was charged else, and what its members measured of all that.
    bool released = false;
    double late_ns = 0;
    double own_ns = 0;
    double measured_ns = 0;
    double beside_late_ns = 0;  // what it was charged beside such a one
    double lag_ns = 0;
    double limit_tokens_ns = 0;
    double request_tokens_ns = 0;  // where there is an elastic ceiling
    double charged_ns = 0;
    double had_lately = 0;        // the part of the device's time that it was charged
    double drain_charged_ns = 0;  // of that, since its lease was revoked
    int64_t added_ns = 0;
    std::deque<Span> held;  // of late: it had a lease, or had not drained (time_audit.cc)
    // Of the audit (time_audit.cc): looks that met it without a lease; those that met it while its
    // members' word was all that it paid by, and what it had been charged before them.
    std::vector<Look> met_without;
    std::vector<Look> met_by_word;
    double by_word_charged_ns = 0;
    int64_t granted_ns = 0;
    int64_t revoked_ns = 0;
    int64_t deadline_ns = kNever;  // DRAINING: STALLED from then on
    int64_t expected_ns = 0;       // DRAINING: by then it should have drained, when it was revoked
    int64_t longest_drain_ns = 0;  // as measured here, of late
    int64_t overdue_ns = 0;        // that: by so much later than expected
    int64_t runnable_ns = 0;       // RUNNABLE or runnable again since then
    int64_t waits_from_ns = 0;     // the same, or before turns that were taken from it at once
    int64_t active_ns = kLongAgoNs;
    // Short pauses (short_pauses.cc).
    int64_t idle_from_ns = kNever;  // IDLE: it had drained then; STALLED: it was blocked
    int64_t pause_ns = kNever;      // how long its pauses were of late; kNever: it had none
    double missed_ns = 0;           // its kernels ran for so much less than its request promises
    bool too_slow = false;          // for that it keeps its lease in short pauses
    // Co-running (co_running.cc).
    bool alone = false;      // RUNNING: no other has held a lease since it was granted
    bool had_slice = false;  // DRAINING: after a slice of its own
    // Of its last slice, until it had drained: the part in which it was not proven idle (below 0:
    // not seen yet), and the part in which its kernels ran; and that of the slice before.
    double occupied_part = -1;
    double busy_part = 1, earlier_busy_part = 1;
    int64_t gaps_seen_ns = kLongAgoNs;
    uint64_t occupied_at_grant_ns = 0;
    uint64_t busy_at_grant_ns = 0;
    uint64_t occupied_at_check_ns = 0;
    uint64_t busy_at_check_ns = 0;
  };
  struct Class {  // the shares of one priority
    std::vector<Share*> active;
    std::vector<double> entitled;  // of what the class is given; adds up to 1
  };

  // time_sharing.cc
  Share* Find(Key key);
  const Share* Find(Key key) const;
  bool IsAtIt(const Share& share) const;
  bool IsActive(const Share& share) const;
  bool Claims(const Share& share) const;
  bool IsFree() const;
  bool IsBelowAnother(const Share& share) const;
  bool Waits(const Share& share) const;
  double LeftToTurns(const Share& share) const;
  int64_t StarvesAtNs(const Share& share) const;
  bool Starves(const Share& share) const;
  bool Eligible(const Share& share) const;
  int64_t PauseLeftNs(const Share& share) const;
  int64_t RankOf(const Share& share) const;
  bool IsBefore(const Share& share, const Share& other) const;
  Share* Best(bool gangs_too = false);
  Share* Running();
  static bool HasTurn(const Share& share);
  static bool IsOpen(const Share& share);
  bool DoesNothing(const Share& running) const;
  bool IsShort(const Share& share, const Share& other) const;
  bool MustYield(const Share& running, const Share& next) const;
  void Grant(Share& share);
  void CoRun();
  void GrantToWhoIsAlone();
  void Schedule();
  void MarkContended(Decisions& decisions);
  void Collect(Decisions& decisions);
  int64_t NextDeadline();
  int64_t NextYield(const Share& running, const Share& next) const;

  // draining.cc
  int64_t ExpectedEndNs(const Share& share) const;
  int64_t RemainingNs() const;
  int64_t FreeInNs() const;  // gang_hooks.cc
  void Revoke(Share& share);
  void BecomesRunnable(Share& share, bool wakes);
  void EndDrain(Share& share);
  int64_t DrainDeadline(const Share& share) const;
  void Stall(Share& share);
  static int64_t AwayNs(const Share& share);
  bool IsAway(const Share& share) const;
  void StallLateDrains();

  // accounts.cc
  void Account(int64_t now_ns);
  bool WasActive(const Share& share) const;
  bool AnyoneWaits() const;
  bool IsCounted(bool waited) const;
  std::vector<double> Charges(double passed_ns, bool waited) const;
  std::vector<Class> Classes();
  void MoveLags(const std::vector<double>& charges);
  void ForgetLags(double passed_ns);
  // beside_stalled.cc
  bool PaysTheRest(const Share& share) const;
  bool IsBesideStalled(const Share& share) const;
  void SettleBesideStalled(const std::vector<double>& charges);
  bool RunsBeside(const Share& share) const;
  void NoteReleased(const std::vector<double>& charges);
  void SettleReleased(Share& share);
  void MoveCharge(Share& share, double by_ns);
  // time_audit.cc
  void NoteHeld(int64_t from_ns, bool waited);
  void NoteUncharged(double passed_ns, const std::vector<double>& charges);
  double TakeUncharged(double wanted_ns);
  static Standing StandingAt(const Share& share, const Look& look);
  void ChargeForLook(Share& share, const Look& look, std::vector<Correction>& corrections);
  void JudgeLooks(Share& share, std::vector<Correction>& corrections);

  void FillBuckets(const std::vector<double>& charges, double passed_ns);
  void ChargeLate(Share& share, double late_ns);
  void Refund(Share& share, int64_t since_ns);
  double LeftTo(int32_t priority) const;
  std::vector<double> EntitledAmong(const std::vector<const Share*>& shares) const;
  double Entitled(const Share& share) const;
  bool HasCeiling() const { return options_.elastic_ceiling < Fraction::One(); }
  bool Limited(const Share& share) const;
  double Held(const Share& share, bool waited) const;
  double HeldSince(const Share& share, bool waited) const;
  double ReopenTokens() const;
  int64_t MayRunNs(const Share& running) const;
  int64_t TokensLastNs(const Share& share) const;
  int64_t TokensAfterNs(const Share& share) const;
  int64_t LimitedNs(const Share& share) const;
  double SliceNs() const { return static_cast<double>(options_.slice_ns); }

  // short_pauses.cc
  void NotePause(Share& share);
  void NoteProgress(Share& share, double passed_ns);
  bool KnowsSpeed(const Share& share) const;
  bool KeepsInPauses(const Share& share) const;

  // co_running.cc
  void SeeGaps(Share& share, int64_t drain_ns);
  bool MayCoRun() const;
  void StepCoRun();
  void EndCoRun();
  bool ProgressIsShort(const Share& share, double passed_ns) const;
  bool IsNeverIdle(const Share& share, double passed_ns) const;

  TimeSharingOptions options_;
  std::vector<Share> shares_;
  std::unordered_map<Key, size_t> index_;  // in shares_
  bool started_ = false;
  bool free_ = true;
  int64_t now_ns_ = 0;
  int64_t passed_ns_ = 0;  // at the last Account
  int64_t looks_judged_ns_ = 0;
  double uncharged_ns_ = 0;  // of the time that looks are collected for, charged to nobody
  double unclaimed_ns_ = 0;  // of the last moment, charged to nobody yet
  double ceiling_tokens_ns_ = 0;
  int64_t boosted_ns_ = kLongAgoNs;  // the last share that starved was dispatched
  int64_t drained_ns_ = kLongAgoNs;  // the last share that drained had
  bool co_running_ = false;
  int64_t co_run_checked_ns_ = 0;
  int64_t co_run_after_ns_ = kLongAgoNs;
  int64_t co_run_pause_ns_ = 0;  // the last one, if none made enough progress since
};

}  // namespace prorata::policy
