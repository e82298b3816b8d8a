#include "agent/device_leases.h"

#include <algorithm>

namespace prorata::agent {
namespace {

using policy::LeasePolicy;

constexpr size_t kMoments = 11;  // a second of tenths
constexpr int kRounds = 4;       // a closing may be drained at once, which may open another at once

}  // namespace

DeviceLeases::Outcome DeviceLeases::Add(Key key, ShareTime& share,
                                        const policy::ComputeTerms& terms, int64_t now_ns) {
  shares_[key] = &share;
  terms_[key] = terms;
  sharing_->Add(key, terms, share.ReadChargedTime(), now_ns);
  BoundBacklogs();
  const uint32_t sequence = share.WriteLease(false, false);
  Outcome outcome = Touch(now_ns);
  outcome.changes.insert(outcome.changes.begin(), {key, sequence});
  return outcome;
}

DeviceLeases::Outcome DeviceLeases::Remove(Key key, int64_t now_ns) {
  sharing_->Remove(key, now_ns);
  shares_.erase(key);
  held_.erase(key);
  terms_.erase(key);
  BoundBacklogs();
  return Touch(now_ns);
}

DeviceLeases::Outcome DeviceLeases::SetTerms(Key key, const policy::ComputeTerms& terms,
                                             int64_t now_ns) {
  sharing_->SetTerms(key, terms, now_ns);
  terms_[key] = terms;
  BoundBacklogs();
  return Touch(now_ns);
}

// Whoever is above a share may want the device at any moment: what the share keeps queued must by
// then be no more than the shortest of their bounds, whether it is alone or not. The policy may
// have a bound for all.
void DeviceLeases::BoundBacklogs() {
  for (const auto& [key, share] : shares_) {
    int64_t bound_ns = sharing_->MostBacklogNs();
    for (const auto& [other, terms] : terms_) {
      if (terms.priority > terms_.at(key).priority) {
        bound_ns = std::min(bound_ns, terms.yield_within_ns);
      }
    }
    share->WriteBacklogs(terms_.at(key), bound_ns);
  }
}

DeviceLeases::Outcome DeviceLeases::BeginAnew(int64_t now_ns) {
  std::vector<Change> closed;
  for (const auto& [key, share] : shares_) sharing_->Remove(key, now_ns);
  for (const auto& [key, share] : shares_) {
    sharing_->Add(key, terms_.at(key), share->ReadChargedTime(), now_ns);
    closed.push_back({key, share->WriteLease(false, false)});
  }
  Outcome outcome = Touch(now_ns);
  outcome.changes.insert(outcome.changes.begin(), closed.begin(), closed.end());
  return outcome;
}

DeviceLeases::Outcome DeviceLeases::Touch(int64_t now_ns) {
  Outcome outcome;
  for (int round = 0; round < kRounds; ++round) {
    TellWhatIsSeen(now_ns);
    const LeasePolicy::Decisions decisions = sharing_->Decide(now_ns);
    outcome.next_ns = decisions.next_ns;
    if (decisions.changes.empty()) break;
    for (const auto& [key, share] : shares_) {
      const LeasePolicy::ShareState state = sharing_->State(key);
      share->SetTogether(state.together);
      share->SetClosely(state.gang);
    }
    for (const LeasePolicy::Lease& lease : decisions.changes) {
      outcome.changes.push_back(
          {lease.share, shares_.at(lease.share)->WriteLease(lease.open, lease.contended)});
    }
  }
  for (const auto& [key, share] : shares_) {
    share->SetContendedBacklog(sharing_->ContendedBacklogNs(key));
    const bool taken_back = share->SetDrainUnawaited(sharing_->DrainUnawaited(key));
    // It may have drained, or begun to wait, in that moment, and said nothing.
    const bool unseen = sharing_->Draining(key) || (share->AnyWaiting() && !IsKnownToWait(key));
    if (taken_back && unseen) outcome.next_ns = now_ns;
  }
  NoteWhatIsHeld(now_ns);
  return outcome;
}

bool DeviceLeases::IsKnownToWait(Key key) const {
  const LeasePolicy::ShareState state = sharing_->State(key);
  return state.open || state.wanting;
}

bool DeviceLeases::MindsLease(Key key, uint32_t slot, int64_t now_ns) const {
  const ShareTime& share = *shares_.at(key);
  const bool open = (share.lease() & protocol::kLeaseOpen) != 0;
  return (open || sharing_->DrainForeseen(key)) && share.MindsLease(slot, now_ns);
}

void DeviceLeases::TellWhatIsSeen(int64_t now_ns) {
  for (const auto& [key, share] : shares_) {
    const ShareTime::Queued queued = share->QueuedAt(now_ns);
    sharing_->Report(key, share->ReadChargedTime(), static_cast<int64_t>(queued.ns));
    sharing_->ExpectEnd(key, queued.end_ns);
  }
  for (const auto& [key, share] : shares_) {
    const uint32_t word = share->lease();
    if ((word & protocol::kLeaseOpen) != 0) {
      const bool contended = (word & protocol::kLeaseContended) != 0;
      if ((contended && share->AllIdle()) || !share->AnyLiving()) sharing_->Idle(key, now_ns);
      continue;
    }
    // That first: a share that has drained for long, and of which nothing else is known, has left.
    if (share->AnyWaiting()) sharing_->Wanted(key, now_ns);
    if (sharing_->Draining(key) && share->AllDrained(sharing_->State(key).passed_over)) {
      sharing_->DrainedSince(key, share->DrainedSince(now_ns));
      sharing_->Drained(key, now_ns);
    }
  }
}

DeviceLeases::Held DeviceLeases::WhatHolds(Key key, const ShareTime& share) const {
  if ((share.lease() & protocol::kLeaseOpen) != 0) return Held::kNot;
  // What was launched under the lease still runs: that is no waiting.
  if (sharing_->Draining(key) && !sharing_->DrainUnawaited(key)) {
    return sharing_->State(key).passed_over ? Held::kUndrained : Held::kNot;
  }
  if (!share.AnyWaiting()) return Held::kNot;
  return sharing_->AtLimit(key) || HasItsLimit(key) ? Held::kByLimit : Held::kForTurn;
}

// Turns alone may give a share exactly its limit, whose bucket then never empties: it is not its
// turn because it has had what it is entitled to, and that is its limit.
bool DeviceLeases::HasItsLimit(Key key) const {
  const Fraction limit = terms_.at(key).limit;
  if (limit >= Fraction::One()) return false;
  const LeasePolicy::ShareState state = sharing_->State(key);
  return state.lag_ns <= 0 && state.entitled >= limit.value() - 1e-9;
}

// Who is held back is known at each Touch, and taken to be so until the next.
void DeviceLeases::NoteWhatIsHeld(int64_t now_ns) {
  const int64_t passed_ns = std::max<int64_t>(0, now_ns - noted_ns_);
  noted_ns_ = std::max(noted_ns_, now_ns);
  for (const auto& [key, share] : shares_) {
    HeldTimes& held = held_[key];
    if (held.now == Held::kForTurn) held.turn_ns += passed_ns;
    if (held.now == Held::kByLimit) held.limit_ns += passed_ns;
    if (held.now == Held::kUndrained) held.undrained_ns += passed_ns;
    held.now = WhatHolds(key, *share);
  }
}

void DeviceLeases::Sample(int64_t now_ns) {
  if (shares_.empty()) return moments_.clear();
  NoteWhatIsHeld(now_ns);
  Moment& moment = moments_.emplace_back();
  moment.when_ns = now_ns;
  uint32_t at_work = 0;
  for (const auto& [key, share] : shares_) {
    moment.shares[key] = {share->ReadChargedTime(), held_.at(key)};
    share->CountActive();
    at_work += share->MembersAtWork();
  }
  for (const auto& [key, share] : shares_) share->SetMembersAtWork(at_work);
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
  const auto part = [window_ns](double span_ns) {
    return std::clamp(span_ns / window_ns, 0.0, 1.0);
  };

  Recent recent;
  const Counts& then = since->shares.at(key);
  const HeldTimes& held = held_.at(key);
  const uint64_t own_ns = share->second->ReadChargedTime() - then.charged_ns;
  const uint64_t all_ns = ChargedSince(*since);
  recent.achieved = all_ns == 0 ? 0 : static_cast<double>(own_ns) / static_cast<double>(all_ns);
  recent.busy = part(static_cast<double>(own_ns));
  recent.waiting = part(static_cast<double>(held.turn_ns - then.held.turn_ns));
  recent.at_limit = part(static_cast<double>(held.limit_ns - then.held.limit_ns));
  recent.undrained = part(static_cast<double>(held.undrained_ns - then.held.undrained_ns));
  return recent;
}

uint64_t DeviceLeases::ChargedSince(const Moment& moment) const {
  uint64_t all_ns = 0;
  for (const auto& [key, share] : shares_) {
    const auto then = moment.shares.find(key);
    all_ns +=
        share->ReadChargedTime() - (then == moment.shares.end() ? 0 : then->second.charged_ns);
  }
  return all_ns;
}

double DeviceLeases::Busy(int64_t now_ns) const {
  if (moments_.empty() || now_ns <= moments_.front().when_ns) return 0;
  const auto window_ns = static_cast<double>(now_ns - moments_.front().when_ns);
  return std::min(1.0, static_cast<double>(ChargedSince(moments_.front())) / window_ns);
}

}  // namespace prorata::agent
