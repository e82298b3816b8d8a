#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "api/control.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "wire/frame.h"

namespace prorata::cli {

// An answer takes a millisecond; from an agent that was started just now, up to two seconds, in
// which those that waited in line come back (agent/node/starts.cc).
inline constexpr std::chrono::seconds kAnswerWithin{3};

// A connection to the control socket of an agent, whose owner was checked. One thread at a time.
class ControlConnection {
 public:
  // Connects to `socket_path`. Errors:
  //   "no_agent"      nobody listens there (no such socket, or nobody behind it)
  //   "foreign_agent" the socket's folder, or who listens, belongs neither to us nor to root
  //   "no_access"     the socket is there, and may not be opened
  //   "connect"       anything else
  static Result<ControlConnection> Connect(const std::string& socket_path);

  // Sends a request (the text of a JSON object) and waits for its reply, an object too, for as long
  // as it takes. "agent_gone" when the agent ended meanwhile; "agent_reply" when what it said is no
  // reply.
  Result<nlohmann::json> Call(const std::string& body);

  // Called once if Call has waited for kAnswerWithin, with a message for people; it goes on
  // waiting.
  std::function<void(const std::string&)> on_unanswered;
  // That message, for who waits by itself: which agent does not answer, and what to do.
  std::string Unanswered() const;

  // The two halves of Call, for who waits for more than the agent: Send, and then the next object
  // that it sent (nothing: it has not come yet, and poll() on fd() tells when to look).
  Status Send(const std::string& body);
  Result<std::optional<nlohmann::json>> TakeNext();

  int fd() const { return fd_.get(); }

 private:
  ControlConnection(UniqueFd fd, std::string socket_path, pid_t agent);

  Result<std::optional<nlohmann::json>> TakeFrame();
  // Receives once; false: nothing was there (never so without MSG_DONTWAIT).
  Result<bool> Receive(int flags);

  void NoticeIfUnanswered();

  UniqueFd fd_;
  std::string socket_path_;
  pid_t agent_;                        // 0: not a process of our pid namespace
  std::unique_ptr<uint8_t[]> buffer_;  // where it is does not change when this is moved
  wire::FrameReader reader_;
};

// After ControlOp::kEvents was sent: what came next of it; nothing: not yet, as TakeNext. Errors:
// TakeNext's, the agent's own answer, "agent_reply".
Result<std::optional<api::EventsReply>> TakeEvents(ControlConnection& connection);

}  // namespace prorata::cli
