// The audit of time: what NVML shows of each process's device time, a few times a second, for each
// device that has shares. It is shown to users, and compared with what shares are charged.

#include <algorithm>
#include <chrono>

#include "agent/node/node.h"

namespace prorata::agent {
namespace {

// A device without figures (an old driver, MIG) will hardly have some soon.
constexpr int64_t kAskAgainNs = 10 * kNsPerS;

}  // namespace

void Node::AuditTime() {
  for (size_t device = 0; device < devices_.count(); ++device) ReadTime(device);
  time_audit_.expires_after(std::chrono::nanoseconds(clock_.RealNs(RanTimes::kPeriodNs)));
  time_audit_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) AuditTime();
  });
}

void Node::ReadTime(size_t device) {
  TimeReading& times = times_[device];
  const bool shared = std::any_of(shares_.begin(), shares_.end(), [&](const auto& one) {
    return one.second->IndexOf(device).has_value();
  });
  if (!shared || times.under_way || clock_.NowNs() < times.not_before_ns) return;
  if (devices_.UnansweredNs() > 0) return;
  times.under_way = true;
  devices_.ReadTimeSamples(device, times.ran.since_us(),
                           [this, device](const Devices::Reading<Devices::TimeSamples>& reading) {
                             times_[device].under_way = false;
                             TakeTime(device, reading);
                           });
}

void Node::TakeTime(size_t device, const Devices::Reading<Devices::TimeSamples>& reading) {
  TimeReading& times = times_[device];
  if (!reading.value) {
    times.not_before_ns = clock_.NowNs() + kAskAgainNs;
    return;
  }
  times.ran.Take(*reading.value, SharesOn(device), clock_.NowNs());
  if (const auto ran_ns = times.ran.TakeAudit()) leases_.Audit(device, *ran_ns);
}

RanTimes::Shares Node::SharesOn(size_t device) {
  RanTimes::Shares on;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    on.own_ns[id] = share->time(*index).BusyNs();
    for (const Member* member : share->Members()) {
      // A process that has left one share for another (exec) is known in both, and lives in one.
      if (!member->departed) on.members[member->process.pid] = id;
      on.members.try_emplace(member->process.pid, id);
    }
  }
  return on;
}

void Node::DescribeTime(Share& share, uint32_t index, api::ShareDevice& out) {
  const RanTimes& ran = times_[share.config().devices[index].device].ran;
  const int64_t now_ns = clock_.NowNs();
  out.busy_time_ns = ran.BusyNs(share.id(), out.busy_time_ns, now_ns);
  out.busy = ran.Busy(share.id(), now_ns).value_or(out.busy);
}

}  // namespace prorata::agent
