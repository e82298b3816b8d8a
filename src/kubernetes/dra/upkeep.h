#pragma once

// What the driver does beside answering the kubelet, in two threads of its own: the node's slice is
// published, and again whenever the agent's shares or devices change or somebody drops it (the
// kubelet does when it starts); shares of claims that are gone are removed.
//
// Nothing before the kubelet has registered the driver: one that starts drops the slices of before.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "kubernetes/api/kube_client.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/dra/claims.h"
#include "kubernetes/dra/slice_publisher.h"

namespace prorata::kubernetes {

class Upkeep {
 public:
  Upkeep(KubeClient& client, Agent& agent, Claims& claims, const std::string& node);
  ~Upkeep();
  Upkeep(const Upkeep&) = delete;
  Upkeep& operator=(const Upkeep&) = delete;

  // From any thread.
  void Registered();  // by a kubelet that may have forgotten everything
  void Changed();     // something of the agent's has

 private:
  void Run();
  void WatchSlice();
  Status Publish();
  void PublishOnce();
  void RemoveStale();
  // Logs what went wrong when it is another thing than the last time, and when it is over.
  void Report(const char* what, const Status& outcome, std::string* last);
  // False: stopped.
  bool SleepUntilDue(std::chrono::milliseconds most);

  Agent& agent_;
  Claims& claims_;
  KubeClient& client_;
  SlicePublisher publisher_;

  std::mutex mutex_;
  std::condition_variable due_;
  bool kicked_ = false;
  bool registered_ = false;
  bool stale_due_ = false;
  std::atomic<bool> stopped_ = false;
  std::string publish_trouble_ = {};
  std::string stale_trouble_ = {};

  std::thread worker_;
  std::thread watcher_;
};

}  // namespace prorata::kubernetes
