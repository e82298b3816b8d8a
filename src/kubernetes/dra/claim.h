#pragma once

// From an allocated ResourceClaim (resource.k8s.io/v1, as the API server gives it) to the share
// that it stands for. Pure; thread-safe.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/control.h"
#include "base/result.h"

namespace prorata::kubernetes {

// What the kubelet says of a claim.
struct ClaimReference {
  std::string name_space;
  std::string name;
  std::string uid;
};

// "NAMESPACE/NAME".
std::string Describe(const ClaimReference& claim);

// A device's name in ResourceSlices: its UUID as a DNS label, so that it is the same GPU after a
// reboot that numbers them anew.
std::string DeviceName(std::string_view uuid);

// The share of a claim, and the token under which it is held: both by the claim's UID, which no
// other claim will ever have.
std::string ShareNameOfClaim(std::string_view uid);
std::string TokenOfClaim(std::string_view uid);
// The UID; nothing: a share that is no claim's.
std::optional<std::string> ClaimOfShare(std::string_view share_name);

// One result of the allocation, for the answer to the kubelet.
struct AllocatedDevice {
  std::string request;
  std::string pool;
  std::string device;
  std::optional<std::string> share_id;  // absent where Kubernetes shares no devices
};

struct ClaimPlan {
  api::ShareSpec share;
  std::vector<AllocatedDevice> devices;  // at least one, in the order of the allocation
};

struct AllocatedClaim {
  ClaimReference reference;
  api::ShareSpec share;  // what was allocated, whatever the share has become since
};
using AllocatedClaims = std::map<std::string, AllocatedClaim>;  // by UID

// What was allocated of one GPU.
struct AllocatedPart {
  uint64_t memory_bytes = 0;
  uint32_t compute_ppm = 0;
};
AllocatedPart AllocatedOn(const api::ShareSpec& share, const std::string& gpu);

// `pool`: this node's. `devices`: those of its agent. Everything that would make a share other than
// what was allocated is an error, since a container without a share would run without limits:
//   "claim_changed"   the name belongs to another claim now
//   "not_allocated"   nothing of it was allocated from this driver
//   "bad_allocation"  the allocation has what this driver never offers
//   "no_such_device"  an allocated GPU is not there
//   "bad_config"      its parameters (share_config.h)
//   "many_requests"   devices of several requests of one claim
Result<ClaimPlan> PlanClaim(const nlohmann::json& claim, const ClaimReference& reference,
                            const std::string& pool, std::span<const api::DeviceStatus> devices);

}  // namespace prorata::kubernetes
