#pragma once

// What the agent says about shares and devices. Figures of NVML are the last that came
// (Devices::Refresh). Not thread-safe: the agent's loop.

#include <vector>

#include "agent/compute/leases.h"
#include "agent/compute/time_audit.h"
#include "agent/memory/memory_requests.h"
#include "agent/node/device_terms.h"
#include "agent/node/share_containers.h"
#include "agent/runtime/devices.h"
#include "agent/share/shares.h"
#include "api/control.h"

namespace prorata::agent {

class Descriptions {
 public:
  // All must outlive it.
  Descriptions(const Shares& shares, const Devices& devices, const DeviceTerms& terms,
               Leases& leases, const MemoryRequests& memory, const TimeAudit& time_audit,
               const ShareContainers& containers)
      : shares_(shares),
        devices_(devices),
        terms_(terms),
        leases_(leases),
        memory_(memory),
        time_audit_(time_audit),
        containers_(containers) {}

  api::ShareStatus OfShare(Share& share) const;
  std::vector<api::ShareStatus> OfShares() const;
  std::vector<api::DeviceStatus> OfDevices() const;

 private:
  api::ShareDevice OnDevice(Share& share, uint32_t index) const;
  std::vector<api::MemberStatus> OfMembers(const Share& share) const;
  void AddShares(size_t device, api::DeviceStatus& status) const;

  const Shares& shares_;
  const Devices& devices_;
  const DeviceTerms& terms_;
  Leases& leases_;
  const MemoryRequests& memory_;
  const TimeAudit& time_audit_;
  const ShareContainers& containers_;
};

}  // namespace prorata::agent
