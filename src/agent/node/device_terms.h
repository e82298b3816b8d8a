#pragma once

// How much of each device may be promised to shares beyond what it has, and used by them above
// their requests: as the agent's options say, else as the agent before, while there are shares that
// were made so.

#include <cstddef>
#include <vector>

#include "agent/compute/leases.h"
#include "agent/config/elastic_ceiling.h"
#include "agent/config/overcommit.h"
#include "agent/node/state_file.h"
#include "agent/runtime/devices.h"
#include "base/result.h"

namespace prorata::agent {

class DeviceTerms {
 public:
  // `devices` and `leases` must outlive it.
  DeviceTerms(const Devices& devices, Leases& leases, std::vector<Overcommit> overcommit,
              std::vector<ElasticCeiling> elastic_ceilings);

  // Before the first share is there. "unknown_gpu" of an option.
  Status Adopt(const SavedState& saved);
  void Save(SavedState* state) const;

  // How much of a device may be promised to shares that do not say their memory request; 1: what it
  // has.
  double overcommit(size_t device) const { return ratios_[device]; }

 private:
  Status AdoptOvercommit(const SavedState& saved);
  Status AdoptElasticCeilings(const SavedState& saved);

  const Devices& devices_;
  Leases& leases_;  // which have the ceilings
  const std::vector<Overcommit> overcommit_;
  const std::vector<ElasticCeiling> elastic_ceilings_;
  std::vector<double> ratios_;  // by device
};

}  // namespace prorata::agent
