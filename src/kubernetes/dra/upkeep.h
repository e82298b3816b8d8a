#pragma once

// What the driver does beside answering the kubelet, in two threads of its own: the node's slice is
// published, and again whenever the agent's shares or devices change or somebody drops it (the
// kubelet does when it starts); shares of claims that are gone are removed.
//
// Nothing before the kubelet has registered the driver: one that starts drops the slices of before.

#include <atomic>
#include <string>

#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/list_watch.h"
#include "kubernetes/api/repeated.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/dra/claims.h"
#include "kubernetes/dra/slice_publisher.h"

namespace prorata::kubernetes {

class Upkeep {
 public:
  Upkeep(KubeClient& client, Agent& agent, Claims& claims, const std::string& node);
  ~Upkeep() { look_.Stop(); }

  // From any thread.
  void Registered();                // by a kubelet that may have forgotten everything
  void Changed() { look_.Soon(); }  // something of the agent's has

 private:
  void Invalidate();  // the slice may be another
  void Look();
  Status Publish();
  void PublishOnce();
  void RemoveStale();
  // Logs what went wrong when it is another thing than the last time, and when it is over.
  void Report(const char* what, const Status& outcome, std::string* last);

  Agent& agent_;
  Claims& claims_;
  SlicePublisher publisher_;

  std::atomic<bool> registered_ = false;
  std::atomic<bool> stale_due_ = false;
  std::string publish_trouble_ = {};
  std::string stale_trouble_ = {};

  Repeated look_;
  ListWatch slice_;
};

}  // namespace prorata::kubernetes
