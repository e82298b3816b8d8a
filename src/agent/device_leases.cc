#include "agent/device_leases.h"

namespace prorata::agent {
namespace {

using policy::LeasePolicy;

constexpr size_t kMoments = 11;  // a second of tenths
constexpr int kRounds = 4;       // a closing may be drained at once, which may open another at once

}  // namespace

DeviceLeases::Outcome DeviceLeases::Add(Key key, ShareTime& share,
                                        const policy::ComputeTerms& terms, int64_t now_ns) {
  shares_[key] = &share;
  sharing_->Add(key, terms, share.ReadChargedTime(), now_ns);
  const uint32_t sequence = share.WriteLease(false, false);
  Outcome outcome = Touch(now_ns);
  outcome.changes.insert(outcome.changes.begin(), {key, sequence});
  return outcome;
}

DeviceLeases::Outcome DeviceLeases::Remove(Key key, int64_t now_ns) {
  sharing_->Remove(key, now_ns);
  shares_.erase(key);
  return Touch(now_ns);
}

DeviceLeases::Outcome DeviceLeases::SetTerms(Key key, const policy::ComputeTerms& terms,
                                             int64_t now_ns) {
  sharing_->SetTerms(key, terms, now_ns);
  return Touch(now_ns);
}

DeviceLeases::Outcome DeviceLeases::Touch(int64_t now_ns) {
  Outcome outcome;
  for (int round = 0; round < kRounds; ++round) {
    TellWhatIsSeen(now_ns);
    const LeasePolicy::Decisions decisions = sharing_->Decide(now_ns);
    outcome.next_ns = decisions.next_ns;
    if (decisions.changes.empty()) break;
    for (const LeasePolicy::Lease& lease : decisions.changes) {
      outcome.changes.push_back(
          {lease.share, shares_.at(lease.share)->WriteLease(lease.open, lease.contended)});
    }
  }
  return outcome;
}

void DeviceLeases::TellWhatIsSeen(int64_t now_ns) {
  for (const auto& [key, share] : shares_) {
    sharing_->Report(key, share->ReadChargedTime(), static_cast<int64_t>(share->BacklogNs()));
  }
  for (const auto& [key, share] : shares_) {
    const uint32_t word = share->lease();
    if ((word & protocol::kLeaseOpen) != 0) {
      const bool contended = (word & protocol::kLeaseContended) != 0;
      if ((contended && share->AllIdle()) || !share->AnyLiving()) sharing_->Idle(key, now_ns);
      continue;
    }
    if (sharing_->Draining(key) && share->AllDrained(sharing_->State(key).passed_over)) {
      sharing_->Drained(key, now_ns);
    }
    if (share->AnyWaiting()) sharing_->Wanted(key, now_ns);
  }
}

void DeviceLeases::Sample(int64_t now_ns) {
  if (shares_.empty()) return moments_.clear();
  Moment& moment = moments_.emplace_back();
  moment.when_ns = now_ns;
  for (const auto& [key, share] : shares_) moment.charged_ns[key] = share->ReadChargedTime();
  if (moments_.size() > kMoments) moments_.pop_front();
}

std::optional<double> DeviceLeases::Achieved(Key key) const {
  if (moments_.empty()) return std::nullopt;
  uint64_t own = 0;
  uint64_t all = 0;
  const Moment& first = moments_.front();
  for (const auto& [other, share] : shares_) {
    const auto then = first.charged_ns.find(other);
    const uint64_t passed =
        share->ReadChargedTime() - (then == first.charged_ns.end() ? 0 : then->second);
    all += passed;
    if (other == key) own = passed;
  }
  return all == 0 ? 0 : static_cast<double>(own) / static_cast<double>(all);
}

}  // namespace prorata::agent
