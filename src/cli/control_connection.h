#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace prorata::cli {

// A connection to the control socket of an agent, whose owner was checked. One thread at a time.
class ControlConnection {
 public:
  // Connects to `socket_path`. Errors:
  //   "no_agent"      nobody listens there (no such socket, or nobody behind it)
  //   "foreign_agent" the socket's folder, or who listens, belongs neither to us nor to root
  //   "no_access"     the socket is there, and may not be opened
  //   "connect"       anything else
  static Result<ControlConnection> Connect(const std::string& socket_path);

  // Sends a request (the text of a JSON object) and waits for its reply, an object too.
  // "agent_gone" when the agent ended meanwhile; "agent_reply" when what it said is no reply.
  Result<nlohmann::json> Call(const std::string& body);

  int fd() const { return fd_.get(); }

 private:
  explicit ControlConnection(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace prorata::cli
