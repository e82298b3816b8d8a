#pragma once

#include <chrono>
#include <string>

#include "api/control_connection.h"
#include "base/result.h"

namespace prorata::cli {

// Where an agent of this user lives, and how to make one.
struct AgentPlace {
  std::string runtime_dir;
  std::string socket_path;
  std::string executable;  // prorata itself, for `prorata agent`
  // So long an agent may take that begins or ends, and others that start one. The driver of a GPU
  // that nobody uses takes seconds to begin, and an agent gives it 30.
  std::chrono::seconds patience{60};
};

// Connects to the agent that runs, with a word on standard error when it does not answer. Errors:
// those of ControlConnection::Connect.
Result<ControlConnection> ConnectTo(const AgentPlace& place);

// The same, and starts one where none answers. Any number of processes may do this at once: one
// starts it, the others wait, for `patience` at most: who starts it may be stopped. The agent
// started so is in a session of its own, writes to RUNTIME_DIR/agent.log and ends after its last
// share. Errors: those of ControlConnection::Connect, and "agent_start" with what the agent said.
Result<ControlConnection> ConnectOrStart(const AgentPlace& place);

// What a command says that met no agent: that none runs, and `then`; or that one lives that does
// not listen, since it is starting (which takes as long as the driver does) or ending.
std::string NoAgentText(const AgentPlace& place, const std::string& then);

}  // namespace prorata::cli
