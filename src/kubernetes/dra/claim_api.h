#pragma once

// The ResourceClaims of the cluster, as the driver reads them. Thread-safe.

#include <map>
#include <nlohmann/json.hpp>
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
  // All claims that have a device of this pool allocated, by UID.
  virtual Result<std::map<std::string, nlohmann::json>> ListAllocated(const std::string& pool) = 0;
};

class KubeClaimApi final : public ClaimApi {
 public:
  explicit KubeClaimApi(KubeClient& client) : client_(client) {}

  Result<nlohmann::json> Get(const ClaimReference& claim) override;
  Result<std::map<std::string, nlohmann::json>> ListAllocated(const std::string& pool) override;

 private:
  KubeClient& client_;
};

}  // namespace prorata::kubernetes
