#pragma once

// What `kubectl prorata` asks a cluster: its pods and claims of the API server, their shares of
// each node's agent, through the pod of prorata's that runs on the node.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/kubectl/kubectl.h"
#include "kubernetes/kubectl/pod_shares.h"

namespace prorata::kubernetes {

struct ClusterShares {
  std::vector<PodShare> shares;
  std::vector<std::string> problems;  // nodes that did not answer, and why; a sentence each
};

// `pod_namespace` "": of all. Errors: Kubectl's; "no_node" where no pod of prorata's runs in
// `system_namespace`. Nodes are asked at the same time.
Result<ClusterShares> AskCluster(const Kubectl& kubectl, const std::string& system_namespace,
                                 const std::string& pod_namespace);

// The items of a list that `kubectl get ... --output=json` printed. Errors: as AskCluster, and
// "bad_answer".
Result<nlohmann::json> GetItems(const Kubectl& kubectl, std::vector<std::string> arguments);

}  // namespace prorata::kubernetes
