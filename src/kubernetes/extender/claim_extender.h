#pragma once

// The scheduler's extender in clusters with DRA: it prioritizes the nodes of pods with claims
// (claim_account.h), and judges nothing. Thread-safe.

#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/list_watch.h"
#include "kubernetes/extender/claim_account.h"

namespace prorata::kubernetes {

class ClaimExtender {
 public:
  // Follows the cluster's slices and claims from now on.
  explicit ClaimExtender(KubeClient& client);

  // The answer to a scheduler's call of /prioritize; "not_found": another path.
  Result<std::string> Answer(std::string_view path, std::string_view body);
  // Whether slices and claims were read.
  bool Ready();

 private:
  std::mutex mutex_;
  ClaimAccount account_;
  bool slices_listed_ = false;
  bool claims_listed_ = false;

  ListWatch slices_;
  ListWatch claims_;
};

}  // namespace prorata::kubernetes
