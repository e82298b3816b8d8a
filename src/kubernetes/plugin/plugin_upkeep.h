#pragma once

// What the device plugin does beside answering the kubelet, on threads of its own: it follows the
// node's pods, removes the shares of those that are gone, and writes on the node what its GPUs have
// for pods.

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/list_watch.h"
#include "kubernetes/api/repeated.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/plugin/container_shares.h"
#include "kubernetes/plugin/node_pods.h"
#include "kubernetes/pods/annotations.h"

namespace prorata::kubernetes {

class PluginUpkeep {
 public:
  // `on_devices`: the node's GPUs, whenever the agent answered; from a thread of this. All
  // references outlive it.
  PluginUpkeep(KubeClient& client, Agent& agent, NodePods& pods, ContainerShares& shares,
               std::string node, std::function<void(const NodeState&)> on_devices);
  ~PluginUpkeep() { look_.Stop(); }

 private:
  Status LookOnce();
  Status Publish(const NodeState& state);
  void Report(const Status& outcome);

  KubeClient& client_;
  Agent& agent_;
  ContainerShares& shares_;
  const std::string node_;
  const std::function<void(const NodeState&)> on_devices_;
  std::string published_ = {};
  std::chrono::steady_clock::time_point published_at_ = {};
  std::string trouble_ = {};

  Repeated look_;
  ListWatch watch_;
};

}  // namespace prorata::kubernetes
