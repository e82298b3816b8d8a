#pragma once

// The audit of time: what NVML shows of each process's device time, a few times a second, for each
// device that has shares. It is shown to users, and compared with what shares are charged
// (Leases::Audit). Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "agent/compute/leases.h"
#include "agent/compute/ran_times.h"
#include "agent/runtime/devices.h"
#include "agent/share/shares.h"
#include "api/control.h"
#include "base/clock.h"

namespace prorata::agent {

class TimeAudit {
 public:
  // `clock`: the members'. All must outlive it.
  TimeAudit(boost::asio::io_context& loop, const DilatedClock& clock, const Shares& shares,
            Devices& devices, Leases& leases);

  // From now on, four times a second of the clock.
  void Start() { Poll(); }

  // Sets what of a share's device time NVML knows better than its members.
  void Describe(const Share& share, uint32_t index, api::ShareDevice& out) const;
  // The part of a device's time that programs in no share take. Nothing: there are no figures.
  std::optional<double> Others(size_t device) const;

 private:
  struct OnDevice {
    RanTimes ran;
    bool under_way = false;
    int64_t not_before_ns = 0;  // NVML has no figures, and is not asked until then
  };
  void Poll();
  void Read(size_t device);
  void Take(size_t device, const Devices::Reading<Devices::TimeSamples>& reading);
  RanTimes::Shares SharesOn(size_t device) const;
  uint64_t FromNvml(uint64_t time_us) const;
  uint64_t OfNvml(uint64_t time_us) const;

  const DilatedClock& clock_;
  const Shares& shares_;
  Devices& devices_;
  Leases& leases_;
  std::vector<OnDevice> on_;
  boost::asio::steady_timer timer_;
};

}  // namespace prorata::agent
