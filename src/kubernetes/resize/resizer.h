#pragma once

// The thread that keeps shares as the annotations of their pods say (resizes.h): at once when a pod
// changes or a claim is prepared, and now and then, for what did not fit before.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "kubernetes/api/kube_client.h"
#include "kubernetes/resize/pod_watch.h"
#include "kubernetes/resize/resizes.h"

namespace prorata::kubernetes {

class Resizer {
 public:
  // `changed`: a share was, from the resizer's thread.
  Resizer(KubeClient& client, Agent& agent, Claims& claims, const std::string& node,
          std::function<void()> changed);
  ~Resizer();
  Resizer(const Resizer&) = delete;
  Resizer& operator=(const Resizer&) = delete;

  // Claims were prepared or released. From any thread.
  void Changed();

  // The node's pods that have this claim. From any thread.
  std::vector<PodReference> PodsOf(const ClaimReference& claim) const;

 private:
  void Run();
  bool SleepUntilDue();

  KubePodEvents events_;
  Resizes resizes_;

  std::mutex mutex_;
  std::condition_variable due_;
  bool kicked_ = false;
  bool stopped_ = false;
  std::string trouble_ = {};

  PodWatch pods_;
  std::thread thread_;
};

}  // namespace prorata::kubernetes
