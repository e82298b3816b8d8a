#pragma once

// The control socket of the agent (RUNTIME_DIR/control): JSON in frames of wire/frame.h, type
// kControlJson, a request at most 1 MiB. One request, one reply, in order; a connection may carry
// any number of them. docs/reference/control.md has all messages and their fields; it is made of
// the tables of control.cc, control_status.cc, event.cc and trace.cc (fields.h).
//
// A request with a field that is not known is refused: a misspelt limit must not be a share without
// one. Replies may grow fields. A share belongs to the user of the process that asked for it, as
// the kernel names them. Who is neither of root nor of the agent's user sees no command of a
// program but of shares that it may use. Who reads events too slowly loses some, and learns how
// many; the agent waits for nobody.
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
inline constexpr size_t kMaxNameOfGpu = 256;  // characters of a UUID or an index

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
};

// What a person asks for. What is absent is decided by the agent.
struct ShareSpec {
  std::optional<std::string> name = {};
  std::vector<std::string> gpus = {};  // empty: where it fits best
  std::optional<uint32_t> gpu_count = {};
  std::optional<MemorySize> memory = {};  // absent: all that is free
  std::optional<MemorySize> memory_request = {};
  Fraction compute_request = {};
  Fraction compute_limit = Fraction::One();
  uint32_t weight = kDefaultWeight;
  int32_t priority = 0;
  int64_t yield_within_ns = kDefaultYieldWithinNs;
  std::vector<TermsOnGpu> on = {};  // of GPUs that are named in `gpus`
  OnFull on_full = {};
  Gang gang = Gang::kAuto;
  bool guaranteed = false;  // the memory request is the limit, wherever it is
  std::vector<std::string> share_memory_with = {};
  AllowedUsers allow_users = {};
  bool any_container = false;
  std::optional<std::string> token = {};
  bool exclusive = false;  // says nothing of memory, time and users, which nothing would keep
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

  bool Empty() const;
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

// What the fields of statuses are is said by their tables, in control_status.cc.

// One device of a share.
struct ShareDevice {
  std::string uuid;
  uint32_t index = 0;
  uint64_t memory_limit_bytes = 0;
  uint64_t memory_request_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t overhead_bytes = 0;
  uint64_t granted_bytes = 0;
  uint64_t admitted_bytes = 0;
  uint32_t memory_waits = 0;
  uint64_t memory_waiting_ns = 0;
  uint64_t device_time_ns = 0;
  uint64_t busy_time_ns = 0;
  Fraction compute_request;
  Fraction compute_limit;
  uint32_t weight = kDefaultWeight;
  int32_t priority = 0;
  int64_t yield_within_ns = kDefaultYieldWithinNs;
  double entitled = 0;
  bool active = true;
  double achieved = 0;
  double busy = 0;
  double waiting_part = 0;
  double at_limit_part = 0;
  double undrained_part = 0;
  uint64_t backlog_ns = 0;
  std::vector<ThrottleReason> throttle_reasons;
  bool waiting = false;
  bool open = false;
  bool stalled = false;
  bool figures_missing = false;
  bool bypass_suspected = false;
  uint32_t persistent_kernels = 0;
  uint64_t refusals = 0;
};

struct MemberStatus {
  int64_t pid = 0;
  std::string command;
  uint64_t used_bytes = 0;
  uint64_t device_time_ns = 0;
};

struct OutsideStatus {
  int64_t pid = 0;
  std::string command;
  uint32_t gpu = 0;
  std::optional<uint64_t> used_bytes = {};
  std::string libraries;
};

struct ContainerStatus {
  std::string engine;
  std::string id;
  std::string name;
};

struct ShareStatus {
  std::string name;
  std::string directory;
  uint32_t owner_uid = 0;
  KeptBy kept_by;
  int64_t created_unix_s = 0;
  AllowedUsers allow_users;
  std::vector<std::string> share_memory_with = {};
  OnFull on_full;
  Gang gang = Gang::kAuto;
  bool runs_as_gang = false;  // now: asked for, or its kernels were seen to wait for each other
  bool ended = false;
  std::optional<ContainerStatus> container = {};
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
  uint64_t used_bytes = 0;
  uint64_t foreign_bytes = 0;
  uint64_t promised_bytes = 0;
  uint64_t limit_bytes = 0;
  uint64_t borrowed_bytes = 0;
  Fraction promised_request;
  uint32_t shares = 0;
  double busy = 0;
  std::optional<double> others = {};
  double overcommit = 1;
  Fraction elastic_ceiling = Fraction::One();
  int64_t driver_unresponsive_ms = 0;
  std::vector<DeviceLink> links;
  std::string exclusive = {};
  std::string compute_capability = {};
  std::string driver_version = {};
  std::string pci_address = {};
  std::optional<uint32_t> numa_node = {};
  std::string pcie_root = {};
  // Who waits for it in line and would wait longer for what is judged now; empty: nobody. It is in
  // no message.
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
