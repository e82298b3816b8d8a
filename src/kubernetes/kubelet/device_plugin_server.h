#pragma once

// The sockets by which the kubelet finds the two resources and asks for their devices
// (device_plugin.proto). A kubelet that starts removes all sockets of plugins: whenever that has
// happened, or its own socket is another one, the plugin serves and registers anew.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "kubernetes/plugin/container_shares.h"

namespace prorata::kubernetes {

struct DevicePluginOptions {
  std::string folder;  // /var/lib/kubelet/device-plugins
  ResourceNames names;
};

// How many devices there are of each resource. Their IDs are "0", "1" and so on: none stands for a
// certain GPU, since the extender decides that.
struct DeviceCounts {
  uint32_t compute = 0;
  uint32_t memory = 0;

  bool operator==(const DeviceCounts&) const = default;
};

class DevicePluginServer {
 public:
  // Serves from now on, from threads of its own. `shares` outlives it.
  DevicePluginServer(ContainerShares& shares, DevicePluginOptions options);
  // Removes the sockets; the kubelet takes the resources from the node.
  ~DevicePluginServer();
  DevicePluginServer(const DevicePluginServer&) = delete;
  DevicePluginServer& operator=(const DevicePluginServer&) = delete;

  // From any thread. Nothing is registered before the first call.
  void SetCounts(const DeviceCounts& counts);

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace prorata::kubernetes
