#pragma once

// The scheduler's extender: filter, prioritize and bind of pods that ask for parts of GPUs.
//
// Bind writes a pod's node and its GPUs in one step (the API server takes over the annotations of a
// Binding), so no pod is ever bound without them. Thread-safe: binds of several pods run side by
// side, all else one after another.

#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/list_watch.h"
#include "kubernetes/extender/account.h"
#include "kubernetes/extender/protocol.h"
#include "kubernetes/pods/pod_request.h"

namespace prorata::kubernetes {

class Extender {
 public:
  // Follows the nodes and pods of the cluster from now on.
  Extender(KubeClient& client, ResourceNames names);

  // The answer to a scheduler's call, "/filter", "/prioritize" or "/bind"; "not_found": another
  // path. What goes wrong is in the answer.
  Result<std::string> Answer(std::string_view path, std::string_view body);
  // Whether nodes and pods were read, without which nothing is placed.
  bool Ready();

 private:
  std::string Filter(std::string_view body);
  std::string Prioritize(std::string_view body);
  std::string Bind(std::string_view body);
  Status BindPod(const BindArgs& args);
  Result<std::vector<ContainerRequest>> RequestsOf(const BindArgs& args);

  void NodeChanged(const nlohmann::json& node);
  void PodChanged(const nlohmann::json& pod);

  KubeClient& client_;
  const ResourceNames names_;

  std::mutex mutex_;
  Account account_;
  struct KnownNode {
    std::string name;
    std::string gpus;  // the annotation
  };
  std::unordered_map<std::string, KnownNode> known_nodes_;  // by UID
  bool nodes_listed_ = false;
  bool pods_listed_ = false;
  // What the last filter found, for the prioritize that follows it.
  std::string last_uid_ = {};
  std::vector<std::pair<std::string, int>> last_scores_;

  ListWatch nodes_;
  ListWatch pods_;
};

}  // namespace prorata::kubernetes
