#pragma once

// Requests to the agent over the member socket, and the table of those under way.
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

#include "wire/frame.h"
#include "wire/messages.h"

namespace prorata::client {

// Asks the agent that `used` of a device may reach needed_bytes. False: no agent answered for a
// long time, and the member goes on within what it has. In a call that waits since `waits_since_ns`
// (0: it does not) the answer may take for as long as the share's on_full says, which may change
// meanwhile (an agent that is killed is asked again when it is back; the time goes on), but only
// while an agent lives: without one it is false as ever, and said once.
bool AskGrant(uint32_t device, uint64_t needed_bytes, int64_t waits_since_ns,
              wire::GrantReply* reply);

// Says that a context was made, or something else whose memory nobody tells (wire::kMade*), and
// waits for the figure (false: none came; keep the reservation). The helper has settled the ledger
// before this returns.
bool AskSettled(uint32_t device, uint32_t what, uint64_t reserved_bytes,
                wire::ContextSettled* reply);

// Ask about shared memory (the message's id is set here); false: no answer within patience_ns. What
// the answer to an opening holds is entered (sharing.h) before this returns.
bool AskMemory(wire::MemoryShared message, int64_t patience_ns, wire::MemoryAnswer* answer);
bool AskMemory(wire::MemoryOpening message, int64_t patience_ns, wire::MemoryAnswer* answer);
bool AskMemory(wire::MemoryLetGo message, int64_t patience_ns, wire::MemoryAnswer* answer);

// Hands a frame to whoever waits for it. Helper only.
void DeliverFrame(const wire::FrameHeader& header, const uint8_t* body);

// The connection is gone: everyone who waits asks again. Helper only.
void LoseRequests();

// The connection stands again: wakes those who wait for one. Helper only.
void ConnectionMade();

}  // namespace prorata::client
