#pragma once

// The shares of a cluster's pods, as `kubectl prorata` shows them. Pure.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/control.h"

namespace prorata::kubernetes {

// What one node's agent said.
struct NodeShares {
  std::string node;
  std::vector<api::ShareStatus> shares;
};

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
// is that of the pod whose container runs on it, by the container's id. By namespace, pod and
// container.
std::vector<PodShare> PodShares(const nlohmann::json& pods, const nlohmann::json& claims,
                                const std::vector<NodeShares>& nodes);

// `prorata ps`' columns, with the pod in place of the share; a line for each GPU of a share.
std::string PodTable(const std::vector<PodShare>& shares);

// Sentences about one pod: what it has, what it gets, why it is slow, or why it has nothing. `pod`:
// its object; `events`: the items of its events.
std::string WhyText(const nlohmann::json& pod, const nlohmann::json& events,
                    const std::vector<PodShare>& shares);

}  // namespace prorata::kubernetes
