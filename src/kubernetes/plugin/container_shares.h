#pragma once

// The shares of this node's containers that have GPUs by the device plugin.
//
// The kubelet asks twice about a container, and neither time says which it is:
//
//   Allocate   at admission, with the IDs of devices that the container gets. The answer is a CDI
//              device that has its name from these IDs (DeviceOf); nothing is made.
//   PreStart   before the container is created, with the same IDs. By now the kubelet's checkpoint
//              says whose they are, and the pod's annotation which GPUs the extender gave it. The
//              share is made, and with it the CDI device's file, which the runtime reads later.
//
// Invariants:
//   1. Of the containers that run at one time, no two have a device ID in common. So the least ID
//      names one of them. An init container's IDs are given again to those after it.
//   2. A container without share does not start: PreStart fails, and without its file the CDI
//      device cannot be resolved.
//   3. A share is removed only when the checkpoint has nobody for its ID any more, or a pod that
//      the API server says has ended. Both are read after the share was seen, under its lock: a
//      share made meanwhile has its pod in both.
//
// Nothing is remembered here: a plugin that was killed goes on where it was. Thread-safe.

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/control.h"
#include "base/result.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/dra/claims.h"
#include "kubernetes/notices/share_holder.h"
#include "kubernetes/plugin/kubelet_checkpoint.h"
#include "kubernetes/plugin/node_pods.h"
#include "kubernetes/pods/pod_request.h"

namespace prorata::kubernetes {

// The share of a container, by the IDs of its memory units, which are numbers.
// "bad_device": there is none, or one that this plugin did not make.
Result<std::string> ShareOfUnits(std::span<const std::string> ids);
// Whether a share is one of those.
bool IsPodShare(std::string_view share_name);

class ContainerShares {
 public:
  using ReadCheckpoint = std::function<Result<std::vector<DeviceGrant>>()>;

  ContainerShares(Agent& agent, NodePods& pods, ReadCheckpoint read, ResourceNames names)
      : agent_(agent), pods_(pods), read_(std::move(read)), names_(std::move(names)) {}

  // The name of the CDI device for a container that gets these memory units. "bad_device".
  static Result<std::string> CdiDeviceOf(std::span<const std::string> ids);

  // Makes the share of the container that was given these IDs, or finds it made, within the
  // deadline; returns the container, as "NAMESPACE/POD/CONTAINER". Errors: "checkpoint",
  // "unknown_device" (nobody has these IDs), "unknown_pod", "bad_request", "not_assigned" (it was
  // not bound by the extender), "bad_annotation", the agent's.
  Result<std::string> Start(const std::string& resource, std::span<const std::string> ids,
                            Agent::Deadline deadline);

  // Whose a share is; nothing: nobody's that is known now.
  std::optional<ShareHolder> HolderOf(const std::string& share);

  // Holds the shares to what the annotations of their pods ask for (pods/container_wishes.h);
  // returns what was changed, with the share's name. An annotation that is wrong changes nothing.
  Result<std::vector<std::string>> ApplyWishes(Agent::Deadline deadline);

  // Removes the shares of containers that are gone; returns their names.
  Result<std::vector<std::string>> RemoveStale(Agent::Deadline deadline);

 private:
  Status Create(const api::ShareSpec& spec, Agent::Deadline deadline);
  Status EndOthers(const std::vector<DeviceGrant>& grants, const DeviceGrant& container,
                   const NodePod& pod, Agent::Deadline deadline);
  Status EndShare(const api::ShareSpec& spec, Agent::Deadline deadline);
  // By the name of the share.
  std::map<std::string, api::ShareSpec> WantedShares(const std::vector<DeviceGrant>& grants);
  Result<bool> RemoveIfStale(const std::string& name, Agent::Deadline deadline);

  Agent& agent_;
  NodePods& pods_;
  const ReadCheckpoint read_;
  const ResourceNames names_;
  KeyLocks locks_;  // by the name of a share
};

}  // namespace prorata::kubernetes
