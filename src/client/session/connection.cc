#include "client/session/connection.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "client/session/agent_socket.h"
#include "client/session/heartbeat_watch.h"
#include "client/session/requests.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

using wire::FrameHeader;
using wire::FrameReader;
using wire::MessageType;

uint8_t g_buffer[4 * (wire::kFrameHeaderBytes + wire::kMaxMemberBodyBytes)];
constinit FrameReader g_reader(g_buffer, sizeof g_buffer);
Lock g_sending;                // frames must not interleave
std::atomic<int> g_ahead{-1};  // where a join was sent to, and its answer will come from

bool SendJoin(int fd) {
  wire::Join join = {};
  join.layout_version = shm::kLimitsVersion;
  join.inner_pid = static_cast<uint32_t>(getpid());
  join.epoch_seen = g_share.limits.load()->header.epoch.load();
  join.previous_slot = g_share.slot.load();
  wire::Frame<wire::Join> frame(MessageType::kJoin, join);
  iovec part = {&frame, sizeof frame};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &g_share.usage_fd, sizeof(int));
  return sendmsg(fd, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof frame);
}

// One read; false: end of the stream, or an error.
bool Receive(int fd) {
  const ssize_t bytes = recv(fd, g_reader.Space(), g_reader.SpaceBytes(), MSG_DONTWAIT);
  if (bytes > 0) g_reader.Filled(static_cast<size_t>(bytes));
  return bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EINTR));
}

// Waits for the answer to a join.
JoinResult AwaitWelcome(int fd, int64_t deadline_ns, int64_t busy_until_ns, wire::Welcome* welcome,
                        wire::Refused* refused, int64_t (*meanwhile)()) {
  constexpr int64_t kPollEveryNs = 100'000'000;  // at the heart
  for (;;) {
    FrameHeader header;
    const uint8_t* body;
    FrameReader::State state;
    while ((state = g_reader.Next(&header, &body)) == FrameReader::State::kFrame) {
      if (header.type == static_cast<uint16_t>(MessageType::kWelcome)) {
        return wire::ReadMessage(header, body, welcome) ? JoinResult::kJoined
                                                        : JoinResult::kNoAgent;
      }
      if (header.type == static_cast<uint16_t>(MessageType::kRefused) &&
          wire::ReadMessage(header, body, refused)) {
        return JoinResult::kRefused;
      }
    }
    const bool beats = HeartbeatLostNs() < kHeartStoodStillNs;
    const int64_t left_ns = Max(deadline_ns, beats ? busy_until_ns : 0) - NowNs();
    if (state == FrameReader::State::kBad || left_ns <= 0) return JoinResult::kNoAgent;
    const int64_t poll_ns = meanwhile != nullptr ? meanwhile() : kPollEveryNs;
    AwaitReadable(fd, Min(left_ns, Min(poll_ns, kPollEveryNs)));
    if (!Receive(fd)) return JoinResult::kNoAgent;
  }
}

// After a restart the agent may have made the limits file anew.
void RemapLimits() {
  const char* why = nullptr;
  const shm::LimitsFile* limits = MapLimits(g_share.folder, &why);
  if (limits == nullptr || limits->header.device_count != g_share.device_count) return;
  for (uint32_t i = 0; i < g_share.device_count; ++i) {
    if (std::strcmp(limits->devices[i].uuid, LimitsOf(i).uuid) != 0) return;
  }
  g_share.limits.store(limits, std::memory_order_release);
}

// Connects and sends a join; -1: nobody listens.
int StartJoin() {
  const int fd = ConnectToAgent(g_share.folder);
  // An agent that turns this process away for its user says so at once, and hears no more.
  if (fd < 0 || SendJoin(fd) || errno == EPIPE || errno == ECONNRESET) return fd;
  close(fd);
  return -1;
}

}  // namespace

void JoinAhead() { g_ahead.store(StartJoin()); }

void GiveUpJoinAhead() {
  const int fd = g_ahead.exchange(-1);
  if (fd >= 0) close(fd);
}

JoinResult JoinAgent(int64_t deadline_ns, wire::Refused* refused, int64_t busy_until_ns,
                     int64_t (*meanwhile)()) {
  const int ahead = g_ahead.exchange(-1);
  const int fd = ahead >= 0 ? ahead : StartJoin();
  if (fd < 0) return JoinResult::kNoAgent;
  g_reader = FrameReader(g_buffer, sizeof g_buffer);
  wire::Welcome welcome = {};
  JoinResult result = AwaitWelcome(fd, deadline_ns, busy_until_ns, &welcome, refused, meanwhile);
  if (result == JoinResult::kJoined && welcome.slot >= shm::kMaxMembers) {
    result = JoinResult::kNoAgent;
  }
  if (result != JoinResult::kJoined) {
    close(fd);
    return result;
  }
  if (g_share.slot.load() != wire::kNoSlot) RemapLimits();
  g_share.slot.store(welcome.slot);
  g_share.grants.store(&g_share.limits.load()->grants[welcome.slot], std::memory_order_release);
  g_share.socket.store(fd, std::memory_order_release);
  return result;
}

bool SendBytes(const void* bytes, size_t size) {
  const LockGuard sending(g_sending);
  const int fd = g_share.socket.load(std::memory_order_acquire);
  if (fd < 0) return false;
  const auto* at = static_cast<const char*>(bytes);
  while (size != 0) {
    // Not send and poll of libc: there a thread that was cancelled ends, and keeps the lock for
    // ever.
    const ssize_t sent = syscall(SYS_sendto, fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT, nullptr, 0);
    if (sent > 0) {
      at += sent;
      size -= static_cast<size_t>(sent);
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    pollfd writable = {fd, POLLOUT, 0};
    if (sent < 0 && errno == EAGAIN && syscall(SYS_poll, &writable, 1, 1000) == 1) continue;
    shutdown(fd, SHUT_RDWR);  // half a frame may be out: the helper sees the end and joins again
    return false;
  }
  return true;
}

bool ReadAgent() {
  const int fd = g_share.socket.load();
  if (fd < 0) return false;
  bool alive = Receive(fd);
  FrameHeader header;
  const uint8_t* body;
  FrameReader::State state;
  while ((state = g_reader.Next(&header, &body)) == FrameReader::State::kFrame) {
    DeliverFrame(header, body);
  }
  if (alive && state != FrameReader::State::kBad) return true;
  {
    const LockGuard sending(g_sending);
    g_share.socket.store(-1);
  }
  close(fd);
  LoseRequests();
  return false;
}

void ForgetConnection() {
  g_sending.Forget();
  GiveUpJoinAhead();
}

}  // namespace prorata::client
