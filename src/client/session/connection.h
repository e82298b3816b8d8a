#pragma once

// The member socket: joining, sending and reading. What is asked over it: requests.h.

#include <cstdint>

#include "client/platform/os.h"
#include "wire/frame.h"
#include "wire/messages.h"

namespace prorata::client {

enum class JoinResult { kJoined, kNoAgent, kRefused };

// Connects to FOLDER/socket, sends the usage memory, and waits for the welcome until `deadline_ns`
// (NowNs); for an agent whose heart has beaten within kHeartStoodStillNs until `busy_until_ns`, if
// that is later: it is only busy, and asking it anew would queue behind. On kJoined the socket,
// slot and grant row in g_share are set. On kRefused *refused is the agent's, and joining again
// will not help. One thread at a time. `meanwhile` is called while it waits, and answers for how
// long it need not be.
//
// JoinAhead connects and sends, so that the agent answers while this process does something else;
// the JoinAgent after it goes on from there. GiveUpJoinAhead: there will be none.
void JoinAhead();
void GiveUpJoinAhead();
inline constexpr int64_t kHeartStoodStillNs = 2'000'000'000;
JoinResult JoinAgent(int64_t deadline_ns, wire::Refused* refused, int64_t busy_until_ns = 0,
                     int64_t (*meanwhile)() = nullptr);

// Sends a whole frame; false: not connected (any more). The helper notices a broken connection.
bool SendBytes(const void* bytes, size_t size);
template <typename Message>
bool Send(wire::MessageType type, const Message& message) {
  const wire::Frame<Message> frame(type, message);
  return SendBytes(&frame, sizeof frame);
}

// Takes what the socket has and hands it out; false: the connection is gone, and was closed. Helper
// only.
bool ReadAgent();

// In the child after a fork: what its parent is about is not the child's.
void ForgetConnection();

}  // namespace prorata::client
