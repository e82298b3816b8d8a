#pragma once

// Turns on the devices: DeviceLeases decides; this brings it the clock and the members' words,
// keeps its deadlines, and wakes and notifies whom its leases concern.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "agent/compute/device_leases.h"
#include "agent/compute/gang_leases.h"
#include "agent/deadline.h"
#include "agent/heartbeat.h"
#include "agent/share.h"
#include "base/clock.h"
#include "protocol/control.h"

namespace prorata::agent {

class Leases {
 public:
  // `clock` and `heartbeat` must outlive it; turns are measured in the clock's time.
  Leases(boost::asio::io_context& loop, size_t devices, const DilatedClock& clock,
         const Heartbeat& heartbeat);

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
  bool RunsAsGang(const Share& share) const { return gangs_.IsGang(share.id()); }

  // Something changed on this device (Wanted, a death, a join): look at it again.
  void Touch(size_t device);
  void TouchAll(const Share& share);
  void Idle(Share& share, Member& member, uint32_t index, uint32_t sequence);
  void Drained(Share& share, Member& member, uint32_t index, uint32_t sequence);

  // Each tenth of a second: remembers what Describe tells of the last second, and looks at every
  // device, in case a message was lost.
  void Tick();
  // By NVML the kernels of each share (by id) ran for so many nanoseconds on the device since the
  // last call.
  void Audit(size_t number, const std::map<uint64_t, int64_t>& ran_ns);
  void Describe(Share& share, uint32_t index, protocol::ShareDevice& out);
  double Busy(size_t device) const;  // the shares together, as DeviceLeases

 private:
  struct Device {
    Device(boost::asio::io_context& loop, std::function<void()> touch)
        : deadline(loop, std::move(touch)) {}
    DeviceLeases leases;
    Fraction elastic_ceiling = Fraction::One();
    Deadline deadline;
    std::map<uint64_t, Share*> shares;
  };

  // A share that may become a gang.
  struct Candidate {
    Share* share;
    bool is_gang = false;
  };

  void ResetAfterOutage();
  void AddToGangs(Share& share);
  void CarryOut(size_t number, const DeviceLeases::Outcome& outcome);
  void WriteOut(size_t number, const DeviceLeases::Outcome& outcome);
  void StepGangs();
  void MoveTo(Deadline& deadline, int64_t when_ns);

  const DilatedClock& clock_;
  const Heartbeat& heartbeat_;
  std::vector<std::unique_ptr<Device>> devices_;
  GangLeases gangs_{{}};
  std::map<uint64_t, Candidate> candidates_;
  Deadline gangs_deadline_;
  uint64_t silences_ = 0;  // of the heartbeat, at the last reset
};

}  // namespace prorata::agent
