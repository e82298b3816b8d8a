#pragma once

// Who has a share: a pod, and where it is one container's, which.

#include <string>

#include "kubernetes/api/pod_events.h"

namespace prorata::kubernetes {

struct ShareHolder {
  PodReference pod;
  std::string container;  // empty: it may be any of the pod's
};

}  // namespace prorata::kubernetes
