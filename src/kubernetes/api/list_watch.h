#pragma once

// Follows the objects of one kind: lists them, then watches what changes, and lists anew whenever
// the watch cannot be continued. On a thread of its own, from construction to destruction.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>
#include <unordered_set>

#include "base/result.h"
#include "kubernetes/api/kube_client.h"

namespace prorata::kubernetes {

class ListWatch {
 public:
  // All are called on the thread, one at a time.
  struct Handlers {
    std::function<void(const nlohmann::json& object)> changed;  // listed, added or modified
    std::function<void(const nlohmann::json& object)> gone;
    // A list is complete: what was known before and is not among these UIDs is gone.
    std::function<void(const std::unordered_set<std::string>& uids)> listed;
  };

  // `path`: of the collection, with selectors ("/api/v1/pods?fieldSelector=..."). `what`: for the
  // log, which names each failure once.
  ListWatch(KubeClient& client, std::string path, std::string what, Handlers handlers);
  ~ListWatch();
  ListWatch(const ListWatch&) = delete;
  ListWatch& operator=(const ListWatch&) = delete;

 private:
  void Run();
  // Errors: KubeClient's; "api_error": no list.
  Status List();
  Status Watch();
  void OnEvent(const nlohmann::json& event);
  void Report(const Status& outcome);
  std::string PathWith(const std::string& query) const;

  KubeClient& client_;
  const std::string path_;
  const std::string what_;
  const Handlers handlers_;
  std::string version_ = {};  // the resourceVersion that is known; empty: a list comes first
  std::string trouble_ = {};

  std::mutex mutex_;
  std::condition_variable stopping_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

}  // namespace prorata::kubernetes
