#include "agent/compute/time_audit.h"

#include <chrono>

namespace prorata::agent {
namespace {

// A device without figures (an old driver, MIG) will hardly have some soon.
constexpr int64_t kAskAgainNs = 10 * kNsPerS;

}  // namespace

TimeAudit::TimeAudit(boost::asio::io_context& loop, const DilatedClock& clock, const Shares& shares,
                     Devices& devices, Leases& leases)
    : clock_(clock),
      shares_(shares),
      devices_(devices),
      leases_(leases),
      on_(devices.count()),
      timer_(loop) {}

void TimeAudit::Poll() {
  for (size_t device = 0; device < devices_.count(); ++device) Read(device);
  timer_.expires_after(std::chrono::nanoseconds(clock_.RealNs(RanTimes::kPeriodNs)));
  timer_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Poll();
  });
}

void TimeAudit::Read(size_t device) {
  OnDevice& on = on_[device];
  if (on.under_way || clock_.NowNs() < on.not_before_ns || shares_.On(device).empty()) return;
  if (devices_.UnansweredNs() > 0) return;
  on.under_way = true;
  devices_.ReadTimeSamples(device, OfNvml(on.ran.since_us()),
                           [this, device](const Devices::Reading<Devices::TimeSamples>& reading) {
                             on_[device].under_way = false;
                             Take(device, reading);
                           });
}

void TimeAudit::Take(size_t device, const Devices::Reading<Devices::TimeSamples>& reading) {
  OnDevice& on = on_[device];
  if (!reading.value) {
    on.not_before_ns = clock_.NowNs() + kAskAgainNs;
    return;
  }
  const int64_t now_ns = clock_.NowNs();
  const int64_t realtime_ns = RealtimeNs();
  Devices::TimeSamples samples = *reading.value;
  for (driver::NvmlTimeSample& sample : samples) sample.time_us = FromNvml(sample.time_us);
  on.ran.Take(samples, SharesOn(device), now_ns);
  std::vector<policy::LeasePolicy::Look> looks;
  for (const RanTimes::Look& look : on.ran.TakeLooks()) {
    const int64_t age_ns =
        clock_.FromRealNs(realtime_ns) - static_cast<int64_t>(look.at_us) * kNsPerUs;
    if (age_ns < 0) continue;  // its clock is another, or was set back
    looks.push_back(
        {look.share, static_cast<double>(look.ran_ns), now_ns - age_ns, look.within_ns});
  }
  leases_.Audit(device, looks);
}

// NVML's clock is CLOCK_REALTIME (H100, driver 580.159.04: bench/results). Where ours is slowed
// down, its moments are as many of our microseconds since 1970.
uint64_t TimeAudit::FromNvml(uint64_t time_us) const {
  return static_cast<uint64_t>(clock_.FromRealNs(static_cast<int64_t>(time_us)));
}

// And back; a little later, lest the same sample comes again.
uint64_t TimeAudit::OfNvml(uint64_t time_us) const {
  if (clock_.dilation() == 1 || time_us == 0) return time_us;
  return static_cast<uint64_t>(clock_.RealNs(static_cast<int64_t>(time_us)) + 1'000);
}

RanTimes::Shares TimeAudit::SharesOn(size_t device) const {
  RanTimes::Shares on;
  for (const auto& [share, index] : shares_.On(device)) {
    on.own_ns[share->id()] = share->time(index).BusyNs();
    for (const Member* member : share->Members()) {
      // A process that has left one share for another (exec) is known in both, and lives in one.
      if (!member->departed) on.members[member->process.pid] = share->id();
      on.members.try_emplace(member->process.pid, share->id());
    }
  }
  return on;
}

void TimeAudit::Describe(const Share& share, uint32_t index, api::ShareDevice& out) const {
  const RanTimes& ran = on_[share.config().devices[index].device].ran;
  const int64_t now_ns = clock_.NowNs();
  out.busy_time_ns = ran.BusyNs(share.id(), out.busy_time_ns, now_ns);
  out.busy = ran.Busy(share.id(), now_ns).value_or(out.busy);
}

std::optional<double> TimeAudit::Others(size_t device) const {
  return on_[device].ran.Others(clock_.NowNs());
}

}  // namespace prorata::agent
