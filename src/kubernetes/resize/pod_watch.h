#pragma once

// The pods of a node, as the API server has them now. Thread-safe.

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/list_watch.h"
#include "kubernetes/resize/pod_set.h"

namespace prorata::kubernetes {

class PodWatch {
 public:
  // `changed`: from the watch's own thread, whenever the pods may be others.
  PodWatch(KubeClient& client, const std::string& node, std::function<void()> changed);

  // Those with claims. Nothing: they were never listed.
  std::optional<std::vector<PodView>> Pods() const;

 private:
  void Listed(const std::unordered_set<std::string>& uids);

  const std::function<void()> changed_;
  mutable std::mutex mutex_;
  PodSet pods_;
  bool listed_ = false;
  ListWatch watch_;  // last: it calls as soon as it is there
};

}  // namespace prorata::kubernetes
