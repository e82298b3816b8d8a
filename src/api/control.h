#pragma once

// The control socket of the agent (RUNTIME_DIR/control): JSON in frames of wire.h, type
// kControlJson, at most 1 MiB. One request, one reply, in order; a connection may carry any number
// of them.
//
//   request   {"op": "hello"}
//             {"op": "create_share", "share": {"name"?, "gpu"?, "gpus"?, TERMS, "on"?,
//                                              "on_full"?, "gang"?, "guaranteed"?: BOOL,
//                                              "share_memory_with"?: [NAME, ...],
//                                              "allow_users"?: TEXT, "token"?: TEXT,
//                                              "containers"?: "one"|"any",
//                                              "mode"?: "shared"|"exclusive"}}
//             the same with "wait": {...}: in line until it fits (start_wait.h)
//             {"op": "list_shares"}   {"op": "list_devices"}
//             {"op": "remove_share", "name": NAME}   {"op": "shutdown"}
//             {"op": "inspect_share", "name": NAME}
//             {"op": "update_share", "name": NAME, "change": {TERMS, "on"?, "on_full"?, "gang"?}}
//             {"op": "events", "since"?: SEQUENCE, "follow"?: BOOL, "share"?: NAME}
//             {"op": "trace", "gpu": GPU, "seconds"?: NUMBER, "after"?: SEQUENCE}
//   TERMS     MEMORY, "compute_request"?, "compute_limit"?, "weight"?, "priority"?,
//             "yield_within_ns"?: of each of the share's GPUs, less what "on": [{"gpu": GPU,
//             TERMS}, ...] says of single ones
//   MEMORY    "memory_bytes" or "memory_part" (of the device's): the limit; likewise
//             "memory_request_bytes" or "memory_request_part": what is set aside
//   GPU       an index or a UUID, as a text; "gpu" of a share is one or a list of them, "gpus" is
//             the number of GPUs when the agent is to choose them
//   reply     an object with what was asked, or {"error": {"code": CODE, "message": TEXT}}
//
// Fractions are numbers from 0 to 1, sizes are bytes, times nanoseconds, "on_full" a text of
// on_full.h, "gang" one of gang.h,
// "allow_users" one of allowed_users.h. A request with a field that is not known is refused: a
// misspelt limit must not be a share without one. Replies may grow fields. A share belongs to the
// user of the process that asked for it, as the kernel names them, and is kept until that process
// ends; with a "token", which needs a "name", until it is removed. Asked for again with the same
// token (the answer may have been lost) it is the share that is there. Who is neither
// of root nor of the agent's user sees no command of a program but of shares that it may use.
//
// "inspect_share" is answered by {"share": {...}, "cdi": {...}}: as in "list_shares", and the
// specification by which container engines know it (absent: they do not).
//
// "events" is answered by {"events": [...], "lost": N, "next": SEQUENCE, "last": SEQUENCE}: at most
// 256 events (event.h) after "since" (absent: none of those there are), how many the agent had
// dropped before they were asked for, what to give as "since" to go on, and the last there is. With
// "follow" more such objects come as events happen, each of at least one event or a loss, until
// either side closes; nothing more can be asked on that connection. A "share" that is not there,
// does not wait to be made, and has no event any more is refused ("no_share"). Who reads too slowly
// loses events, and is told how many; the agent waits for nobody.
//
// "trace" is answered by {"trace": {...}} (trace.h): what a device did in the last "seconds"
// (absent: 10), at most 128 entries of it, and what to give as "after" to go on.
//
// Decoders take any bytes and answer an Error whose message is for a person. Nothing here does I/O;
// all functions are thread-safe.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/allowed_users.h"
#include "api/event.h"
#include "api/gang.h"
#include "api/kept_by.h"
#include "api/memory_size.h"
#include "api/on_full.h"
#include "api/share_name.h"
#include "api/start_wait.h"
#include "api/trace.h"
#include "base/fraction.h"
#include "base/link_class.h"
#include "base/result.h"
#include "base/throttle_reason.h"

namespace prorata::api {

inline constexpr int kControlVersion = 1;
inline constexpr uint32_t kMaxShares = 256;
inline constexpr uint32_t kDefaultWeight = 100;
inline constexpr uint32_t kMaxWeight = 10'000;
inline constexpr int32_t kMinPriority = -100;
inline constexpr int32_t kMaxPriority = 100;
inline constexpr int64_t kDefaultYieldWithinNs = 2'000'000;
inline constexpr int64_t kMinYieldWithinNs = 500'000;
inline constexpr int64_t kMaxYieldWithinNs = 1'000'000'000;
inline constexpr uint32_t kMaxGpusOfShare = 16;

enum class ControlOp {
  kHello,
  kCreateShare,
  kListShares,
  kListDevices,
  kRemoveShare,
  kShutdown,
  kUpdateShare,
  kEvents,
  kTrace,
  kInspectShare,
};

// What is asked of a single GPU of a share; what is absent is as on the others.
struct TermsOnGpu {
  std::string gpu;  // an index or a UUID
  std::optional<MemorySize> memory = {};
  std::optional<MemorySize> memory_request = {};
  std::optional<Fraction> compute_request = {};
  std::optional<Fraction> compute_limit = {};
  std::optional<uint32_t> weight = {};
  std::optional<int32_t> priority = {};
  std::optional<int64_t> yield_within_ns = {};

  bool Empty() const {
    return !memory && !memory_request && !compute_request && !compute_limit && !weight &&
           !priority && !yield_within_ns;
  }
};

// What a person asks for. What is absent is decided by the agent.
struct ShareSpec {
  std::optional<std::string> name = {};    // absent: the agent makes one up
  std::vector<std::string> gpus = {};      // indices or UUIDs; empty: where it fits best
  std::optional<uint32_t> gpu_count = {};  // how many; absent: as many as are named, or one
  std::optional<MemorySize> memory = {};   // the limit, of each GPU; absent: all that is free
  // What is set aside for it of each GPU. Absent: all of the limit; nothing of a device that the
  // agent overcommits.
  std::optional<MemorySize> memory_request = {};
  Fraction compute_request = {};
  Fraction compute_limit = Fraction::One();
  uint32_t weight = kDefaultWeight;
  // While it wants the device, shares of a lower priority are closed, and keep no more work on it
  // than takes this long.
  int32_t priority = 0;
  int64_t yield_within_ns = kDefaultYieldWithinNs;
  std::vector<TermsOnGpu> on = {};  // of GPUs that are named in `gpus`
  OnFull on_full = {};              // when a device is full, the share is not
  Gang gang = Gang::kAuto;          // with several GPUs: on all of them at the same time
  bool guaranteed = false;          // the memory request is the limit, wherever it is
  // Names of shares whose programs may open memory that this one's export.
  std::vector<std::string> share_memory_with = {};
  AllowedUsers allow_users = {};          // whose programs may join, beside the owner's
  bool any_container = false;             // of several containers at once
  std::optional<std::string> token = {};  // kept until it is removed; absent: while its maker lives
  // Whole GPUs for containers that use the plain driver; nobody else is on them. It has a token,
  // and says nothing of memory, time and users, which nothing would keep.
  bool exclusive = false;
};
inline constexpr size_t kMaxSharedWith = 16;

// What is to be different about a share that runs. What is absent stays as it is.
struct ShareChange {
  std::optional<MemorySize> memory = {};
  std::optional<MemorySize> memory_request = {};
  std::optional<Fraction> compute_request = {};
  std::optional<Fraction> compute_limit = {};
  std::optional<uint32_t> weight = {};
  std::optional<int32_t> priority = {};
  std::optional<int64_t> yield_within_ns = {};
  std::vector<TermsOnGpu> on = {};
  std::optional<OnFull> on_full = {};
  std::optional<Gang> gang = {};
  std::optional<AllowedUsers> allow_users = {};  // in place of those of before

  bool Empty() const {
    return !memory && !memory_request && !compute_request && !compute_limit && !weight &&
           !priority && !yield_within_ns && on.empty() && !on_full && !gang && !allow_users;
  }
};

struct EventsRequest {
  std::optional<uint64_t> since = {};  // absent: only what happens from now on
  bool follow = false;
  std::string share = {};  // empty: all
};

// Events as they are sent, in order.
struct EventsReply {
  std::vector<Event> events;
  uint64_t lost = 0;
  uint64_t next = 0;
  uint64_t last = 0;
};
inline constexpr size_t kMaxEventsInReply = 256;

struct ControlRequest {
  ControlOp op = ControlOp::kHello;
  ShareSpec share = {};                // kCreateShare
  std::string name = {};               // kRemoveShare, kUpdateShare, kInspectShare
  ShareChange change = {};             // kUpdateShare
  EventsRequest events = {};           // kEvents
  TraceRequest trace = {};             // kTrace
  std::optional<StartWait> wait = {};  // kCreateShare
};

struct HelloReply {
  int control_version = kControlVersion;
  std::string program_version;
  int64_t pid = 0;
  uint32_t uid = 0;
};

// One device of a share.
struct ShareDevice {
  std::string uuid;
  uint32_t index = 0;
  uint64_t memory_limit_bytes = 0;
  uint64_t memory_request_bytes = 0;  // the part of it that is set aside
  uint64_t used_bytes = 0;            // charged by members, overhead included
  uint64_t overhead_bytes = 0;        // the part of it that no allocation asked for (contexts)
  uint64_t granted_bytes = 0;
  uint64_t admitted_bytes = 0;     // what the grants may add up to now: at most the limit
  uint32_t memory_waits = 0;       // allocations that wait for the device's memory
  uint64_t memory_waiting_ns = 0;  // for how long the oldest of them has
  uint64_t device_time_ns = 0;     // GPU time: charged since the agent has had the share
  // Its kernels ran for so long: by NVML, and where that has no figures by its members' estimate.
  uint64_t busy_time_ns = 0;
  Fraction compute_request;
  Fraction compute_limit;
  uint32_t weight = kDefaultWeight;
  int32_t priority = 0;
  int64_t yield_within_ns = kDefaultYieldWithinNs;
  double entitled = 0;  // of the device's time, now, among those that want it; if it were one
  bool active = true;   // it is one: what active shares are entitled to adds up to at most 1
  // In about the last second, as parts of it: GPU time (charged); its kernels ran (as
  // busy_time_ns); was held back for others, by its own limit on GPU time; was stalled.
  double achieved = 0;
  double busy = 0;
  double waiting_part = 0;
  double at_limit_part = 0;
  double undrained_part = 0;
  uint64_t backlog_ns = 0;                       // launched and not done, by estimate
  std::vector<ThrottleReason> throttle_reasons;  // what weighs most first; empty: nothing slows it
  bool waiting = false;
  bool open = false;
  bool stalled = false;  // was revoked and does not drain
  // The device gives no figures per process: the overhead is estimated from its total.
  bool figures_missing = false;
  bool bypass_suspected = false;    // the device shows far more than the share may have
  uint32_t persistent_kernels = 0;  // processes with a kernel that does not end
  uint64_t refusals = 0;            // allocations refused since this agent had the share
};

struct MemberStatus {
  int64_t pid = 0;
  std::string command;
  uint64_t used_bytes = 0;
  uint64_t device_time_ns = 0;
};

// A process that uses a share's device from the share's container, and is no member: nothing holds
// it.
struct OutsideStatus {
  int64_t pid = 0;
  std::string command;
  uint32_t gpu = 0;                         // the device's index
  std::optional<uint64_t> used_bytes = {};  // there; absent: NVML does not say
  std::string libraries;                    // the libcuda that it has mapped; "": none
};

// The container that a share belongs to.
struct ContainerStatus {
  std::string engine;  // podman, docker, containerd, cri-o
  std::string id;
  std::string name;
};

struct ShareStatus {
  std::string name;
  std::string directory;  // what a member finds its share by (PRORATA_SHARE)
  uint32_t owner_uid = 0;
  KeptBy kept_by;
  int64_t created_unix_s = 0;
  AllowedUsers allow_users;
  OnFull on_full;
  Gang gang = Gang::kAuto;
  bool runs_as_gang = false;  // now: asked for, or its kernels were seen to wait for each other
  bool ended = false;         // removed, and kept until its members are gone
  std::optional<ContainerStatus> container = {};  // whose processes it is kept for, now
  bool any_container = false;
  bool exclusive = false;
  std::vector<ShareDevice> devices;
  std::vector<MemberStatus> members;
  std::vector<OutsideStatus> outside;
};

struct DeviceStatus {
  uint32_t index = 0;
  std::string uuid;
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;      // by NVML, all programs
  uint64_t foreign_bytes = 0;   // the part of it that is no share's: the driver, other programs
  uint64_t promised_bytes = 0;  // the memory requests of all shares: set aside
  uint64_t limit_bytes = 0;     // the memory limits of all shares
  uint64_t borrowed_bytes = 0;  // what shares hold beyond their requests together
  Fraction promised_request;
  uint32_t shares = 0;
  double busy = 0;  // the part of about the last second that its shares were charged together
  // The part of it in which kernels of programs outside of all shares ran, by NVML. Absent: NVML
  // has no figures, or the device has no share.
  std::optional<double> others = {};
  // What limits of shares that did not say their request may add up to, as a multiple of what the
  // shares may hold together (all but what is foreign); 1: no more than there is.
  double overcommit = 1;
  // The most of its time that shares may use together above their requests.
  Fraction elastic_ceiling = Fraction::One();
  int64_t driver_unresponsive_ms =
      0;                          // NVML has not answered for so long: used_bytes is old; 0: it has
  std::vector<DeviceLink> links;  // to each device in their order, itself too; empty: not known
  std::string exclusive = {};     // the share that has all of it; empty: none
  // Who waits for it in line and would wait longer for what is judged now; empty: nobody. Not in
  // JSON.
  std::string kept_for = {};
};

Result<ControlRequest> DecodeRequest(std::string_view text);
std::string EncodeRequest(const ControlRequest& request);

nlohmann::json ToJson(const HelloReply& hello);
nlohmann::json ToJson(const ShareStatus& share);
nlohmann::json ToJson(const DeviceStatus& device);
nlohmann::json ToJson(const EventsReply& events);
nlohmann::json ToJson(const Error& error);  // {"error": {...}}

Result<HelloReply> HelloFromJson(const nlohmann::json& json);
Result<ShareStatus> ShareFromJson(const nlohmann::json& json);
Result<DeviceStatus> DeviceFromJson(const nlohmann::json& json);
Result<EventsReply> EventsFromJson(const nlohmann::json& json);

// The error of a reply, if it is one.
std::optional<Error> ErrorOfReply(const nlohmann::json& reply);

// What a share may have on one of its devices.
struct ShareTerms {
  uint64_t memory_bytes = 0;
  Fraction compute_request;
  Fraction compute_limit;
  uint32_t weight = kDefaultWeight;
  uint64_t memory_request_bytes = 0;
  int32_t priority = 0;
  int64_t yield_within_ns = kDefaultYieldWithinNs;

  bool operator==(const ShareTerms&) const = default;
};

}  // namespace prorata::api
