#pragma once

// The Node Resource Interface as a plugin speaks it, on one connection from its first byte to its
// last. Without a socket: bytes in, bytes out.
//
//   plugin                                   runtime
//   RegisterPlugin (runtime's service) ───►
//                                      ◄───  Configure: which events?
//                                      ◄───  Synchronize: what there is, in one or several messages
//                                      ◄───  CreateContainer, StopContainer, StateChange: singly
//
// The runtime waits for each answer for its request timeout (2 s unless it is configured), while
// all other pods of the node wait, too. If there is none, it closes the connection and makes the
// container without the plugin: so CreateContainer is given a deadline well before that.
// One thread.

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kubernetes/nri/frames.h"
#include "kubernetes/nri/runtime_events.h"

namespace prorata::kubernetes {

struct NriPluginName {
  std::string name;
  std::string index;        // two digits
  bool only_looks = false;  // it wants to know what there is, and nothing more
};

class PluginSession {
 public:
  // `events` outlives it.
  PluginSession(RuntimeEvents& events, NriPluginName plugin)
      : events_(events), plugin_(std::move(plugin)) {}

  // What is sent first.
  std::string Begin() const;

  // Takes what was received, and returns what is to be sent. "nri_protocol"; "nri_refused": the
  // runtime does not want the plugin. The connection is to be closed after either.
  Result<std::string> Take(std::string_view bytes);

  // Whether the runtime has said what there is.
  bool synchronized() const { return synchronized_; }

 private:
  Result<std::string> Answer(const TtrpcMessage& message);
  Result<std::string> Call(std::string_view method, const std::string& payload);
  Result<std::string> Configure(const std::string& payload);
  Result<std::string> Synchronize(const std::string& payload);
  Result<std::string> CreateContainer(const std::string& payload);
  Result<std::string> StopContainer(const std::string& payload);
  Result<std::string> StateChange(const std::string& payload);

  RuntimeEvents& events_;
  const NriPluginName plugin_;
  FrameDecoder decoder_;
  std::chrono::milliseconds answer_within_{1'000};
  std::vector<RuntimePod> pods_;  // of a Synchronize that comes in several messages
  std::vector<RuntimeContainer> containers_;
  bool synchronized_ = false;
};

}  // namespace prorata::kubernetes
