#pragma once

// Which nodes suit a pod's claims best, in clusters with DRA. There the scheduler's allocator
// judges where claims fit and takes the first GPU of a node's slice that does, so the node is all
// that is left to choose; without a score the scheduler spreads pods over the nodes.
//
// Scores are policy/placement's, by what slices offer and claims were allocated. A claim's
// selectors are the allocator's; one that does not say how much memory it wants counts by its
// compute alone. Pure. One thread at a time.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kubernetes/extender/account.h"

namespace prorata::kubernetes {

class ClaimAccount {
 public:
  // ResourceSlices and ResourceClaims (resource.k8s.io/v1), of this driver and of others. All throw
  // nlohmann's exception where a field has another type than the API's.
  void SetSlice(const nlohmann::json& slice);
  void RemoveSlice(const nlohmann::json& slice);
  void KeepOnlySlices(const std::unordered_set<std::string>& uids);
  void SetClaim(const nlohmann::json& claim);
  void RemoveClaim(const std::string& uid);
  void KeepOnlyClaims(const std::unordered_set<std::string>& uids);

  // Of each node, from 0 to `highest`; all 0: the pod has no claims that are to be allocated.
  std::vector<int> Scores(const nlohmann::json& pod, std::span<const std::string> nodes,
                          int highest);

  struct Counts {
    size_t nodes;
    size_t claims;  // with something of this driver's
  };
  Counts counts() const { return {nodes_.size(), claims_.size()}; }

 private:
  struct Claim {
    std::string name;                     // "NAMESPACE/NAME"
    std::vector<ContainerRequest> wants;  // empty: it has it
  };
  std::vector<ContainerRequest> WantsOf(const nlohmann::json& pod) const;

  Account account_;
  std::unordered_map<std::string, std::string> nodes_;    // by the slice's UID
  std::unordered_map<std::string, Claim> claims_;         // by UID
  std::unordered_map<std::string, std::string> by_name_;  // UIDs
};

}  // namespace prorata::kubernetes
