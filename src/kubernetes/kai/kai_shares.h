#pragma once

// The shares of this node's pods that KAI placed on parts of GPUs. No device of ours is in such a
// pod, so neither the kubelet nor the API server asks about it; the container runtime does, before
// it makes the container.
//
// Invariants:
//   1. A container that has a part by KAI is not made without its share: CreateContainer fails.
//   2. A share is there until its pod's sandbox has ended, so a container that starts again has the
//      same one.
//   3. A share is removed only if its pod does not run, as the runtime said last, and the runtime
//      is connected. Both a new container and the removal hold the share's lock, and the removal
//      looks again under it.
//   4. Of a pod that ran before the runtime started itself the end is not reported (RuntimeEvents).
//      Once no container of it runs, the runtime is asked, again and again (Doubtful, Confirm).
//
// Nothing is kept that the runtime does not say when it connects. CreateContainer and the other
// events come from the runtime's thread, RemoveStale from another.

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/dra/claims.h"
#include "kubernetes/kai/kai_part.h"
#include "kubernetes/nri/runtime_events.h"

namespace prorata::kubernetes {

class KaiShares final : public RuntimeEvents {
 public:
  // `stale`: called when a share may have become stale, from the runtime's thread.
  KaiShares(Agent& agent, std::function<void()> stale) : agent_(agent), stale_(std::move(stale)) {}

  void Synchronized(const std::vector<RuntimePod>& pods,
                    const std::vector<RuntimeContainer>& containers) override;
  // Errors: KaiPartOf's, KaiShare's, the agent's; "busy".
  Result<std::vector<std::string>> CreateContainer(const RuntimePod& pod,
                                                   const RuntimeContainer& container,
                                                   Agent::Deadline deadline) override;
  void PodRuns(const RuntimePod& pod) override;
  void PodEnded(const RuntimePod& pod) override;
  void ContainerStopped(const RuntimePod& pod, const RuntimeContainer& container) override;
  void Disconnected() override;

  // Removes the shares of pods that have ended; returns their names.
  Result<std::vector<std::string>> RemoveStale(Agent::Deadline deadline);

  // Whether there are shares of pods that may have ended unreported.
  Result<bool> Doubtful(Agent::Deadline deadline);
  // What the runtime said meanwhile about those: the others are as reported.
  void Confirm(const std::vector<RuntimePod>& pods,
               const std::vector<RuntimeContainer>& containers);

 private:
  struct Pod {
    std::string sandbox;
    bool found = false;  // when the runtime connected, and not reported when it began
    std::set<std::string> containers = {};  // that run, if it was found
    bool Doubtful() const { return found && containers.empty(); }
  };
  using Pods = std::map<std::string, Pod>;  // those that run, by their UIDs

  static Pods RunningOf(const std::vector<RuntimePod>& pods,
                        const std::vector<RuntimeContainer>& containers);
  void ContainerRuns(const RuntimePod& pod, const RuntimeContainer& container);
  Status MakeShare(const KaiPart& part, const RuntimePod& pod, const std::string& container,
                   Agent::Deadline deadline);
  Result<bool> RemoveIfStale(const std::string& name, const std::string& pod_uid,
                             Agent::Deadline deadline);
  // Nothing: it is not known now.
  std::optional<bool> Runs(const std::string& pod_uid);

  Agent& agent_;
  const std::function<void()> stale_;
  KeyLocks locks_;  // by the name of a share
  std::mutex mutex_;
  std::optional<Pods> running_;  // absent: the runtime is not connected
};

}  // namespace prorata::kubernetes
