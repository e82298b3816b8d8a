#pragma once

// What the driver asks of the node's agent, each with an end. Thread-safe: each call has a
// connection of its own.

#include <chrono>
#include <string>
#include <vector>

#include "api/control.h"
#include "base/result.h"

namespace prorata::kubernetes {

struct NodeState {
  std::vector<api::DeviceStatus> devices;
  std::vector<api::ShareStatus> shares;
};

class Agent {
 public:
  virtual ~Agent() = default;

  using Deadline = std::chrono::steady_clock::time_point;

  // Errors of all of them: the agent's own; those of ControlConnection; "agent_slow", no answer
  // before the deadline.
  virtual Result<NodeState> List(Deadline deadline) = 0;
  // Waits in line until it fits; "timed_out" at the deadline, with what it waited for. A share that
  // is there under the same token is answered.
  virtual Result<api::ShareStatus> Create(const api::ShareSpec& spec, Deadline deadline) = 0;
  // Whole or not at all; the share as it is then.
  virtual Result<api::ShareStatus> Update(const std::string& name, const api::ShareChange& change,
                                          Deadline deadline) = 0;
  // One that is not there is removed.
  virtual Status Remove(const std::string& name, Deadline deadline) = 0;
};

class AgentClient final : public Agent {
 public:
  // At a deadline of Create the agent says what the share waited for; it gets so much longer for
  // that.
  static constexpr std::chrono::milliseconds kLateAnswer{3'000};

  explicit AgentClient(std::string socket_path, std::chrono::milliseconds late_answer = kLateAnswer)
      : socket_path_(std::move(socket_path)), late_answer_(late_answer) {}

  Result<NodeState> List(Deadline deadline) override;
  Result<api::ShareStatus> Create(const api::ShareSpec& spec, Deadline deadline) override;
  Result<api::ShareStatus> Update(const std::string& name, const api::ShareChange& change,
                                  Deadline deadline) override;
  Status Remove(const std::string& name, Deadline deadline) override;

 private:
  const std::string socket_path_;
  const std::chrono::milliseconds late_answer_;
};

}  // namespace prorata::kubernetes
