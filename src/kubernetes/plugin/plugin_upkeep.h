#pragma once

// What the device plugin does beside answering the kubelet, on threads of its own: it follows the
// node's pods, removes the shares of those that are gone, and writes on the node what its GPUs have
// for pods.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/list_watch.h"
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
  ~PluginUpkeep();
  PluginUpkeep(const PluginUpkeep&) = delete;
  PluginUpkeep& operator=(const PluginUpkeep&) = delete;

  // From any thread: shares may have become stale, or the node lost its annotation.
  void Kick();

 private:
  void Run();
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

  std::mutex mutex_;
  std::condition_variable due_;
  bool kicked_ = true;
  bool stopped_ = false;
  std::thread worker_;
  std::unique_ptr<ListWatch> watch_;
};

}  // namespace prorata::kubernetes
