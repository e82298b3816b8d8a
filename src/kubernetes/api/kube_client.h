#pragma once

// A REST client of the API server, over libcurl. Thread-safe: calls of several threads run side by
// side, each on a connection of its own that is kept for later ones.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/api/kube_config.h"

namespace prorata::kubernetes {

// Errors have the server's own words and what was asked of it: "api_unreachable" (no answer),
// "not_found", "conflict" (it was changed or made meanwhile), "forbidden", "unauthorized", "gone"
// (a watch begins too long ago), "api_error".
class KubeClient {
 public:
  explicit KubeClient(KubeConfig config);
  ~KubeClient();
  KubeClient(const KubeClient&) = delete;
  KubeClient& operator=(const KubeClient&) = delete;

  // `path`: "/api/v1/nodes/n1", with its query. An answer takes at most ten seconds.
  Result<nlohmann::json> Get(const std::string& path);
  Result<nlohmann::json> Post(const std::string& path, const nlohmann::json& body);
  Result<nlohmann::json> Put(const std::string& path, const nlohmann::json& body);
  // A JSON merge patch (RFC 7386): fields that are null are removed.
  Result<nlohmann::json> Patch(const std::string& path, const nlohmann::json& body);

  // A GET of a watch: `on_event` for each event as it comes, until the server ends it (no error),
  // the connection breaks, or `stop` is set (within a second).
  Status Watch(const std::string& path, const std::function<void(const nlohmann::json&)>& on_event,
               const std::atomic<bool>& stop);

  const std::string& server() const { return config_.server; }

 private:
  class Request;

  Result<nlohmann::json> Call(const char* method, const std::string& path,
                              const nlohmann::json* body);
  void* TakeHandle();
  void GiveHandle(void* handle);

  const KubeConfig config_;
  std::mutex mutex_;
  std::vector<void*> idle_;  // libcurl's handles, with their connections
};

}  // namespace prorata::kubernetes
