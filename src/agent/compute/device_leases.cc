#include "agent/compute/device_leases.h"

#include <algorithm>
#include <utility>

namespace prorata::agent {
namespace {

using policy::LeasePolicy;
using Phase = policy::LeasePolicy::Phase;

constexpr size_t kMoments = 11;  // a second of tenths
constexpr int kRounds = 4;       // a revoked lease may be drained at once, and another granted
// What is submitted and unfinished of a share while others that have a request sleep.
constexpr int64_t kBesideRequestsNs = LeasePolicy::kBacklogNs;
// A share below another's priority keeps at least this much submitted, or its device idles.
constexpr int64_t kMinBacklogNs = 250'000;
// A deadline that is kept later than this is written into the trace. What waking a thread takes on
// a machine that is not overloaded stays below it.
constexpr int64_t kLateNs = 2'000'000;

uint32_t TogetherOf(const LeasePolicy::ShareState& state) {
  return state.co_running ? shm::kInGaps : state.in_slices ? shm::kInSlices : shm::kNotTogether;
}

}  // namespace

DeviceLeases::Outcome DeviceLeases::Add(Key key, ShareTime& share,
                                        const policy::ComputeTerms& terms, int64_t now_ns) {
  Observe(now_ns);
  OnDevice& on = shares_[key] = {};
  on.time = &share;
  on.terms = terms;
  trace_.Begin(on.traced, key, now_ns);
  AddToPolicy(key, on, now_ns);
  BoundBacklogs();
  const uint32_t sequence = share.WriteLease(false, false);
  Outcome outcome = Reschedule(now_ns);
  outcome.changes.insert(outcome.changes.begin(), {key, sequence});
  return outcome;
}

// Its limit holds across outages: what it used beyond is not forgiven, nor is it let in anew.
void DeviceLeases::AddToPolicy(Key key, OnDevice& on, int64_t now_ns) {
  policy_->Add(key, on.terms, on.time->Poll(now_ns), now_ns);
  const auto tokens_ns = on.time->LimitTokensNs();
  if (tokens_ns) policy_->ResumeLimit(key, static_cast<double>(*tokens_ns));
}

DeviceLeases::Outcome DeviceLeases::Remove(Key key, int64_t now_ns) {
  Observe(now_ns);
  policy_->Remove(key, now_ns);
  if (const auto found = shares_.find(key); found != shares_.end()) {
    trace_.End(found->second.traced, now_ns);
    shares_.erase(found);
  }
  BoundBacklogs();
  return Reschedule(now_ns);
}

DeviceLeases::Outcome DeviceLeases::SetTerms(Key key, const policy::ComputeTerms& terms,
                                             int64_t now_ns) {
  Observe(now_ns);
  policy_->SetTerms(key, terms, now_ns);
  shares_.at(key).terms = terms;
  BoundBacklogs();
  return Reschedule(now_ns);
}

// Whoever is above a share, or has a request, may want the device at any moment once it has a
// member: what the share has unfinished by then is what that one waits for, whether the share is
// alone or not.
void DeviceLeases::BoundBacklogs() {
  for (auto& [key, on] : shares_) on.may_wake = on.time->AnyMember();
  for (auto& [key, on] : shares_) {
    int64_t bound_ns = LeasePolicy::kNever, alone_ns = LeasePolicy::kNever;
    for (const auto& [other_key, other] : shares_) {
      if (other_key == key || !other.may_wake) continue;
      if (other.terms.request > Fraction::Zero()) alone_ns = std::min(alone_ns, kBesideRequestsNs);
      if (other.terms.priority <= on.terms.priority) continue;
      // Beyond the bound a batch may be under way, and another may just have passed it.
      bound_ns = std::min(bound_ns, std::max(kMinBacklogNs, other.terms.yield_within_ns / 4));
    }
    on.bound_ns = bound_ns;
    on.time->WriteBacklogs(on.terms, std::min(alone_ns, bound_ns));
    on.time->SetContendedBacklog(std::min(on.bound_ns, on.state.backlog_ns));
  }
}

DeviceLeases::Outcome DeviceLeases::ResetAfterOutage(int64_t now_ns) {
  promised_ns_ = kNever;
  trace_.Outage(now_ns);
  std::vector<Change> closed;
  for (auto& [key, on] : shares_) {
    on.charged_before_ns += policy_->State(key).charged_ns;
    policy_->Remove(key, now_ns);
  }
  for (auto& [key, on] : shares_) {
    AddToPolicy(key, on, now_ns);
    closed.push_back({key, on.time->WriteLease(false, false)});
  }
  Outcome outcome = Reschedule(now_ns);
  outcome.changes.insert(outcome.changes.begin(), closed.begin(), closed.end());
  return outcome;
}

DeviceLeases::Outcome DeviceLeases::Audit(const std::vector<LeasePolicy::Look>& looks,
                                          int64_t now_ns) {
  Observe(now_ns);
  for (const LeasePolicy::Correction& correction : policy_->Audit(looks, now_ns)) {
    const auto by_ns = static_cast<int64_t>(correction.charged_ns);
    trace_.Audited(shares_.at(correction.share).traced, by_ns, now_ns);
  }
  return Reschedule(now_ns);
}

DeviceLeases::Outcome DeviceLeases::Reschedule(int64_t now_ns) {
  Outcome outcome;
  if (promised_ns_ < now_ns - kLateNs) trace_.Late(now_ns - promised_ns_, now_ns);
  for (int round = 0; round < kRounds; ++round) {
    ShowWhatIsSeen(now_ns);
    const LeasePolicy::Decisions decisions = policy_->Decide(now_ns);
    outcome.next_ns = decisions.next_ns;
    if (decisions.changes.empty()) break;
    for (auto& [key, on] : shares_) on.time->SetTogether(TogetherOf(policy_->State(key)));
    for (const LeasePolicy::Lease& lease : decisions.changes) {
      ShareTime& time = *shares_.at(lease.share).time;
      const uint32_t sequence = lease.launches > 0 ? time.WriteLease(false, false, lease.launches)
                                                   : time.WriteLease(lease.open, lease.contended);
      outcome.changes.push_back({lease.share, sequence});
    }
  }
  for (auto& [key, on] : shares_) {
    on.state = policy_->State(key);
    on.time->SetTogether(TogetherOf(on.state));
    on.time->SetIdleReport(on.state.idle_report_ns);
    on.time->NoteLimitTokens(static_cast<int64_t>(on.state.limit_tokens_ns));
    on.time->SetContendedBacklog(std::min(on.bound_ns, on.state.backlog_ns));
  }
  promised_ns_ = outcome.next_ns;
  charged_at_ns_ = now_ns;
  NoteWhatIsHeld(now_ns);
  WriteTrace(now_ns);
  return outcome;
}

bool DeviceLeases::Observe(int64_t now_ns) {
  bool released = false;
  for (auto& [key, on] : shares_) {
    const LeasePolicy::Work work = on.time->Poll(now_ns);
    const bool held_up = work.blocked || work.away_ns <= now_ns;
    released = released || (on.held_up && !held_up);
    on.held_up = held_up;
    on.blocked = work.blocked;
    policy_->Observe(key, work);
  }
  return released;
}

void DeviceLeases::ShowWhatIsSeen(int64_t now_ns) {
  Observe(now_ns);
  for (auto& [key, on] : shares_) {
    const ShareTime& time = *on.time;
    if (time.open()) {
      if ((time.contended() && time.AllIdle()) || time.AllDeparted()) policy_->Idle(key, now_ns);
      continue;
    }
    // That first: a share that has drained, and of which nothing else is known, has left.
    if (time.AnyWaiting()) policy_->Wanted(key, now_ns);
    const Phase phase = policy_->State(key).phase;
    if (phase != Phase::kDraining && phase != Phase::kStalled) continue;
    if (time.AllDrained()) {
      policy_->Drained(key, time.DrainedSince(now_ns), now_ns);
    }
  }
}

uint64_t DeviceLeases::ChargedNs(const OnDevice& on) const {
  return static_cast<uint64_t>(std::max(0.0, on.charged_before_ns + on.state.charged_ns));
}

uint64_t DeviceLeases::ChargedNs(Key key) const {
  const auto found = shares_.find(key);
  return found == shares_.end() ? 0 : ChargedNs(found->second);
}

DeviceLeases::Held DeviceLeases::WhatHolds(const OnDevice& on) const {
  if (on.time->open()) return Held::kNot;
  const LeasePolicy::ShareState& state = on.state;
  if (state.phase == Phase::kStalled) return Held::kStalled;
  // What was submitted under the lease still runs: that is no waiting.
  if (state.phase == Phase::kDraining || !on.time->AnyWaiting()) return Held::kNot;
  // Slices alone may give a share exactly its limit, whose bucket then never empties.
  const double limit = on.terms.limit.value();
  const bool has_limit = limit < 1 && state.lag_ns <= 0 && state.entitled >= limit - 1e-9;
  return state.at_limit || has_limit ? Held::kByLimit : Held::kForOthers;
}

// What holds a share back is known at each Reschedule, and taken to be so until the next.
void DeviceLeases::NoteWhatIsHeld(int64_t now_ns) {
  const int64_t passed_ns = std::max<int64_t>(0, now_ns - noted_ns_);
  noted_ns_ = std::max(noted_ns_, now_ns);
  for (auto& [key, on] : shares_) {
    HeldTimes& held = on.held;
    if (held.now == Held::kForOthers) held.for_others_ns += passed_ns;
    if (held.now == Held::kByLimit) held.by_limit_ns += passed_ns;
    if (held.now == Held::kStalled) held.stalled_ns += passed_ns;
    held.now = WhatHolds(on);
  }
}

DeviceTrace::Seen DeviceLeases::SeenOf(const OnDevice& on) const {
  return {.state = on.state,
          .priority = on.terms.priority,
          .contended = on.time->open() && on.time->contended(),
          .blocked = on.blocked,
          .by_limit = on.held.now == Held::kByLimit,
          .charged_ns = static_cast<int64_t>(ChargedNs(on))};
}

DeviceTrace::Others DeviceLeases::ShowAll() const {
  DeviceTrace::Others others;
  for (const auto& [key, on] : shares_) others.Show(SeenOf(on));
  return others;
}

void DeviceLeases::WriteTrace(int64_t now_ns) {
  const DeviceTrace::Others others = ShowAll();
  for (auto& [key, on] : shares_) trace_.Write(on.traced, SeenOf(on), others, now_ns);
  trace_.WriteDevice(others, now_ns);
}

void DeviceLeases::WriteKeyframes(int64_t now_ns) {
  const DeviceTrace::Others others = ShowAll();
  for (auto& [key, on] : shares_) trace_.Keyframe(on.traced, SeenOf(on), others, now_ns);
  trace_.KeyframeOfDevice(others, now_ns);
}

void DeviceLeases::TraceEvent(const Key* key, api::EventKind kind, int64_t now_ns) {
  if (key == nullptr) return trace_.Event(nullptr, kind, now_ns);
  const auto found = shares_.find(*key);
  if (found != shares_.end()) trace_.Event(&found->second.traced, kind, now_ns);
}

void DeviceLeases::Sample(int64_t now_ns) {
  if (shares_.empty()) return moments_.clear();
  NoteWhatIsHeld(now_ns);
  WriteKeyframes(now_ns);
  Moment& moment = moments_.emplace_back();
  moment.when_ns = now_ns;
  moment.charged_at_ns = charged_at_ns_;
  uint32_t at_work = 0;
  const bool changed = std::ranges::any_of(
      shares_, [](const auto& one) { return one.second.may_wake != one.second.time->AnyMember(); });
  if (changed) BoundBacklogs();
  for (auto& [key, on] : shares_) {
    moment.shares[key] = {ChargedNs(on), on.time->BusyNs(), on.held};
    on.time->CountActive();
    at_work += on.time->MembersAtWork();
  }
  for (auto& [key, on] : shares_) on.time->SetMembersAtWork(at_work);
  if (moments_.size() > kMoments) moments_.pop_front();
}

std::optional<DeviceLeases::Recent> DeviceLeases::Lately(Key key, int64_t now_ns) const {
  // A share that is younger than the window is judged by its own life.
  const auto since = std::find_if(moments_.begin(), moments_.end(), [key](const Moment& moment) {
    return moment.shares.contains(key);
  });
  const auto share = shares_.find(key);
  if (since == moments_.end() || share == shares_.end()) return std::nullopt;
  const auto window_ns = static_cast<double>(now_ns - since->when_ns);
  if (window_ns <= 0) return std::nullopt;
  const auto part_of = [](double all_ns, auto now, auto then) {
    const double span_ns = now > then ? static_cast<double>(now - then) : 0;
    return all_ns > 0 ? std::clamp(span_ns / all_ns, 0.0, 1.0) : 0;
  };
  const auto part = [&](auto now, auto then) { return part_of(window_ns, now, then); };
  const Counts& then = since->shares.at(key);
  const HeldTimes& held = share->second.held;
  return Recent{.gpu_time = part_of(ChargedFor(*since), ChargedNs(share->second), then.charged_ns),
                .busy = part(share->second.time->BusyNs(), then.busy_ns),
                .waiting = part(held.for_others_ns, then.held.for_others_ns),
                .at_limit = part(held.by_limit_ns, then.held.by_limit_ns),
                .stalled = part(held.stalled_ns, then.held.stalled_ns)};
}

uint64_t DeviceLeases::ChargedSince(const Moment& moment) const {
  uint64_t all_ns = 0;
  for (const auto& [key, on] : shares_) {
    const auto then = moment.shares.find(key);
    const uint64_t before_ns = then == moment.shares.end() ? 0 : then->second.charged_ns;
    all_ns += ChargedNs(on) > before_ns ? ChargedNs(on) - before_ns : 0;
  }
  return all_ns;
}

// Charges are those of the last Reschedule, then and now, however long ago.
double DeviceLeases::ChargedFor(const Moment& moment) const {
  return static_cast<double>(charged_at_ns_ - moment.charged_at_ns);
}

double DeviceLeases::GpuTime() const {
  if (moments_.empty() || ChargedFor(moments_.front()) <= 0) return 0;
  const auto charged = static_cast<double>(ChargedSince(moments_.front()));
  return std::min(1.0, charged / ChargedFor(moments_.front()));
}

}  // namespace prorata::agent
