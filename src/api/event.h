#pragma once

// What happens on a node, as `prorata events` tells it. The agent keeps the last of them and sends
// them over its control socket (control.h, op "events").
//
// In JSON an event is one object. Always there: "sequence" (one more for each event of this agent,
// from 1), "time_unix_ms", "event" (the names below). There when they mean something for the event:
//
//   "share"        its name                      "gpu", "uuid"   the device: index and identity
//   "pid", "command"   the process               "count"         how many of it this one stands for
//   "asked_bytes"  what one request asked for    "limit_bytes", "used_bytes"   the share's, then
//   "why"          one word of those below       "waited_ms"     how long a wait took
//   "outcome"      of a wait, one word           "detail"        words for people, no fixed form
//   "running_ms"   for how long a kernel has been running
//
//   event                  why / outcome
//   agent_started
//   share_waits            a share waits in line to be made; "detail" says what for
//   share_wait_ended       made, timed_out, given_up (its client is gone), refused
//   share_created, share_adopted (from the agent before), share_changed, share_ended
//   member_joined, member_gone
//   member_refused         malformed, version, share_ended, too_many_members, not_allowed,
//                          other_user, other_container
//   container_joined, container_gone   the share's container; "detail" names it
//   refusal                own_limit, device_full      an allocation was refused
//   wait_begun, wait_ended granted, timed_out, process_ended, share_ended, refused, agent_gone
//   bypass_suspected, bypass_over      the device shows more than the share's ledger, by far
//   false_usage            a member says that it holds more than it was ever granted
//   outside_process        a process of a share's container uses the share's device and is no
//   member;
//                          "detail" says which libcuda it has
//   ungoverned_functions   driver functions newer than prorata were handed out; they pass uncounted
//   persistent_kernel, persistent_kernel_over   a process has a kernel that does not end
//   resource_config_applied, resource_config_refused   a file of --resource-config; "detail" says
//   gang_begun, gang_over  a share over several GPUs runs on all of them at the same time from now
//                          on, because its kernels were seen to wait for each other; or no more
//   driver_slow, driver_slow_over   NVML has not answered for a second; it answers again
//   figures_missing        the device gives no figures per process; its total is used for the audit
//
// An allocation that is tried again and again is one event at once and one a second after that,
// with the number in "count". All functions are thread-safe; nothing here does I/O.

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

// The name of a kind in JSON, e.g. "share_created".
std::string NameOf(EventKind kind);
std::optional<EventKind> EventKindOf(std::string_view name);

nlohmann::json ToJson(const Event& event);
// "agent_reply" if it is not an event as above. Fields that are not known are skipped.
Result<Event> EventFromJson(const nlohmann::json& json);

// The event in words, without its time and share: "process 812 (python) was refused 2 GiB on GPU 0:
// the share's own limit of 4 GiB is reached (3 GiB used)".
std::string Words(const Event& event);

}  // namespace prorata::api
