#pragma once

// The ResourceClaims of the cluster, as the driver reads them. Thread-safe.

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "base/result.h"
#include "kubernetes/api/kube_client.h"
#include "kubernetes/dra/claim.h"

namespace prorata::kubernetes {

class ClaimApi {
 public:
  virtual ~ClaimApi() = default;

  // Errors of both: KubeClient's.
  virtual Result<nlohmann::json> Get(const ClaimReference& claim) = 0;
  // The UIDs of all claims that have a device of this pool allocated.
  virtual Result<std::set<std::string>> ListAllocated(const std::string& pool) = 0;
};

class KubeClaimApi final : public ClaimApi {
 public:
  explicit KubeClaimApi(KubeClient& client) : client_(client) {}

  Result<nlohmann::json> Get(const ClaimReference& claim) override;
  Result<std::set<std::string>> ListAllocated(const std::string& pool) override;

 private:
  KubeClient& client_;
};

}  // namespace prorata::kubernetes
