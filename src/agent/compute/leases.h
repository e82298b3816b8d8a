#pragma once

// The agent's leases: LeaseScheduler with the agent's clock, timers, futexes and connections.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "agent/compute/lease_scheduler.h"
#include "agent/runtime/deadline.h"
#include "agent/runtime/heartbeat.h"
#include "agent/share/share.h"
#include "api/control.h"
#include "base/clock.h"

namespace prorata::agent {

class Leases final : private LeaseScheduler::Host {
 public:
  // `clock` and `heartbeat` must outlive it; slices are measured in the clock's time.
  Leases(boost::asio::io_context& loop, size_t devices, const DilatedClock& clock,
         Heartbeat& heartbeat);

  // The most of the device's time that its shares may use together above their requests. Before
  // the first of them is there.
  void SetElasticCeiling(size_t device, Fraction ceiling);
  Fraction elastic_ceiling(size_t device) const { return devices_[device]->elastic_ceiling; }

  // A share that is `auto` is a gang from now on (`begun`), or no longer.
  std::function<void(Share& share, bool begun)> on_gang;

  void Add(Share& share);
  void Remove(Share& share);
  // The share's terms on one of its devices are others now.
  void SetTerms(Share& share, uint32_t index);
  // Its ShareConfig::gang is another now.
  void SetGang(Share& share);
  bool RunsAsGang(const Share& share) const { return scheduler_.IsGang(share.id()); }

  // Something changed on this device (Wanted, a death, a join): look at it again.
  void Reschedule(size_t device) { scheduler_.Reschedule(device); }
  void RescheduleAll(const Share& share);
  void Wanted(Share& share, Member& member, uint32_t index);
  void Idle(Share& share, Member& member, uint32_t index, uint32_t sequence);
  void Drained(Share& share, Member& member, uint32_t index, uint32_t sequence);

  // LeaseScheduler::Tick, each tenth of a second.
  void Tick() { scheduler_.Tick(); }
  // When NVML saw shares (by id) on the device since the last call.
  void Audit(size_t number, const std::vector<policy::LeasePolicy::Look>& looks) {
    scheduler_.Audit(number, looks);
  }
  void Describe(Share& share, uint32_t index, api::ShareDevice& out);
  // Its members say nothing, though they have work on the device or are asked.
  bool SeemsStopped(const Share& share, uint32_t index) const;
  double Busy(size_t device) const;  // the shares together, as DeviceLeases

  // For `prorata debug trace`: what happened on a device, the clock that its times are of, and
  // since when it is recorded. An event of a share, or of a device, becomes part of it.
  const TraceRing& trace(size_t device) const { return scheduler_.device(device).trace(); }
  int64_t now_ns() const { return clock_.NowNs(); }
  int64_t traced_since_ns() const { return began_ns_; }
  void TraceEvent(const api::Event& event);

 private:
  struct Device {
    Device(boost::asio::io_context& loop, std::function<void()> touch)
        : deadline(loop, std::move(touch)) {}
    Fraction elastic_ceiling = Fraction::One();
    Deadline deadline;
  };

  int64_t NowNs() const override { return clock_.NowNs(); }
  uint64_t Outages() const override { return heartbeat_.outages(); }
  void LeaseChanged(size_t device, uint64_t share, uint32_t sequence) override;
  void SetDeadline(size_t device, int64_t when_ns) override;
  void SetGangsDeadline(int64_t when_ns) override { MoveTo(gangs_deadline_, when_ns); }
  void GangChanged(uint64_t share, bool begun) override;
  void MoveTo(Deadline& deadline, int64_t when_ns);

  const DilatedClock& clock_;
  Heartbeat& heartbeat_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::map<uint64_t, Share*> shares_;
  LeaseScheduler scheduler_;
  Deadline gangs_deadline_;
  const int64_t began_ns_;
};

}  // namespace prorata::agent
