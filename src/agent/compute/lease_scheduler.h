#pragma once

// The leases of all devices of a machine. DeviceLeases and GangLeases decide; this brings them
// together, keeps their deadlines, and hands what they decided to its host: the agent with its
// sockets and timers (leases.h), or the one-process simulation with its virtual clock. No clock,
// timer or socket of its own. Not thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/compute/device_leases.h"
#include "agent/compute/gang_leases.h"
#include "api/gang.h"

namespace prorata::agent {

class LeaseScheduler {
 public:
  using Key = DeviceLeases::Key;
  static constexpr int64_t kNever = DeviceLeases::kNever;

  class Host {
   public:
    Host() = default;
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;
    virtual ~Host() = default;

    virtual int64_t NowNs() const = 0;
    // How often members may have been in failsafe mode because the agent did not answer.
    virtual uint64_t Outages() const = 0;
    // The share's lease word on the device was written: wake who waits for it, and notify members.
    virtual void LeaseChanged(size_t device, Key share, uint32_t sequence) = 0;
    // Reschedule the device by then, instead of when it was said last; kNever: not at all.
    virtual void SetDeadline(size_t device, int64_t when_ns) = 0;
    // StepGangs by then, in the same way.
    virtual void SetGangsDeadline(int64_t when_ns) = 0;
    // A share that is `auto` is a gang from now on (`begun`), or no longer.
    virtual void GangChanged(Key share, bool begun) = 0;
  };

  struct OnDevice {
    size_t device = 0;
    ShareTime* time = nullptr;  // stays where it is until Remove
    policy::ComputeTerms terms;
  };

  // A policy for each device. `host` must outlive it, and is not called before Add.
  LeaseScheduler(Host& host, std::vector<std::unique_ptr<policy::LeasePolicy>> policies);

  // Another policy for a device that has no shares.
  void SetPolicy(size_t device, std::unique_ptr<policy::LeasePolicy> policy);

  // `name`: for people who read the trace.
  void Add(Key share, const std::string& name, const std::vector<OnDevice>& devices,
           api::Gang gang);
  void Remove(Key share);
  void SetTerms(Key share, size_t device, const policy::ComputeTerms& terms);
  void SetGang(Key share, api::Gang gang);
  bool IsGang(Key share) const { return gangs_.IsGang(share); }

  // Something may have changed on this device: look at it again.
  void Reschedule(size_t device);
  void StepGangs();
  // Each tenth of a second: remembers the figures of the last second, and touches every device that
  // has shares, in case a message was lost.
  void Tick();
  // DeviceLeases::Audit.
  void Audit(size_t device, const std::vector<policy::LeasePolicy::Look>& looks);
  void TraceEvent(size_t device, const Key* share, api::EventKind kind);

  size_t device_count() const { return devices_.size(); }
  const DeviceLeases& device(size_t number) const { return *devices_[number]; }

 private:
  struct Share {
    std::vector<size_t> devices;
    api::Gang gang = api::Gang::kAuto;
    bool candidate = false;  // it may become a gang
    bool is_gang = false;
  };

  void AddToGangs(Key key, Share& share);
  void ResetAfterOutage();
  void CarryOut(size_t number, const DeviceLeases::Outcome& outcome);
  void WriteOut(size_t number, const DeviceLeases::Outcome& outcome);

  Host& host_;
  std::vector<std::unique_ptr<DeviceLeases>> devices_;
  GangLeases gangs_{{}};
  std::map<Key, Share> shares_;
  uint64_t outages_ = 0;  // of the host, at the last reset
};

}  // namespace prorata::agent
