// Replies of the control socket to and from JSON.

#include <algorithm>
#include <utility>

#include "api/messages.h"

namespace prorata::api {

template <>
struct Names<ThrottleReason> {
  static constexpr std::pair<ThrottleReason, std::string_view> kAll[] = {
      {ThrottleReason::kNoProgram, "no_program"},
      {ThrottleReason::kDoesNotAnswer, "does_not_answer"},
      {ThrottleReason::kNonPreemptible, "non_preemptible"},
      {ThrottleReason::kWaitsForMemory, "waits_for_memory"},
      {ThrottleReason::kAtLimit, "at_limit"},
      {ThrottleReason::kWaitsForOthers, "waits_for_others"},
      {ThrottleReason::kIdle, "idle"},
      {ThrottleReason::kOverMemoryLimit, "over_memory_limit"},
  };
};

template <>
struct Names<LinkClass> {
  static constexpr std::pair<LinkClass, std::string_view> kAll[] = {
      {LinkClass::kUnknown, "unknown"},   {LinkClass::kSystem, "system"},
      {LinkClass::kNode, "node"},         {LinkClass::kHostBridge, "host_bridge"},
      {LinkClass::kMultiple, "multiple"}, {LinkClass::kSingle, "single"},
      {LinkClass::kInternal, "internal"}, {LinkClass::kNvlink, "nvlink"},
      {LinkClass::kSelf, "self"},
  };
};

template <>
struct Names<KeptBy::Kind> {
  static constexpr std::pair<KeptBy::Kind, std::string_view> kAll[] = {
      {KeptBy::Kind::kProcess, "process"},
      {KeptBy::Kind::kFile, "file"},
      {KeptBy::Kind::kHold, "hold"},
  };
};

namespace {

constexpr WordsOfFlag kStatusContainers = {"one", "any"};
constexpr WordsOfFlag kStatusMode = {"shared", "exclusive"};

// An agent of before had no requests: all of the limit was guaranteed.
void RequestIsLimit(ShareDevice& on) { on.memory_request_bytes = on.memory_limit_bytes; }
void LimitIsPromised(DeviceStatus& device) { device.limit_bytes = device.promised_bytes; }

// For readers of before.
uint64_t SetAside(const DeviceStatus& device) { return device.promised_bytes; }
bool AllIsRequested(const ShareStatus& share) {
  return std::ranges::all_of(share.devices, [](const ShareDevice& on) {
    return on.memory_request_bytes == on.memory_limit_bytes;
  });
}

bool IsProcess(const KeptBy& kept_by) { return kept_by.kind == KeptBy::Kind::kProcess; }
bool IsFile(const KeptBy& kept_by) { return kept_by.kind == KeptBy::Kind::kFile; }
bool IsNvlink(const DeviceLink& link) { return link.kind == LinkClass::kNvlink; }

using S = ShareStatus;
using On = ShareDevice;
using D = DeviceStatus;
using W = WaitingShare;

// clang-format off
constexpr Field kHello[] = {
    Required<&HelloReply::control_version>("control_version", "of this API", kId),
    Required<&HelloReply::program_version>("program_version", "of prorata"),
    Required<&HelloReply::pid>("pid", "the agent", kId),
    Required<&HelloReply::uid>("uid", "its user", kId),
};

constexpr Field kError[] = {
    Required<&Error::code>("code", "for programs"),
    Required<&Error::message>("message",
        "for people: what was tried, on what, what was seen, and what to do next"),
};

constexpr Field kShareDevice[] = {
    Required<&On::uuid>("uuid", "the GPU or MIG instance"),
    Required<&On::index>("index", "as the agent counts them", kId),
    Required<&On::memory_limit_bytes>("memory_limit_bytes", "memory limit", kBytes),
    Defaulted<&On::memory_request_bytes>("memory_request_bytes",
        "the part of it that is guaranteed", kBytes).IfAbsent<RequestIsLimit>(),
    Required<&On::used_bytes>("used_bytes", "charged to its processes, overhead included", kBytes),
    Required<&On::overhead_bytes>("overhead_bytes",
        "the part of it that no allocation asked for: contexts, code", kBytes),
    Required<&On::granted_bytes>("granted_bytes",
        "what its processes may use without asking", kBytes),
    Required<&On::admitted_bytes>("admitted_bytes",
        "what the grants may add up to now: at most the limit", kBytes),
    Required<&On::memory_waits>("memory_waits",
        "allocations that wait for memory of the GPU", kCount),
    Required<&On::memory_waiting_ns>("memory_waiting_ns",
        "how long the oldest of them has waited", kNs),
    Required<&On::device_time_ns>("device_time_ns",
        "GPU time that it was charged since this agent has had it", kNs),
    Required<&On::busy_time_ns>("busy_time_ns",
        "how long its kernels ran, by its processes' estimate, less what NVML shows of others", kNs),
    Required<&On::compute_request>("compute_request", "GPU time that is guaranteed", kRatio),
    Required<&On::compute_limit>("compute_limit", "the most GPU time that it may use", kRatio),
    Required<&On::weight>("weight", "its weight for free GPU time", kParts),
    Required<&On::priority>("priority", "its priority", kRank),
    Required<&On::yield_within_ns>("yield_within_ns",
        "the most work of lower priorities that it may wait behind", kNs),
    Required<&On::entitled>("entitled",
        "the part of GPU time that it is due now; 0 while it is not active", kRatio),
    Defaulted<&On::active>("active",
        "whether it wants GPU time. What the shares of one priority on a GPU are entitled to adds "
        "up to at most 1; below a higher one it is of what that one left in about the last second"),
    Required<&On::achieved>("achieved",
        "of about the last second, the part that it was charged", kRatio),
    Required<&On::busy>("busy", "likewise, in which its kernels ran", kRatio),
    Required<&On::waiting_part>("waiting_part",
        "likewise, in which it was held back for others", kRatio),
    Required<&On::at_limit_part>("at_limit_part",
        "likewise, in which its own compute limit held it back", kRatio),
    Required<&On::undrained_part>("undrained_part", "likewise, in which it was stalled", kRatio),
    Required<&On::backlog_ns>("backlog_ns",
        "GPU time of submitted, unfinished work, by estimate", kNs),
    Defaulted<&On::throttle_reasons>("throttle_reasons",
        "why it gets less than it asks for, what weighs most first; empty: nothing slows it"),
    Required<&On::waiting>("waiting", "a launch of it waits"),
    Required<&On::open>("open", "it has a lease"),
    Defaulted<&On::stalled>("stalled",
        "its lease was revoked, and what it had launched does not end"),
    Required<&On::figures_missing>("figures_missing",
        "the GPU gives no figures per process: overhead is estimated from its total"),
    Required<&On::bypass_suspected>("bypass_suspected",
        "the GPU shows far more of it than it may have"),
    Defaulted<&On::persistent_kernels>("persistent_kernels",
        "processes with a kernel that does not end", kCount),
    Required<&On::refusals>("refusals", "allocations refused since this agent has had it", kCount),
};

constexpr Field kMember[] = {
    Required<&MemberStatus::pid>("pid", "the process", kId),
    Required<&MemberStatus::command>("command",
        "as in `/proc/PID/comm`; empty for readers who are neither root, the agent's user nor a "
        "user of the share"),
    Required<&MemberStatus::used_bytes>("used_bytes", "charged to it on all GPUs", kBytes),
    Required<&MemberStatus::device_time_ns>("device_time_ns", "GPU time of it on all GPUs", kNs),
};

constexpr Field kOutside[] = {
    Required<&OutsideStatus::pid>("pid", "the process", kId),
    Required<&OutsideStatus::command>("command", "as in `/proc/PID/comm`"),
    Required<&OutsideStatus::gpu>("gpu", "the index of the GPU that it uses", kId),
    Required<&OutsideStatus::libraries>("libraries",
        "the `libcuda` that it has mapped; empty: none"),
    Optional<&OutsideStatus::used_bytes>("used_bytes", "there. Absent: NVML does not say", kBytes),
};

constexpr Field kContainer[] = {
    Required<&ContainerStatus::engine>("engine", "podman, docker, containerd or cri-o"),
    Required<&ContainerStatus::id>("id", "as the engine has it"),
    Required<&ContainerStatus::name>("name", "likewise"),
};

constexpr Field kKeptBy[] = {
    Required<&KeptBy::kind>("kind",
        "a process; a file, `resource-config.txt`; or nothing but `prorata create`, until it is "
        "removed by its name"),
    Required<&KeptBy::pid>("pid", "of a `process`", kId).When<IsProcess>(),
    Required<&KeptBy::file>("file", "the path of a `file`").When<IsFile>(),
};

constexpr Field kShare[] = {
    Required<&S::name>("name", "its name"),
    Required<&S::directory>("directory", "what a program finds its share by: `PRORATA_SHARE`"),
    Required<&S::owner_uid>("owner_uid", "who may change and end it, beside root", kId),
    Required<&S::kept_by>("kept_by", "what keeps it while no program runs on it"),
    Required<&S::created_unix_s>("created_unix_s", "when it was made", kUnixSeconds),
    Defaulted<&S::allow_users>("allow_users", "whose programs may join, beside the owner's"),
    Optional<&S::share_memory_with, ListOf<Codec<std::string>, kMaxSharedWith>>("share_memory_with",
        "shares whose programs may open memory that this one's export"),
    Required<&S::on_full>("on_full", "what becomes of an allocation that the GPU is too full for"),
    Defaulted<&S::gang>("gang",
        "with several GPUs: whether it runs on all of them at the same time"),
    Defaulted<&S::runs_as_gang>("runs_as_gang", "it does so now"),
    Derived<S, AllIsRequested>("guaranteed", "the memory requests are the limits"),
    Required<&S::ended>("ended", "removed, and there until its processes are gone"),
    Optional<&S::container>("container", "the container that has it now"),
    Optional<&S::any_container, FlagAs<kStatusContainers>>("containers",
        "how many containers may have it at once. Absent: one"),
    Optional<&S::exclusive, FlagAs<kStatusMode>>("mode",
        "whether others may be on its GPUs. Absent: shared"),
    Required<&S::devices>("devices", "its GPUs"),
    Required<&S::members>("members", "its processes"),
    Optional<&S::outside>("outside", "processes of its container that use its GPUs past it"),
};

constexpr Field kLink[] = {
    Required<&DeviceLink::kind>("kind",
        "the nearest way between the two; `nvidia-smi topo` has them as SYS, NODE, PHB, PXB, PIX, "
        "PSB, NV#"),
    Defaulted<&DeviceLink::nvlinks>("nvlinks",
        "how many NVLinks; 0: NVML does not say", kCount).When<IsNvlink>(),
};

constexpr Field kDevice[] = {
    Required<&D::index>("index", "as the agent counts them", kId),
    Required<&D::uuid>("uuid", "its identity"),
    Required<&D::name>("name", "its model"),
    Required<&D::total_bytes>("total_bytes", "all memory that it has", kBytes),
    Required<&D::used_bytes>("used_bytes", "in use by all programs, by NVML", kBytes),
    Required<&D::foreign_bytes>("foreign_bytes",
        "the part of it that is no share's: the driver, other programs", kBytes),
    Required<&D::promised_bytes>("promised_bytes",
        "what the memory requests of its shares add up to", kBytes),
    Derived<D, SetAside>("set_aside_bytes", "the same, by its name of before", kBytes),
    Defaulted<&D::limit_bytes>("limit_bytes",
        "the memory limits of its shares", kBytes).IfAbsent<LimitIsPromised>(),
    Defaulted<&D::borrowed_bytes>("borrowed_bytes",
        "what shares hold beyond their requests", kBytes),
    Required<&D::promised_request>("promised_request",
        "the compute requests of its shares", kRatio),
    Required<&D::shares>("shares", "how many shares are on it", kCount),
    Required<&D::busy>("busy",
        "of about the last second, the part that its shares were charged together", kRatio),
    Optional<&D::others>("others",
        "of the last five, in which programs on no share ran, by NVML. Absent: it has no figures, or "
        "there is no share", kRatio),
    Required<&D::overcommit>("overcommit",
        "what limits of shares without a request may add up to, as a multiple of what shares may "
        "hold; 1: no more than there is", kRatio),
    Required<&D::elastic_ceiling>("elastic_ceiling",
        "the most of its time that shares may use together above their requests", kRatio),
    Defaulted<&D::driver_unresponsive_ms>("driver_unresponsive_ms",
        "how long NVML has not answered, and figures of memory are old; 0: it answers", kMs),
    Required<&D::links>("links", "to each GPU in their order, itself too; empty: not known"),
    Optional<&D::exclusive>("exclusive", "the share that has all of it"),
    Optional<&D::compute_capability>("compute_capability", "`9.0`; absent: NVML does not say"),
    Optional<&D::driver_version>("driver_version", "of the NVIDIA driver, as it writes it"),
    Optional<&D::pci_address>("pci_address", "`0000:1a:00.0`"),
    Optional<&D::numa_node>("numa_node",
        "the memory node that it is at. Absent: Linux does not say", kId),
    Optional<&D::pcie_root>("pcie_root",
        "the PCIe root complex that it is below, `pci0000:16`. Absent: likewise"),
};

constexpr Field kWaiting[] = {
    Required<&W::place>("place", "1: it is next", kRank),
    Required<&W::since_ms>("since_ms", "when it came, by CLOCK_BOOTTIME", kMs),
    Required<&W::waited_ms>("waited_ms", "how long it has waited", kMs),
    Required<&W::pid>("pid", "who waits", kId),
    Required<&W::owner_uid>("owner_uid", "whose share it will be", kId),
    Optional<&W::name>("name", "absent: it will be made up"),
    Optional<&W::gpus>("gpu", "as asked for. Absent: the agent chooses"),
    Required<&W::gpu_count>("gpus", "how many GPUs", kCount),
    Optional<&W::memory_bytes>("memory_bytes",
        "of each GPU. Absent: GPUs differ, or it is exclusive", kBytes),
    Required<&W::compute_request>("compute_request", "GPU time that will be guaranteed", kRatio),
    Optional<&W::exclusive>("exclusive", "it asks for whole GPUs"),
    Required<&W::why>("why", "for people: what it waits for"),
};

constexpr Field kStatusEvents[] = {
    Required<&EventsReply::events>("events", "at most 256, in order"),
    Required<&EventsReply::lost>("lost",
        "how many were dropped before they were asked for", kCount),
    Required<&EventsReply::next>("next", "what to give as `since` to go on", kId),
    Required<&EventsReply::last>("last", "the last event there is", kId),
};

// clang-format on

constexpr const Table* kReplies[] = {
    &TableOf<Error>::kTable,        &TableOf<HelloReply>::kTable,   &TableOf<ShareStatus>::kTable,
    &TableOf<WaitingShare>::kTable, &TableOf<DeviceStatus>::kTable, &TableOf<EventsReply>::kTable,
    &TableOf<TraceReply>::kTable,
};

template <typename M>
json Write(const M& message) {
  return WriteMessage(TableOf<M>::kTable, &message);
}

}  // namespace

// clang-format off
template <> constinit const Table TableOf<HelloReply>::kTable = {
    "version", "Who the agent is.", kHello};
template <> constinit const Table TableOf<Error>::kTable = {
    "error", "Why a request is refused.", kError};
template <> constinit const Table TableOf<ShareStatus>::kTable = {
    "share", "A share as it is.", kShare};
template <> constinit const Table TableOf<KeptBy>::kTable = {
    "what keeps a share", "Why it is there while no program runs on it.", kKeptBy};
template <> constinit const Table TableOf<ContainerStatus>::kTable = {
    "container", "The container of a share.", kContainer};
template <> constinit const Table TableOf<ShareDevice>::kTable = {
    "GPU of a share", "What a share has of one GPU, and what it uses.", kShareDevice};
template <> constinit const Table TableOf<MemberStatus>::kTable = {
    "member", "A process of a share.", kMember};
template <> constinit const Table TableOf<OutsideStatus>::kTable = {
    "outside process", "A process of a share's container that is no member: nothing limits it.",
    kOutside};
template <> constinit const Table TableOf<WaitingShare>::kTable = {
    "waiting share", "A share that waits in line to be made.", kWaiting};
template <> constinit const Table TableOf<DeviceStatus>::kTable = {
    "device", "A GPU or MIG instance.", kDevice};
template <> constinit const Table TableOf<DeviceLink>::kTable = {
    "link", "How one GPU reaches another.", kLink};
template <> constinit const Table TableOf<EventsReply>::kTable = {
    "events", "Events in order.", kStatusEvents};
// clang-format on

std::span<const Table* const> Replies() { return kReplies; }

json ToJson(const HelloReply& hello) { return Write(hello); }
json ToJson(const ShareStatus& share) { return Write(share); }
json ToJson(const WaitingShare& waiting) { return Write(waiting); }
json ToJson(const DeviceStatus& device) { return Write(device); }
json ToJson(const EventsReply& reply) { return Write(reply); }
json ToJson(const Error& error) { return {{"error", Write(error)}}; }

Result<HelloReply> HelloFromJson(const json& object) { return ReadReply<HelloReply>(object); }
Result<ShareStatus> ShareFromJson(const json& object) { return ReadReply<ShareStatus>(object); }
Result<WaitingShare> WaitingShareFromJson(const json& object) {
  return ReadReply<WaitingShare>(object);
}
Result<DeviceStatus> DeviceFromJson(const json& object) { return ReadReply<DeviceStatus>(object); }
Result<EventsReply> EventsFromJson(const json& object) { return ReadReply<EventsReply>(object); }

std::optional<Error> ErrorOfReply(const json& reply) {
  if (!reply.is_object() || !reply.contains("error")) return std::nullopt;
  const auto error = ReadReply<Error>(reply["error"]);
  return error ? *error : error.error();
}

}  // namespace prorata::api
