#include "agent/compute/leases.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "base/check.h"

namespace prorata::agent {
namespace {

void WakeAll(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Leases::Leases(boost::asio::io_context& loop, size_t devices, const DilatedClock& clock,
               const Heartbeat& heartbeat)
    : clock_(clock), heartbeat_(heartbeat), gangs_deadline_(loop, [this] { StepGangs(); }) {
  std::vector<DeviceLeases*> all;
  for (size_t i = 0; i < devices; ++i) {
    all.push_back(
        &devices_.emplace_back(std::make_unique<Device>(loop, [this, i] { Touch(i); }))->leases);
  }
  gangs_ = GangLeases(std::move(all));
}

void Leases::SetElasticCeiling(size_t number, Fraction ceiling) {
  Device& device = *devices_[number];
  PRORATA_CHECK(device.leases.empty());
  device.elastic_ceiling = ceiling;
  policy::TimeSharingOptions options;
  options.elastic_ceiling = ceiling;
  device.leases = DeviceLeases(options);
}

void Leases::Add(Share& share) {
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    const DeviceOfShare& on = share.config().devices[i];
    Device& device = *devices_[on.device];
    device.shares[share.id()] = &share;
    CarryOut(on.device, device.leases.Add(share.id(), share.time(i), on.compute, clock_.NowNs()));
  }
  AddToGangs(share);
}

void Leases::AddToGangs(Share& share) {
  const protocol::Gang gang = share.config().gang;
  if (share.device_count() < 2 || gang == protocol::Gang::kNever) return;
  std::vector<size_t> devices;
  for (const DeviceOfShare& on : share.config().devices) devices.push_back(on.device);
  candidates_[share.id()] = {&share};
  gangs_.Add(share.id(), std::move(devices), gang == protocol::Gang::kAlways);
  StepGangs();
}

void Leases::SetGang(Share& share) {
  const protocol::Gang gang = share.config().gang;
  if (!candidates_.contains(share.id())) return AddToGangs(share);
  if (gang == protocol::Gang::kNever) {
    candidates_.erase(share.id());
    gangs_.Leave(share.id(), clock_.NowNs());
    return TouchAll(share);
  }
  gangs_.SetRequested(share.id(), gang == protocol::Gang::kAlways);
  StepGangs();
}

void Leases::Remove(Share& share) {
  candidates_.erase(share.id());
  gangs_.Remove(share.id());
  for (const DeviceOfShare& on : share.config().devices) {
    Device& device = *devices_[on.device];
    device.shares.erase(share.id());
    CarryOut(on.device, device.leases.Remove(share.id(), clock_.NowNs()));
  }
}

void Leases::SetTerms(Share& share, uint32_t index) {
  const DeviceOfShare& on = share.config().devices[index];
  CarryOut(on.device, devices_[on.device]->leases.SetTerms(share.id(), on.compute, clock_.NowNs()));
}

void Leases::TouchAll(const Share& share) {
  for (const DeviceOfShare& on : share.config().devices) Touch(on.device);
}

void Leases::Touch(size_t number) {
  if (silences_ != heartbeat_.silences()) return ResetAfterOutage();
  CarryOut(number, devices_[number]->leases.Touch(clock_.NowNs()));
}

void Leases::ResetAfterOutage() {
  silences_ = heartbeat_.silences();
  gangs_.ResetAfterOutage();
  for (size_t number = 0; number < devices_.size(); ++number) {
    WriteOut(number, devices_[number]->leases.ResetAfterOutage(clock_.NowNs()));
  }
  StepGangs();
}

void Leases::CarryOut(size_t number, const DeviceLeases::Outcome& outcome) {
  WriteOut(number, outcome);
  StepGangs();
}

void Leases::StepGangs() {
  if (candidates_.empty()) return;
  const GangLeases::Outcome outcome = gangs_.Step(clock_.NowNs());
  for (const auto& [number, decided] : outcome.devices) WriteOut(number, decided);
  for (auto& [id, candidate] : candidates_) {
    const bool is_gang = gangs_.IsGang(id);
    if (std::exchange(candidate.is_gang, is_gang) == is_gang) continue;
    const bool seen = candidate.share->config().gang == protocol::Gang::kAuto;
    if (seen && on_gang) on_gang(*candidate.share, is_gang);
  }
  MoveTo(gangs_deadline_, outcome.next_ns);
}

void Leases::MoveTo(Deadline& deadline, int64_t when_ns) {
  if (when_ns == DeviceLeases::kNever) return deadline.Never();
  deadline.In(clock_.RealNs(std::max<int64_t>(1, when_ns - clock_.NowNs())));
}

void Leases::WriteOut(size_t number, const DeviceLeases::Outcome& outcome) {
  Device& device = *devices_[number];
  for (const DeviceLeases::Change& change : outcome.changes) {
    Share& share = *device.shares.at(change.share);
    const uint32_t index = *share.IndexOf(number);
    // Launching threads that wait for it; helpers get the message.
    std::atomic<uint32_t>& lease = share.limits()->devices[index].lease;
    if ((lease.load() & protocol::kLeaseOpen) != 0) WakeAll(lease);
    for (const Member* member : share.Members()) {
      if (member->connection == nullptr) continue;
      member->connection->SendMessage(protocol::MessageType::kLeaseChanged,
                                      protocol::LeaseEvent{index, change.sequence});
    }
  }
  MoveTo(device.deadline, outcome.next_ns);
}

void Leases::Idle(Share& share, Member& member, uint32_t index, uint32_t sequence) {
  share.time(index).SaidIdle(member.slot, sequence);
  Touch(share.config().devices[index].device);
}

void Leases::Drained(Share& share, Member& member, uint32_t index, uint32_t sequence) {
  share.time(index).SaidDrained(member.slot, sequence);
  Touch(share.config().devices[index].device);
}

void Leases::Tick() {
  for (size_t number = 0; number < devices_.size(); ++number) {
    Device& device = *devices_[number];
    device.leases.Sample(clock_.NowNs());
    if (!device.leases.empty()) Touch(number);
  }
}

void Leases::Audit(size_t number, const std::map<uint64_t, int64_t>& ran_ns) {
  CarryOut(number, devices_[number]->leases.Audit(ran_ns, clock_.NowNs()));
}

void Leases::Describe(Share& share, uint32_t index, protocol::ShareDevice& out) {
  const DeviceLeases& leases = devices_[share.config().devices[index].device]->leases;
  const policy::LeasePolicy::ShareState state = leases.State(share.id());
  out.entitled = state.entitled;
  out.open = state.phase == policy::LeasePolicy::Phase::kRunning;
  out.waiting = state.waits;
  out.passed_over = state.phase == policy::LeasePolicy::Phase::kStalled;
  out.device_time_ns = leases.ChargedNs(share.id());
  out.busy_time_ns = share.time(index).BusyNs();
  out.backlog_ns = static_cast<uint64_t>(share.time(index).Look(clock_.NowNs()).backlog_ns);
  const auto recent = leases.Lately(share.id(), clock_.NowNs());
  if (!recent) return;
  out.achieved = recent->gpu_time;
  out.busy = recent->busy;
  out.waiting_part = recent->waiting;
  out.at_limit_part = recent->at_limit;
  out.undrained_part = recent->stalled;
}

double Leases::Busy(size_t number) const {
  return devices_[number]->leases.GpuTime(clock_.NowNs());
}

}  // namespace prorata::agent
