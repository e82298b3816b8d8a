#pragma once

// Keeps a plugin connected to the container runtime's NRI socket, on a thread of its own: again
// every second while nobody listens there, and after the runtime was restarted.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "kubernetes/nri/plugin_session.h"

namespace prorata::kubernetes {

// What the runtime says there is, when it is asked by a connection of its own that asks for nothing
// more. "nri_socket"; "nri_lost"; "nri_slow": it did not say so in time; PluginSession's errors.
struct RuntimeState {
  std::vector<RuntimePod> pods;
  std::vector<RuntimeContainer> containers;
};
Result<RuntimeState> AskRuntime(const std::string& socket_path, const NriPluginName& plugin,
                                std::chrono::milliseconds within);

class NriPlugin {
 public:
  // `events`: called from the thread; outlives this.
  NriPlugin(std::string socket_path, NriPluginName plugin, RuntimeEvents& events);
  ~NriPlugin();
  NriPlugin(const NriPlugin&) = delete;
  NriPlugin& operator=(const NriPlugin&) = delete;

 private:
  void Run();
  // One connection, to its end. Why it ended; success: it was stopped.
  Status Serve();
  Status Exchange(int fd);
  bool Wait(int fd) const;  // false: it was stopped
  void Report(const Status& ended);

  const std::string socket_path_;
  const NriPluginName plugin_;
  RuntimeEvents& events_;
  std::string trouble_ = {};  // the last one that was logged

  UniqueFd stop_;  // readable: end
  std::thread thread_;
};

}  // namespace prorata::kubernetes
