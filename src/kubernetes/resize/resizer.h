#pragma once

// The thread that keeps shares as the annotations of their pods say (resizes.h): at once when a pod
// changes or a claim is prepared, and now and then, for what did not fit before.

#include <functional>
#include <string>
#include <vector>

#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/repeated.h"
#include "kubernetes/resize/pod_watch.h"
#include "kubernetes/resize/resizes.h"

namespace prorata::kubernetes {

class Resizer {
 public:
  // `changed`: a share was, from the resizer's thread.
  Resizer(KubeClient& client, Agent& agent, Claims& claims, const std::string& node,
          std::function<void()> changed);
  ~Resizer() { reconcile_.Stop(); }

  // Claims were prepared or released. From any thread.
  void Changed() { reconcile_.Soon(); }

  // The node's pods that have this claim. From any thread.
  std::vector<PodReference> PodsOf(const ClaimReference& claim) const;

 private:
  void Reconcile();

  KubePodEvents events_;
  Resizes resizes_;
  std::string trouble_ = {};

  Repeated reconcile_;
  PodWatch pods_;
};

}  // namespace prorata::kubernetes
