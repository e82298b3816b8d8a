#pragma once

// What happens on a node, as `prorata events` tells it. The agent keeps the last of them and sends
// them over its control socket (control.h, op "events"). docs/reference/events.md says what each
// kind means and which words `why` and `outcome` have; docs/reference/control.md has the fields.
//
// An allocation that is tried again and again is one event at once and one a second after that,
// with the number in `count`. All functions are thread-safe; nothing here does I/O.

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata::api {

enum class EventKind : uint8_t {
  kAgentStarted,
  kShareCreated,
  kShareAdopted,
  kShareChanged,
  kShareEnded,
  kMemberJoined,
  kMemberGone,
  kMemberRefused,
  kRefusal,
  kWaitBegun,
  kWaitEnded,
  kBypassSuspected,
  kBypassOver,
  kFalseUsage,
  kOutsideProcess,
  kUngovernedFunctions,
  kPersistentKernel,
  kPersistentKernelOver,
  kFiguresMissing,
  kResourceConfigApplied,
  kResourceConfigRefused,
  kGangBegun,
  kGangOver,
  kDriverSlow,
  kDriverSlowOver,
  kContainerJoined,
  kContainerGone,
  kShareWaits,
  kShareWaitEnded,
};
inline constexpr size_t kEventKinds = static_cast<size_t>(EventKind::kShareWaitEnded) + 1;
// By kind: how often it happened, each event with its count.
using EventCounts = std::array<uint64_t, kEventKinds>;

struct Event {
  EventKind kind = EventKind::kAgentStarted;
  uint64_t sequence = 0;     // given by the agent when it is kept
  int64_t time_unix_ms = 0;  // likewise
  std::string share = {};    // empty: of no share
  std::optional<uint32_t> gpu = {};
  std::string uuid = {};
  std::optional<int64_t> pid = {};
  std::string command = {};
  std::optional<uint64_t> asked_bytes = {};
  std::optional<uint64_t> limit_bytes = {};
  std::optional<uint64_t> used_bytes = {};
  std::optional<int64_t> waited_ms = {};
  std::optional<int64_t> running_ms = {};
  std::string why = {};
  std::string outcome = {};
  std::string detail = {};
  uint64_t count = 1;
};

// The name of a kind in messages, e.g. "share_created".
std::string NameOf(EventKind kind);
std::optional<EventKind> EventKindOf(std::string_view name);

nlohmann::json ToJson(const Event& event);
// "agent_reply" if it is no event. Fields that are not known are skipped.
Result<Event> EventFromJson(const nlohmann::json& json);

// The event in words, without its time and share: "process 812 (python) was refused 2 GiB on GPU 0:
// the share's limit is 4 GiB, and it holds 3 GiB".
std::string Words(const Event& event);

}  // namespace prorata::api
