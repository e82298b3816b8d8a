#pragma once

// The pods of this node as the API server last said: a cache by UID, so containers can be started
// again while the API server is away. Thread-safe.

#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/pods/container_wishes.h"
#include "kubernetes/pods/pod_request.h"

namespace prorata::kubernetes {

struct NodePod {
  std::string name;                                // "NAMESPACE/NAME"
  Result<std::vector<ContainerRequest>> requests;  // of its containers that ask for GPUs
  std::optional<std::string> assigned;             // kAssignedGpusAnnotation
  // By container (pods/container_wishes.h).
  Result<std::map<std::string, ShareWish>> wishes = std::map<std::string, ShareWish>();
};

class NodePods {
 public:
  explicit NodePods(ResourceNames names) : names_(std::move(names)) {}

  // From the API server. A pod that has ended (Succeeded, Failed) is none.
  void Change(const nlohmann::json& pod);
  void Remove(const std::string& uid);
  void KeepOnly(const std::unordered_set<std::string>& uids);

  // Waits for a pod that the kubelet knows and we do not yet. Nothing: not before the deadline.
  std::optional<NodePod> Find(const std::string& uid, Agent::Deadline deadline);
  // The pods with GPUs that have not ended; nothing: not known yet.
  std::optional<std::unordered_set<std::string>> Alive();

 private:
  const ResourceNames names_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, NodePod> pods_;
  bool listed_ = false;
};

}  // namespace prorata::kubernetes
