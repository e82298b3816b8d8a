#pragma once

// Follows the pods of a node: lists them, watches them, and lists them again when the watch is
// lost. Thread-safe.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kubernetes/api/kube_client.h"
#include "kubernetes/resize/pod_set.h"

namespace prorata::kubernetes {

class PodWatch {
 public:
  // `changed`: from the watch's own thread, whenever the pods may be others.
  PodWatch(KubeClient& client, std::string node, std::function<void()> changed);
  ~PodWatch();
  PodWatch(const PodWatch&) = delete;
  PodWatch& operator=(const PodWatch&) = delete;

  // Those with claims. Nothing: they were never listed.
  std::optional<std::vector<PodView>> Pods() const;

 private:
  void Run();
  Status ListOnce();
  Status WatchOnce();
  void Report(const Status& outcome);

  KubeClient& client_;
  const std::string selector_;
  const std::function<void()> changed_;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<bool> stopped_ = false;
  PodSet pods_;
  bool listed_ = false;
  bool list_is_due_ = true;   // the thread's own
  std::string trouble_ = {};  // likewise
  std::thread thread_;
};

}  // namespace prorata::kubernetes
