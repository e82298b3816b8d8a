#pragma once

// The sockets by which the kubelet finds the driver and asks it for claims
// (plugin_registration.proto, dra.proto).

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/claims.h"

namespace prorata::kubernetes {

struct DeviceHealth {
  std::string pool;
  std::string device;
  std::string trouble;  // empty: it is well
};

struct DraServerOptions {
  std::string kubelet_dir;  // /var/lib/kubelet
  // From a thread of the server's: the kubelet took the driver on, or refused it and why.
  std::function<void()> registered;
  std::function<void(const std::string& why)> refused;
  // Likewise, every few seconds: the health of all devices; nothing: it is not known now.
  std::function<std::optional<std::vector<DeviceHealth>>()> health;
};

class DraServer {
 public:
  // Serves from now on, from threads of its own. "socket": what cannot be listened on.
  static Result<std::unique_ptr<DraServer>> Start(Claims& claims, const DraServerOptions& options);
  // Answers what was asked, then removes the sockets: a kubelet would go on calling one that is
  // left there.
  ~DraServer();
  DraServer(const DraServer&) = delete;
  DraServer& operator=(const DraServer&) = delete;

 private:
  class Parts;
  explicit DraServer(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace prorata::kubernetes
