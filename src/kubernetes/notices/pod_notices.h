#pragma once

// Follows the agent's events on a thread of its own, and tells the pods whose shares they are of
// (notice.h), as events that `kubectl describe pod` shows. What happened before it began is not
// told. While the agent or the API server is away, nothing is kept for later.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/control.h"
#include "api/control_connection.h"
#include "kubernetes/api/pod_events.h"
#include "kubernetes/notices/notice.h"
#include "kubernetes/notices/share_holder.h"

namespace prorata::kubernetes {

class PodNotices {
 public:
  using HoldersOf = std::function<std::vector<ShareHolder>(const std::string& share)>;

  // `holders_of`: called from the thread; shares of others have none. `events` outlives it.
  PodNotices(std::string agent_socket, PodEvents& events, HoldersOf holders_of);
  ~PodNotices();
  PodNotices(const PodNotices&) = delete;
  PodNotices& operator=(const PodNotices&) = delete;

 private:
  void Run();
  void Follow(cli::ControlConnection connection);
  // Nothing: the agent is gone, or we are to end.
  std::optional<api::EventsReply> Next(cli::ControlConnection* connection);
  void Report(const api::Event& event);
  // Each trouble once, until it is over (empty) or another comes.
  void Warn(const std::string& trouble);

  const std::string agent_socket_;
  PodEvents& events_;
  const HoldersOf holders_of_;
  NoticeFilter filter_;
  std::optional<uint64_t> since_;  // absent: from now on
  std::string trouble_;

  std::mutex mutex_;
  std::condition_variable stop_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

}  // namespace prorata::kubernetes
