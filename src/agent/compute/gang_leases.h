#pragma once

// Gangs over the DeviceLeases of a machine: tells policy::Gangs what is seen, and the devices what
// it decides. As pure as they are.

#include <utility>
#include <vector>

#include "agent/compute/device_leases.h"
#include "policy/compute/gangs.h"

namespace prorata::agent {

class GangLeases {
 public:
  struct Outcome {
    // Of the devices that were changed; to be carried out in this order.
    std::vector<std::pair<size_t, DeviceLeases::Outcome>> devices;
    int64_t next_ns = DeviceLeases::kNever;  // Step again by then
  };

  // By number of the device; they must outlive it.
  explicit GangLeases(std::vector<DeviceLeases*> devices) : devices_(std::move(devices)) {}

  void Add(uint64_t share, std::vector<size_t> devices, bool requested) {
    gangs_.Add(share, std::move(devices), requested);
  }
  void SetRequested(uint64_t share, bool requested) { gangs_.SetRequested(share, requested); }
  void Remove(uint64_t share) { gangs_.Remove(share); }
  // It stays on its devices, and has its slices on each alone from now on; touch them.
  void Leave(uint64_t share, int64_t now_ns);
  // Its devices began anew, and know of no gang any more.
  void ResetAfterOutage() { gangs_.ResetAfterOutage(); }
  bool IsGang(uint64_t share) const { return gangs_.IsGang(share); }

  // After any of the devices was changed.
  Outcome Step(int64_t now_ns);

 private:
  std::vector<DeviceLeases*> devices_;
  policy::Gangs gangs_;
};

}  // namespace prorata::agent
