#pragma once

// What the kubelet keeps of the devices that it gave to containers: its file
// device-plugins/kubelet_internal_checkpoint. It is written before the container that it names
// starts, survives the kubelet, and unlike the kubelet's PodResources service it has the UIDs of
// pods and the init containers. The layout is the kubelet's own; from Kubernetes 1.20 to 1.37 it
// did not change. Pure but for Read; thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::kubernetes {

struct DeviceGrant {
  std::string pod_uid;
  std::string container;
  std::string resource;
  std::vector<std::string> ids;
};

// "checkpoint": it is not there, or of another layout.
Result<std::vector<DeviceGrant>> ParseKubeletCheckpoint(std::string_view text);
Result<std::vector<DeviceGrant>> ReadKubeletCheckpoint(const std::string& path);

}  // namespace prorata::kubernetes
