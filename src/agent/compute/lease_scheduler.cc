#include "agent/compute/lease_scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace prorata::agent {

LeaseScheduler::LeaseScheduler(Host& host,
                               std::vector<std::unique_ptr<policy::LeasePolicy>> policies)
    : host_(host) {
  std::vector<DeviceLeases*> all;
  for (auto& policy : policies) {
    all.push_back(devices_.emplace_back(std::make_unique<DeviceLeases>(std::move(policy))).get());
  }
  gangs_ = GangLeases(std::move(all));
}

void LeaseScheduler::SetPolicy(size_t number, std::unique_ptr<policy::LeasePolicy> policy) {
  PRORATA_CHECK(devices_[number]->empty());
  *devices_[number] = DeviceLeases(std::move(policy));
}

void LeaseScheduler::Add(Key key, const std::string& name, const std::vector<OnDevice>& devices,
                         api::Gang gang) {
  Share& share = shares_[key] = {};
  share.gang = gang;
  for (const OnDevice& on : devices) {
    share.devices.push_back(on.device);
    DeviceLeases& leases = *devices_[on.device];
    WriteOut(on.device, leases.Add(key, *on.time, on.terms, host_.NowNs()));
    leases.NameInTrace(key, name);
  }
  AddToGangs(key, share);
  StepGangs();
}

void LeaseScheduler::AddToGangs(Key key, Share& share) {
  if (share.devices.size() < 2 || share.gang == api::Gang::kNever) return;
  share.candidate = true;
  gangs_.Add(key, share.devices, share.gang == api::Gang::kAlways);
}

void LeaseScheduler::SetGang(Key key, api::Gang gang) {
  Share& share = shares_.at(key);
  share.gang = gang;
  if (!share.candidate) {
    AddToGangs(key, share);
  } else if (gang == api::Gang::kNever) {
    share.candidate = share.is_gang = false;
    gangs_.Leave(key, host_.NowNs());
    for (const size_t device : share.devices) Reschedule(device);
  } else {
    gangs_.SetRequested(key, gang == api::Gang::kAlways);
  }
  StepGangs();
}

void LeaseScheduler::Remove(Key key) {
  const std::vector<size_t> devices = std::move(shares_.at(key).devices);
  shares_.erase(key);
  gangs_.Remove(key);
  for (const size_t device : devices) {
    WriteOut(device, devices_[device]->Remove(key, host_.NowNs()));
  }
  StepGangs();
}

void LeaseScheduler::SetTerms(Key key, size_t device, const policy::ComputeTerms& terms) {
  CarryOut(device, devices_[device]->SetTerms(key, terms, host_.NowNs()));
}

void LeaseScheduler::Reschedule(size_t number) {
  if (outages_ != host_.Outages()) return ResetAfterOutage();
  CarryOut(number, devices_[number]->Reschedule(host_.NowNs()));
}

// Nobody is a gang any more, and no device knows of one.
void LeaseScheduler::ResetAfterOutage() {
  outages_ = host_.Outages();
  gangs_.ResetAfterOutage();
  for (size_t number = 0; number < devices_.size(); ++number) {
    WriteOut(number, devices_[number]->ResetAfterOutage(host_.NowNs()));
  }
  StepGangs();
}

void LeaseScheduler::Tick() {
  if (outages_ != host_.Outages()) ResetAfterOutage();
  for (size_t number = 0; number < devices_.size(); ++number) {
    DeviceLeases& device = *devices_[number];
    device.Sample(host_.NowNs());
    if (!device.empty()) WriteOut(number, device.Reschedule(host_.NowNs()));
  }
  StepGangs();
}

void LeaseScheduler::Audit(size_t number, const std::vector<policy::LeasePolicy::Look>& looks) {
  CarryOut(number, devices_[number]->Audit(looks, host_.NowNs()));
}

void LeaseScheduler::TraceEvent(size_t number, const Key* share, api::EventKind kind) {
  devices_[number]->TraceEvent(share, kind, host_.NowNs());
}

void LeaseScheduler::CarryOut(size_t number, const DeviceLeases::Outcome& outcome) {
  WriteOut(number, outcome);
  StepGangs();
}

void LeaseScheduler::StepGangs() {
  const auto may_gang = [](const auto& share) { return share.second.candidate; };
  if (std::none_of(shares_.begin(), shares_.end(), may_gang)) return;
  const GangLeases::Outcome outcome = gangs_.Step(host_.NowNs());
  for (const auto& [number, decided] : outcome.devices) WriteOut(number, decided);
  for (auto& [key, share] : shares_) {
    const bool is_gang = gangs_.IsGang(key);
    if (std::exchange(share.is_gang, is_gang) == is_gang) continue;
    if (share.gang == api::Gang::kAuto) host_.GangChanged(key, is_gang);
  }
  host_.SetGangsDeadline(outcome.next_ns);
}

void LeaseScheduler::WriteOut(size_t number, const DeviceLeases::Outcome& outcome) {
  for (const DeviceLeases::Change& change : outcome.changes) {
    host_.LeaseChanged(number, change.share, change.sequence);
  }
  host_.SetDeadline(number, outcome.next_ns);
}

}  // namespace prorata::agent
