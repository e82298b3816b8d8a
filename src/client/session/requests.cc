#include "client/session/requests.h"

#include <atomic>
#include <cstring>

#include "client/session/connection.h"
#include "client/session/duties.h"
#include "client/session/heartbeat_watch.h"
#include "client/session/helper.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

using wire::MessageType;

// How long a member waits for an agent that does not answer before it takes what it has for all it
// can get. Long enough for an agent to be restarted under load.
constexpr int64_t kGiveUpAfterNs = 10'000'000'000;
constexpr int64_t kPollAgainNs = 20'000'000;
constexpr int64_t kBriefLossNs = 300'000'000;
constexpr int64_t kDeadAgentNs = 1'000'000'000;
constexpr uint32_t kEntries = 256;  // the agent lets 64 requests of a member wait for memory

enum : uint32_t { kFree = 0, kWaiting, kWriting, kAnswered, kLost };

struct alignas(64) Entry {
  std::atomic<uint32_t> state;
  std::atomic<uint64_t> id;
  union {
    wire::GrantReply grant;
    wire::ContextSettled settled;
    wire::MemoryAnswer memory;
  };
};
constinit Entry g_entries[kEntries];
std::atomic<uint64_t> g_next_id;
std::atomic<uint32_t> g_connections;  // a futex word: one more at every connection

Entry* Claim(int64_t deadline_ns) {
  for (;;) {
    for (uint32_t i = 0; i < kEntries; ++i) {
      uint32_t free = kFree;
      Entry& entry = g_entries[i];
      if (entry.state.load(std::memory_order_relaxed) != kFree ||
          !entry.state.compare_exchange_strong(free, kWriting)) {
        continue;
      }
      entry.id.store(g_next_id.fetch_add(1) + 1);
      entry.state.store(kWaiting);
      return &entry;
    }
    if (NowNs() > deadline_ns) return nullptr;
    const std::atomic<uint32_t> never{0};
    FutexWait(&never, 0, 1'000'000);  // more than kEntries threads ask at once: take turns
  }
}

// Ends the claim; true if it was answered.
template <typename GiveUp>
bool Await(Entry* entry, GiveUp&& give_up) {
  for (;;) {
    uint32_t state = entry->state.load(std::memory_order_acquire);
    if (state == kAnswered || state == kLost) return state == kAnswered;
    if (state == kWaiting && give_up()) {
      if (entry->state.compare_exchange_strong(state, kLost)) return false;
      continue;
    }
    FutexWait(&entry->state, state, kPollAgainNs);
  }
}

// Sends a message made by `make(id)` until it is answered, or `give_up()`; copies the answer by
// `take(entry)`.
template <typename GiveUp, typename Make, typename Take>
bool AskUntil(MessageType type, GiveUp&& give_up, Make&& make, Take&& take) {
  if (!EnsureHelper()) return false;
  while (!give_up()) {
    const uint32_t connections = g_connections.load();
    Entry* entry = Claim(NowNs() + kGiveUpAfterNs);
    if (entry == nullptr) return false;
    bool answered = false;
    if (Send(type, make(entry->id.load()))) {
      answered = Await(entry, give_up);
      if (answered) take(*entry);
    } else {
      FutexWait(&g_connections, connections, kPollAgainNs);
    }
    entry->id.store(0);
    entry->state.store(kFree, std::memory_order_release);
    if (answered) return true;
  }
  return false;
}

template <typename Make, typename Take>
bool Ask(MessageType type, int64_t patience_ns, Make&& make, Take&& take) {
  const int64_t deadline_ns = NowNs() + patience_ns;
  return AskUntil(type, [deadline_ns] { return NowNs() >= deadline_ns; }, make, take);
}

std::atomic<bool> g_reported_agent_gone;

// False: nobody waits for it (any more).
template <typename Message>
bool Deliver(const Message& message, Message Entry::* place) {
  for (Entry& entry : g_entries) {
    if (entry.id.load() != message.id) continue;
    uint32_t waiting = kWaiting;
    if (!entry.state.compare_exchange_strong(waiting, kWriting)) return false;
    const bool same = entry.id.load() == message.id;
    if (same) entry.*place = message;
    entry.state.store(same ? kAnswered : kWaiting, std::memory_order_release);
    if (same) FutexWakeAll(&entry.state);
    return same;
  }
  return false;
}

template <typename Message>
bool AskAboutMemory(MessageType type, Message message, int64_t patience_ns,
                    wire::MemoryAnswer* answer) {
  return Ask(
      type, patience_ns,
      [&](uint64_t id) {
        message.id = id;
        return message;
      },
      [&](const Entry& entry) { *answer = entry.memory; });
}

}  // namespace

void DeliverFrame(const wire::FrameHeader& header, const uint8_t* body) {
  wire::GrantReply grant;
  wire::ContextSettled settled;
  wire::MemoryAnswer memory;
  wire::MemoryTake take;
  switch (static_cast<MessageType>(header.type)) {
    case MessageType::kGrantReply:
      if (wire::ReadMessage(header, body, &grant)) Deliver(grant, &Entry::grant);
      return;
    case MessageType::kContextSettled:
      if (!wire::ReadMessage(header, body, &settled)) return;
      if (settled.measured == wire::kMeasured)
        kDuties.overhead_measured(settled.device, settled.overhead_bytes);
      Deliver(settled, &Entry::settled);
      return;
    case MessageType::kMemoryAnswer:
      if (!wire::ReadMessage(header, body, &memory)) return;
      if (memory.held != 0) kDuties.opening_answered(memory);
      if (!Deliver(memory, &Entry::memory) && memory.held != 0) kDuties.opening_unwanted(memory);
      return;
    case MessageType::kMemoryTake:
      if (wire::ReadMessage(header, body, &take)) kDuties.take_memory(take.number);
      return;
    default:
      return;  // kLeaseChanged has done its work by waking the helper; others are a newer agent's
  }
}

void LoseRequests() {
  for (Entry& entry : g_entries) {
    uint32_t waiting = kWaiting;
    if (entry.state.compare_exchange_strong(waiting, kLost)) FutexWakeAll(&entry.state);
  }
}

void ConnectionMade() {
  g_connections.fetch_add(1);
  FutexWakeAll(&g_connections);
}

bool AskGrant(uint32_t device, uint64_t needed_bytes, int64_t waits_since_ns,
              wire::GrantReply* reply) {
  const auto take = [&](const Entry& entry) { *reply = entry.grant; };
  if (waits_since_ns == 0) {
    return Ask(
        MessageType::kGrantRequest, kGiveUpAfterNs,
        [&](uint64_t id) { return wire::GrantRequest{id, device, wire::kNoWait, needed_bytes}; },
        take);
  }
  // The share's span may change during the wait; the new one then applies to this call.
  auto span_ms = [] { return g_share.limits.load()->header.on_full_wait_ms.load(); };
  auto ends_ns = [waits_since_ns](uint32_t ms) { return waits_since_ns + int64_t{ms} * 1'000'000; };
  uint32_t seen_ms = span_ms();
  int64_t seen_ns = NowNs();
  // The agent ends the wait in time; we only if it does not.
  auto give_up = [&] {
    const uint32_t ms = span_ms();
    if (ms != seen_ms) seen_ns = NowNs();
    seen_ms = ms;
    const bool late =
        ms != wire::kWaitForever && NowNs() > Max(ends_ns(ms), seen_ns) + kGiveUpAfterNs;
    return late || HeartbeatLostNs() > kGiveUpAfterNs;
  };
  const bool answered = AskUntil(
      MessageType::kGrantRequest, give_up,
      [&](uint64_t id) {
        uint32_t left_ms = span_ms();
        if (left_ms != wire::kWaitForever) {
          const int64_t left_ns = ends_ns(left_ms) - NowNs();
          left_ms = left_ns > 0 ? static_cast<uint32_t>(left_ns / 1'000'000) : wire::kNoWait;
        }
        return wire::GrantRequest{id, device, left_ms, needed_bytes};
      },
      take);
  if (answered) {
    g_reported_agent_gone.store(false);
  } else if (!g_reported_agent_gone.exchange(true)) {
    StderrMessage("no agent answers, so an allocation that waited for a full device is refused")
        .Print();
  }
  return answered;
}

bool AskSettled(uint32_t device, uint32_t what, uint64_t reserved_bytes,
                wire::ContextSettled* reply) {
  // An agent whose heart beats is only busy; a dead one must not hold the context up for long.
  const bool beats = HeartbeatLostNs() < kBriefLossNs;
  return Ask(
      MessageType::kContextMade, beats ? kGiveUpAfterNs : kDeadAgentNs,
      [&](uint64_t id) { return wire::ContextMade{id, device, what, reserved_bytes}; },
      [&](const Entry& entry) { *reply = entry.settled; });
}

bool AskMemory(wire::MemoryShared message, int64_t patience_ns, wire::MemoryAnswer* answer) {
  return AskAboutMemory(MessageType::kMemoryShared, message, patience_ns, answer);
}

bool AskMemory(wire::MemoryOpening message, int64_t patience_ns, wire::MemoryAnswer* answer) {
  return AskAboutMemory(MessageType::kMemoryOpening, message, patience_ns, answer);
}

bool AskMemory(wire::MemoryLetGo message, int64_t patience_ns, wire::MemoryAnswer* answer) {
  return AskAboutMemory(MessageType::kMemoryLetGo, message, patience_ns, answer);
}

}  // namespace prorata::client
