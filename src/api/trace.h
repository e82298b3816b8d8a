#pragma once

// What a device did: who ran, who waited and why, drains, stalls. The agent keeps the last of it in
// a ring for each device (agent/compute/trace_ring.h) and hands it out over its control socket
// (control.h, op "trace"; docs/reference/control.md has the fields); `prorata debug trace` makes a
// trace of it that Perfetto and Chrome open.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "api/event.h"
#include "base/result.h"

namespace prorata::api {

enum class TraceKind : uint8_t {
  kState,       // the share's state from now on
  kKeyframe,    // the same, about each tenth of a second: the state goes on
  kMode,        // how the device is shared from now on
  kAudit,       // charged more (or less) after a look at NVML's figures
  kLate,        // the agent's loop came so much later than it was to
  kOutage,      // members were in failsafe mode; leases begin anew
  kShareBegun,  // it was added to the device
  kShareEnded,
  kEvent,  // of event.h
};

enum class TraceState : uint8_t {
  kIdle,         // has no lease, and wants none
  kHolds,        // has its lease, and has said that it has nothing to run
  kRuns,         // runs alone, for a slice, while others want the device, or within a limit
  kRunsFreely,   // has its lease, and no promise to anybody is in the way; whether its kernels ran
                 // is seen by what it is charged
  kCoRuns,       // runs in a co-run set
  kDrains,       // its lease was revoked, and what it has submitted is not done
  kStalled,      // that, for longer than it may: others run beside it
  kBlocked,      // all that it has submitted lies behind a wait or a host function
  kWaitsOthers,  // a launch waits: another share runs
  kWaitsLimit,   // a launch waits: its own limit. Without `held_us`: what its slices give is all
  kWaitsPriority,  // a launch waits: a share of higher priority runs
  kWaitsDrain,     // a launch waits: a share whose lease was revoked has not drained
  kWaitsGang,      // a launch waits: until the share can run on all its devices
  kWaitsPause,     // a launch waits: it owes others time, and they may be back in a moment
};

enum class TraceMode : uint8_t {
  kIdle,
  kFree,       // nothing is promised to anybody, the hardware slices
  kScheduled,  // one share at a time
  kCoRunSet,
};

// As it lies in the ring. No member has an initial value, so that a ring takes no memory before it
// is written; what the kind does not have is zero.
struct TraceEntry {
  int64_t time_ns;
  int64_t value_ns;  // kState, kKeyframe: charged since it was added; kAudit, kLate: by how much
  int32_t lag_us;    // kState, kKeyframe: entitled minus charged time
  uint32_t held_us;  // kState, kKeyframe: its limit keeps it from running for so long still
  uint32_t lane;     // which share; 0: the device
  TraceKind kind;
  TraceState state;  // kState, kKeyframe
  TraceMode mode;    // kMode
  union {
    bool gang;        // kState, kKeyframe: of a gang
    EventKind event;  // kEvent
  };
};
static_assert(sizeof(TraceEntry) == 32 && std::is_trivially_copyable_v<TraceEntry>);

// A share on a device, from when it was added to when it ended. A name that is used again is
// another lane.
struct TraceShare {
  std::string name;
  bool lag_known = true;  // the reader may use the share
  uint32_t lane = 0;      // in messages; here the key of it
};

struct TraceRequest {
  std::string gpu;      // an index or a UUID
  double seconds = 10;  // the last so many
  // To go on after a reply: its "next". Else from `seconds` ago, and a little earlier, so that the
  // states that were in force then are among the entries.
  std::optional<uint64_t> after = {};
};
inline constexpr double kMaxTraceSeconds = 3600;

// At most kMaxTraceEntries entries, in order.
struct TraceReply {
  int64_t now_ns = 0;       // when the reply was made, by the clock of the entries
  int64_t now_unix_ns = 0;  // and by the time of day
  int64_t since_ns = 0;     // all from then on is in the ring
  bool since_start = true;  // that is when the agent started; else what was before is forgotten
  std::map<uint32_t, TraceShare> shares;  // by lane: those in `entries`
  std::vector<TraceEntry> entries;
  uint64_t lost = 0;  // entries after `after` that were overwritten before they were asked for
  uint64_t next = 0;
  uint64_t last = 0;  // the last there is now
};
// The agent's loop makes a reply of this many in well under a millisecond.
inline constexpr size_t kMaxTraceEntries = 128;

// Their names in messages, e.g. "waits_limit".
std::string NameOf(TraceState state);
std::string NameOf(TraceMode mode);

nlohmann::json ToJson(const TraceReply& reply);
// "agent_reply" if it is no such reply. Fields that are not known are skipped.
Result<TraceReply> TraceFromJson(const nlohmann::json& json);

}  // namespace prorata::api
