#include "agent/compute/leases.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

namespace prorata::agent {
namespace {

void WakeAll(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::vector<std::unique_ptr<policy::LeasePolicy>> NewPolicies(size_t count) {
  std::vector<std::unique_ptr<policy::LeasePolicy>> policies(count);
  for (auto& policy : policies) policy = std::make_unique<policy::TimeSharing>();
  return policies;
}

}  // namespace

Leases::Leases(boost::asio::io_context& loop, size_t devices, const DilatedClock& clock,
               Heartbeat& heartbeat)
    : clock_(clock),
      heartbeat_(heartbeat),
      scheduler_(*this, NewPolicies(devices)),
      gangs_deadline_(loop, [this] { scheduler_.StepGangs(); }),
      began_ns_(clock.NowNs()) {
  for (size_t i = 0; i < devices; ++i) {
    devices_.push_back(std::make_unique<Device>(loop, [this, i] { Reschedule(i); }));
  }
}

void Leases::SetElasticCeiling(size_t number, Fraction ceiling) {
  devices_[number]->elastic_ceiling = ceiling;
  policy::TimeSharingOptions options;
  options.elastic_ceiling = ceiling;
  scheduler_.SetPolicy(number, std::make_unique<policy::TimeSharing>(options));
}

void Leases::Add(Share& share) {
  std::vector<LeaseScheduler::OnDevice> devices;
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    const DeviceOfShare& on = share.config().devices[i];
    devices.push_back({on.device, &share.time(i), on.compute});
  }
  shares_[share.id()] = &share;
  scheduler_.Add(share.id(), share.config().name, devices, share.config().gang);
}

void Leases::SetGang(Share& share) { scheduler_.SetGang(share.id(), share.config().gang); }

void Leases::Remove(Share& share) {
  scheduler_.Remove(share.id());
  shares_.erase(share.id());
}

void Leases::SetTerms(Share& share, uint32_t index) {
  const DeviceOfShare& on = share.config().devices[index];
  scheduler_.SetTerms(share.id(), on.device, on.compute);
}

void Leases::RescheduleAll(const Share& share) {
  for (const DeviceOfShare& on : share.config().devices) Reschedule(on.device);
}

void Leases::GangChanged(uint64_t id, bool begun) {
  if (on_gang) on_gang(*shares_.at(id), begun);
}

void Leases::SetDeadline(size_t number, int64_t when_ns) {
  heartbeat_.LoopPasses();
  MoveTo(devices_[number]->deadline, when_ns);
}

void Leases::MoveTo(Deadline& deadline, int64_t when_ns) {
  if (when_ns == DeviceLeases::kNever) return deadline.Never();
  deadline.In(clock_.RealNs(std::max<int64_t>(1, when_ns - clock_.NowNs())));
}

void Leases::LeaseChanged(size_t number, uint64_t id, uint32_t sequence) {
  Share& share = *shares_.at(id);
  const uint32_t index = *share.IndexOf(number);
  // Launching threads that wait for it; helpers get the message.
  shm::DeviceLimits& limits = share.limits()->devices[index];
  if (shm::LaunchesPass(limits, limits.lease.load())) WakeAll(limits.lease);
  for (const Member* member : share.Members()) {
    if (member->connection == nullptr) continue;
    member->connection->SendMessage(wire::MessageType::kLeaseChanged,
                                    wire::LeaseEvent{index, sequence});
  }
}

void Leases::Wanted(Share& share, Member& member, uint32_t index) {
  share.time(index).Said(member.slot);
  Reschedule(share.config().devices[index].device);
}

void Leases::Idle(Share& share, Member& member, uint32_t index, uint32_t sequence) {
  share.time(index).SaidIdle(member.slot, sequence);
  Reschedule(share.config().devices[index].device);
}

void Leases::Drained(Share& share, Member& member, uint32_t index, uint32_t sequence) {
  share.time(index).SaidDrained(member.slot, sequence);
  Reschedule(share.config().devices[index].device);
}

void Leases::Describe(Share& share, uint32_t index, api::ShareDevice& out) {
  const DeviceLeases& leases = scheduler_.device(share.config().devices[index].device);
  const policy::LeasePolicy::ShareState state = leases.State(share.id());
  out.entitled = state.active ? state.entitled : 0;
  out.active = state.active;
  out.open = state.phase == policy::LeasePolicy::Phase::kRunning;
  out.waiting = state.waits;
  out.stalled = state.phase == policy::LeasePolicy::Phase::kStalled;
  out.device_time_ns = leases.ChargedNs(share.id());
  out.busy_time_ns = share.time(index).BusyNs();
  out.backlog_ns = static_cast<uint64_t>(share.time(index).Poll(clock_.NowNs()).backlog_ns);
  const auto recent = leases.Lately(share.id(), clock_.NowNs());
  if (!recent) return;
  out.achieved = recent->gpu_time;
  out.busy = recent->busy;
  out.waiting_part = recent->waiting;
  out.at_limit_part = recent->at_limit;
  out.undrained_part = recent->stalled;
}

bool Leases::SeemsStopped(const Share& share, uint32_t index) const {
  return scheduler_.device(share.config().devices[index].device).State(share.id()).stopped;
}

void Leases::TraceEvent(const api::Event& event) {
  for (size_t number = 0; number < devices_.size(); ++number) {
    if (event.gpu && *event.gpu != number) continue;
    if (event.share.empty()) {
      scheduler_.TraceEvent(number, nullptr, event.kind);
      continue;
    }
    for (const auto& [id, share] : shares_) {
      if (share->config().name == event.share) scheduler_.TraceEvent(number, &id, event.kind);
    }
  }
}

double Leases::Busy(size_t number) const { return scheduler_.device(number).GpuTime(); }

}  // namespace prorata::agent
