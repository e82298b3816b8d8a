#include "agent/compute/gang_leases.h"

#include <algorithm>

namespace prorata::agent {
namespace {

// A slice that ends on one device ends on the others, and lets others in; more than a few rounds at
// one instant would be a quarrel, which the next event or deadline goes on with.
constexpr int kGangRounds = 8;
constexpr int64_t kGoOnNs = 100'000;

}  // namespace

void GangLeases::Leave(uint64_t share, int64_t now_ns) {
  gangs_.Remove(share);
  for (DeviceLeases* device : devices_) {
    device->Observe(now_ns);
    device->policy().SetGang(share, policy::LeasePolicy::GangSlice::kNone, now_ns, 0);
  }
}

GangLeases::Outcome GangLeases::Step(int64_t now_ns) {
  Outcome outcome;
  if (gangs_.empty()) return outcome;
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]->Observe(now_ns))
      outcome.devices.emplace_back(i, devices_[i]->Reschedule(now_ns));
  }
  const auto see = [&](uint64_t share, size_t device) {
    policy::LeasePolicy::GangSeen seen = devices_[device]->policy().SeeGang(share, now_ns);
    seen.launches = devices_[device]->MostLaunches(share);
    return seen;
  };
  for (int round = 0; round < kGangRounds; ++round) {
    const policy::Gangs::Decisions decisions = gangs_.Decide(now_ns, see);
    outcome.next_ns = decisions.next_ns;
    std::vector<size_t> reported;
    for (const policy::Gangs::Order& order : decisions.orders) {
      policy::LeasePolicy& leases = devices_[order.device]->policy();
      if (order.what == policy::Gangs::Order::What::kSlice) {
        leases.SetGang(order.share, order.slice, now_ns, order.launches);
      } else {
        leases.EndGangDrain(order.share, now_ns);
      }
      if (std::find(reported.begin(), reported.end(), order.device) == reported.end()) {
        reported.push_back(order.device);
      }
    }
    if (decisions.orders.empty()) {
      // They were only looked at.
      for (size_t device = 0; device < devices_.size(); ++device) {
        if (devices_[device]->policy().Idles()) reported.push_back(device);
      }
      if (reported.empty()) return outcome;
    }
    for (const size_t device : reported) {
      outcome.devices.emplace_back(device, devices_[device]->Reschedule(now_ns));
    }
  }
  outcome.next_ns = now_ns + kGoOnNs;
  return outcome;
}

}  // namespace prorata::agent
