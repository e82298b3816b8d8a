#pragma once

// The member socket: joining, sending, and the answers to requests.
//
// Who reads: during cuInit the joining thread; afterwards the helper thread alone (helper.h), which
// starts before the first request is sent. Anyone may send. A thread that asks sleeps on a word of
// its own, which the helper changes:
//
//   asking thread                       helper thread
//   claim an entry: kFree -> kWaiting   reads the socket
//   send the request with its id        reply with id: kWaiting -> kWriting, copy, -> kAnswered,
//   wake FUTEX_WAIT on the entry             connection lost: kWaiting -> kLost, wake kAnswered:
//   take it; kLost: again
//
// A thread that gives up does kWaiting -> kFree. A reply that comes after that finds another id
// (ids are never used twice) and is dropped; the helper looks at the id again after kWriting,
// because the entry may have been given up and claimed anew between its two steps.

#include <cstdint>

#include "client/guest.h"
#include "protocol/frame.h"
#include "protocol/wire.h"

namespace prorata::client {

enum class JoinResult { kJoined, kNoAgent, kRefused };

// Connects to FOLDER/socket, sends the usage memory, and waits for the welcome until `deadline_ns`
// (NowNs); for an agent whose heart has beaten within kHeartStoodStillNs until `busy_until_ns`, if
// that is later: it is only busy, and asking it anew would queue behind. On kJoined the socket,
// slot and grant row in g_share are set. On kRefused *refused is the agent's, and joining again
// will not help. One thread at a time. `meanwhile` is called while it waits, and answers for how
// long it need not be.
inline constexpr int64_t kHeartStoodStillNs = 2'000'000'000;
JoinResult JoinAgent(int64_t deadline_ns, protocol::Refused* refused, int64_t busy_until_ns = 0,
                     int64_t (*meanwhile)() = nullptr);

// Sends a whole frame; false: not connected (any more). The helper notices a broken connection.
bool SendBytes(const void* bytes, size_t size);
template <typename Message>
bool Send(protocol::MessageType type, const Message& message) {
  const protocol::Frame<Message> frame(type, message);
  return SendBytes(&frame, sizeof frame);
}

// Takes what the socket has and hands it out; false: the connection is gone, and was closed. Helper
// only.
bool ReadAgent();

// Asks the agent that `used` of a device may reach needed_bytes. False: no agent answered for a
// long time, and the member goes on within what it has. With `wait_ms` the answer may take so long
// (an agent that is killed is asked again when it is back; the time goes on meanwhile), but only
// while an agent lives: without one it is false as ever, and said once.
bool AskGrant(uint32_t device, uint64_t needed_bytes, uint32_t wait_ms,
              protocol::GrantReply* reply);

// Says that a context was made, or something else whose memory nobody tells (protocol::kMade*), and
// waits for the figure (false: none came; keep the reservation). The helper has settled the ledger
// before this returns.
bool AskSettled(uint32_t device, uint32_t what, uint64_t reserved_bytes,
                protocol::ContextSettled* reply);

// Ask about shared memory (the message's id is set here); false: no answer within patience_ns. What
// the answer to an opening holds is entered (sharing.h) before this returns.
bool AskMemory(protocol::MemoryShared message, int64_t patience_ns, protocol::MemoryAnswer* answer);
bool AskMemory(protocol::MemoryOpening message, int64_t patience_ns,
               protocol::MemoryAnswer* answer);
bool AskMemory(protocol::MemoryLetGo message, int64_t patience_ns, protocol::MemoryAnswer* answer);

void ForgetConnectionLocks();

}  // namespace prorata::client
