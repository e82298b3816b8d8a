#pragma once

// The shares of a cluster's pods, as `kubectl prorata` shows them. Pure.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/control.h"

namespace prorata::kubernetes {

struct HoldingContainer {
  std::string pod_uid;
  std::string container;
};

// What one node said.
struct NodeShares {
  std::string node;
  std::vector<api::ShareStatus> shares;                  // its agent
  std::map<std::string, HoldingContainer> holders = {};  // its device plugin, by share
};

// From the kubelet's checkpoint (plugin/kubelet_checkpoint.h): which containers have the shares of
// a device plugin, which is this pod. Of several that had one after another it is the last. Empty:
// the checkpoint is none.
std::map<std::string, HoldingContainer> HoldersOf(const std::string& checkpoint,
                                                  const nlohmann::json& plugin_pod);

// A share and the pod that has it. A share of two pods (one claim) is there twice.
struct PodShare {
  std::string node;
  std::string pod_namespace;  // "-": no pod of the cluster's has it
  std::string pod;            // or the share's name
  std::string container;      // or several, with commas; "-": not known
  api::ShareStatus share;
};

// `pods` and `claims` are the items of the API's lists (v1 Pod, resource.k8s.io ResourceClaim; none
// where the cluster has no claims). A share of a claim is its pods' (status.reservedFor); any other
// is that of the pod whose container runs on it, by the container's id, or will, by `holders`. By
// namespace, pod and container.
std::vector<PodShare> PodShares(const nlohmann::json& pods, const nlohmann::json& claims,
                                const std::vector<NodeShares>& nodes);

// `prorata ps`' columns, with the pod in place of the share; a line for each GPU of a share.
std::string PodTable(const std::vector<PodShare>& shares);

// Sentences about one pod: what it has, what it gets, why it is slow, or why it has nothing. `pod`:
// its object; `events`: the items of its events.
std::string WhyText(const nlohmann::json& pod, const nlohmann::json& events,
                    const std::vector<PodShare>& shares);

}  // namespace prorata::kubernetes
