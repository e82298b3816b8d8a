#pragma once

// Keeps this node's ResourceSlice what it should be. One thread at a time, but for Invalidate.

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "kubernetes/api/kube_client.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/dra/resource_slice.h"

namespace prorata::kubernetes {

class SlicePublisher {
 public:
  SlicePublisher(KubeClient& client, std::string node) : client_(client), node_(std::move(node)) {}

  // Writes the slice if it is another than the API server has. Errors: KubeClient's; then it is to
  // be tried again.
  Status Publish(const NodeState& state, const AllocatedClaims& allocated);

  // The API server's may have changed: what is known of it is read anew.
  void Invalidate() { known_is_old_ = true; }

  // The path by which the slice is listed and watched.
  std::string ListPath() const;

  // How often it was written; for tests and the log.
  int64_t writes() const { return writes_; }

 private:
  Status Refresh();
  Result<NodeReference> FindNode();

  KubeClient& client_;
  const std::string node_;
  std::optional<nlohmann::json> known_;  // as the API server has it; nothing: it has none
  std::atomic<bool> known_is_old_ = true;
  std::optional<NodeReference> owner_;
  int64_t generation_ = 0;
  bool no_taints_ = false;  // a cluster that does not know them (feature gate DRADeviceTaints)
  int64_t writes_ = 0;
};

}  // namespace prorata::kubernetes
