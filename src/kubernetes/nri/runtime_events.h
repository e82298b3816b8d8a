#pragma once

// What the container runtime of a node says of its pods by the Node Resource Interface, and what is
// answered. Plain data: nothing here knows the protocol.

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace prorata::kubernetes {

struct RuntimePod {
  std::string id;  // of its sandbox: a pod can have another one later
  std::string uid;
  std::string name_space;
  std::string name;
  std::map<std::string, std::string> annotations;
  bool runs = false;  // its sandbox does; known in Synchronized alone
};

struct RuntimeContainer {
  std::string id;
  std::string pod_id;
  std::string name;
  bool stopped = false;
  std::vector<std::string> environment;    // "NAME=VALUE", the image's too
  std::vector<std::string> cdi_devices;    // that it was given by others
  std::vector<std::string> mount_targets;  // paths in it
};

// Called from one thread, one call at a time.
class RuntimeEvents {
 public:
  virtual ~RuntimeEvents() = default;

  // All pods and containers that there are: what happened while nobody listened is in it.
  virtual void Synchronized(const std::vector<RuntimePod>& pods,
                            const std::vector<RuntimeContainer>& containers) = 0;
  // The names of the CDI devices that the container gets in addition, or why it must not be made.
  // The runtime makes it without them if it has no answer at the deadline.
  virtual Result<std::vector<std::string>> CreateContainer(
      const RuntimePod& pod, const RuntimeContainer& container,
      std::chrono::steady_clock::time_point deadline) = 0;
  virtual void PodRuns(const RuntimePod& pod) = 0;
  // All of its containers have. containerd 2.2 says so only of pods that it has run since it
  // started itself (internal/nri keeps no state of others' sandboxes); of all their containers it
  // does.
  virtual void PodEnded(const RuntimePod& pod) = 0;
  virtual void ContainerStopped(const RuntimePod& pod, const RuntimeContainer& container) = 0;
  // From here to the next Synchronized nothing is heard.
  virtual void Disconnected() = 0;
};

}  // namespace prorata::kubernetes
