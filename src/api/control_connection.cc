#include "api/control_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "wire/frame.h"

namespace prorata::cli {
namespace {

using wire::FrameHeader;
using wire::FrameReader;

constexpr size_t kBufferBytes = wire::kFrameHeaderBytes + wire::kMaxControlReplyBytes;

bool Trusted(uid_t uid) { return uid == 0 || uid == ::geteuid(); }

std::unexpected<Error> Foreign(const std::string& what, uid_t uid) {
  return Fail("foreign_agent", what + " belongs to user " + std::to_string(uid) +
                                   ", neither to you nor to root; it is not used. Set PRORATA_DIR "
                                   "to a folder of your own to start another agent");
}

// The folder first: who may write there may put any socket there.
Status CheckFolder(const std::string& socket_path) {
  const std::string folder = socket_path.substr(0, socket_path.rfind('/'));
  struct stat info;
  if (::lstat(folder.c_str(), &info) != 0) return {};
  if (!Trusted(info.st_uid)) return Foreign("the agent's folder '" + folder + "'", info.st_uid);
  return {};
}

// The agent's process.
Result<pid_t> CheckPeer(int fd, const std::string& socket_path) {
  struct ucred peer = {};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return FailErrno("connect", "cannot see who listens at '" + socket_path + "'", errno);
  }
  if (!Trusted(peer.uid)) return Foreign("the agent at '" + socket_path + "'", peer.uid);
  return peer.pid;
}

std::unexpected<Error> Gone() {
  return Fail("agent_gone", "the agent ended before it answered; try again");
}

Status SendAll(int fd, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return Gone();
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return {};
}

}  // namespace

ControlConnection::ControlConnection(UniqueFd fd, std::string socket_path, pid_t agent)
    : fd_(std::move(fd)),
      socket_path_(std::move(socket_path)),
      agent_(agent),
      buffer_(new uint8_t[kBufferBytes]),  // not touched until used
      reader_(buffer_.get(), kBufferBytes) {}

Result<ControlConnection> ControlConnection::Connect(const std::string& socket_path) {
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) {
    return Fail("connect", "the path of the agent's socket, '" + socket_path +
                               "', is longer than the 107 characters a socket can have; set "
                               "PRORATA_DIR to a shorter folder");
  }
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  if (auto ok = CheckFolder(socket_path); !ok) return std::unexpected(ok.error());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return FailErrno("connect", "cannot make a socket", errno);
  int connected;
  do {
    connected = ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  } while (connected != 0 && errno == EINTR);
  if (connected != 0) {
    const int error_number = errno;
    const std::string what = "cannot reach the agent at '" + socket_path + "'";
    const bool nobody = error_number == ENOENT || error_number == ECONNREFUSED;
    const bool denied = error_number == EACCES || error_number == EPERM;
    return FailErrno(nobody ? "no_agent" : denied ? "no_access" : "connect", what, error_number);
  }
  const auto agent = CheckPeer(fd.get(), socket_path);
  if (!agent) return std::unexpected(agent.error());
  return ControlConnection(std::move(fd), socket_path, *agent);
}

Status ControlConnection::Send(const std::string& body) {
  const FrameHeader header = {static_cast<uint32_t>(body.size()),
                              static_cast<uint16_t>(wire::MessageType::kControlJson),
                              wire::kWireVersion};
  if (auto ok = SendAll(fd_.get(), &header, sizeof header); !ok) return ok;
  return SendAll(fd_.get(), body.data(), body.size());
}

Result<nlohmann::json> ControlConnection::Call(const std::string& body) {
  if (auto ok = Send(body); !ok) return std::unexpected(ok.error());
  for (;;) {
    auto reply = TakeFrame();
    if (!reply) return std::unexpected(reply.error());
    if (*reply) return std::move(**reply);
    NoticeIfUnanswered();
    if (auto got = Receive(0); !got) return std::unexpected(got.error());
  }
}

void ControlConnection::NoticeIfUnanswered() {
  if (!on_unanswered) return;
  pollfd answer = {fd_.get(), POLLIN, 0};
  constexpr auto kWithin = std::chrono::milliseconds(kAnswerWithin);
  if (::poll(&answer, 1, static_cast<int>(kWithin.count())) != 0) return;
  std::exchange(on_unanswered, nullptr)(Unanswered());
}

std::string ControlConnection::Unanswered() const {
  const std::string pid = std::to_string(agent_);
  return "the agent at '" + socket_path_ + "'" + (agent_ > 0 ? " (process " + pid + ")" : "") +
         " does not answer; still waiting. It may be stopped" +
         (agent_ > 0 ? " (`kill -CONT " + pid + "` lets it go on)" : "") +
         ", or its disk be slow; Ctrl-C ends this command";
}

Result<std::optional<nlohmann::json>> ControlConnection::TakeNext() {
  for (;;) {
    auto next = TakeFrame();
    if (!next || *next) return next;
    auto got = Receive(MSG_DONTWAIT);
    if (!got) return std::unexpected(got.error());
    if (!*got) return std::nullopt;
  }
}

Result<std::optional<nlohmann::json>> ControlConnection::TakeFrame() {
  FrameHeader header;
  const uint8_t* text = nullptr;
  switch (reader_.Next(&header, &text)) {
    case FrameReader::State::kNeedMore:
      return std::nullopt;
    case FrameReader::State::kBad:
      return Fail("agent_reply", "the agent sent something longer than any reply");
    case FrameReader::State::kFrame:
      break;
  }
  auto reply = nlohmann::json::parse(text, text + header.body_bytes, nullptr, false);
  if (!reply.is_object()) return Fail("agent_reply", "the agent's reply is not a JSON object");
  return reply;
}

Result<bool> ControlConnection::Receive(int flags) {
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), reader_.Space(), reader_.SpaceBytes(), flags);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (flags & MSG_DONTWAIT) != 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    }
    if (got <= 0) return Gone();
    reader_.Filled(static_cast<size_t>(got));
    return true;
  }
}

Result<std::optional<api::EventsReply>> TakeEvents(ControlConnection& connection) {
  auto next = connection.TakeNext();
  if (!next) return std::unexpected(next.error());
  if (!*next) return std::nullopt;
  if (auto error = api::ErrorOfReply(**next)) return std::unexpected(*error);
  auto reply = api::EventsFromJson(**next);
  if (!reply) return std::unexpected(reply.error());
  return std::move(*reply);
}

}  // namespace prorata::cli
