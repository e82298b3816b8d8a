#include "api/event.h"

#include <string_view>
#include <utility>

#include "api/messages.h"
#include "base/bytes.h"

namespace prorata::api {
namespace {

constexpr std::pair<EventKind, std::string_view> kEventNames[] = {
    {EventKind::kAgentStarted, "agent_started"},
    {EventKind::kShareCreated, "share_created"},
    {EventKind::kShareAdopted, "share_adopted"},
    {EventKind::kShareChanged, "share_changed"},
    {EventKind::kShareEnded, "share_ended"},
    {EventKind::kMemberJoined, "member_joined"},
    {EventKind::kMemberGone, "member_gone"},
    {EventKind::kMemberRefused, "member_refused"},
    {EventKind::kRefusal, "refusal"},
    {EventKind::kWaitBegun, "wait_begun"},
    {EventKind::kWaitEnded, "wait_ended"},
    {EventKind::kBypassSuspected, "bypass_suspected"},
    {EventKind::kBypassOver, "bypass_over"},
    {EventKind::kFalseUsage, "false_usage"},
    {EventKind::kOutsideProcess, "outside_process"},
    {EventKind::kUngovernedFunctions, "ungoverned_functions"},
    {EventKind::kPersistentKernel, "persistent_kernel"},
    {EventKind::kPersistentKernelOver, "persistent_kernel_over"},
    {EventKind::kFiguresMissing, "figures_missing"},
    {EventKind::kResourceConfigApplied, "resource_config_applied"},
    {EventKind::kResourceConfigRefused, "resource_config_refused"},
    {EventKind::kGangBegun, "gang_begun"},
    {EventKind::kGangOver, "gang_over"},
    {EventKind::kDriverSlow, "driver_slow"},
    {EventKind::kDriverSlowOver, "driver_slow_over"},
    {EventKind::kContainerJoined, "container_joined"},
    {EventKind::kContainerGone, "container_gone"},
    {EventKind::kShareWaits, "share_waits"},
    {EventKind::kShareWaitEnded, "share_wait_ended"},
};

// clang-format off
constexpr Field kEvent[] = {
    Required<&Event::sequence>("sequence", "one more for each event of the agent, from 1", kId),
    Required<&Event::time_unix_ms>("time_unix_ms", "when the agent recorded it", kUnixMs),
    Required<&Event::kind, NameAs<EventKind, true>>("event",
        "what happened: [what each means](events.md)"),
    Optional<&Event::share>("share", "whose it is"),
    Optional<&Event::gpu>("gpu", "the GPU's index", kId),
    Optional<&Event::uuid>("uuid", "the GPU's identity"),
    Optional<&Event::pid>("pid", "the process", kId),
    Optional<&Event::command>("command", "as in `/proc/PID/comm`"),
    Optional<&Event::asked_bytes>("asked_bytes",
        "what the request, or the last of several, asked for", kBytes),
    Optional<&Event::limit_bytes>("limit_bytes", "the share's limit on that GPU, then", kBytes),
    Optional<&Event::used_bytes>("used_bytes", "what the share held there, then", kBytes),
    Optional<&Event::waited_ms>("waited_ms", "how long a wait took", kMs),
    Optional<&Event::running_ms>("running_ms", "how long a kernel has been running, or ran", kMs),
    Optional<&Event::why>("why", "a word of [events](events.md)"),
    Optional<&Event::outcome>("outcome", "how a wait ended: a word of [events](events.md)"),
    Optional<&Event::detail>("detail", "words for people, without a fixed form"),
    Optional<&Event::count>("count", "how many events this one stands for. Absent: 1", kCount),
};
// clang-format on

// For people; what is not in the table (of a newer agent) is said as it came.
constexpr std::pair<std::string_view, std::string_view> kReasons[] = {
    {"malformed", "it sent an invalid message"},
    {"version", "its client library is of another version than the agent; start the program again"},
    {"share_ended", "the share has ended"},
    {"too_many_members", "the share has as many processes as a share can have"},
    {"not_allowed",
     "it runs on another share already, or the kernel does not say which process it is"},
    {"other_user",
     "it belongs to another user, whom the share's owner has not allowed; see `prorata update "
     "--allow-users`"},
    {"other_container", "another container has the share until that container ends"},
    {"granted", "it got what it asked for"},
    {"timed_out", "it waited as long as --on-full allows, and the allocation failed"},
    {"process_ended", "its process ended"},
    {"refused", "the allocation failed"},
    {"agent_gone", "the agent ended"},
    {"made", "it was made"},
    {"given_up", "the program that asked for it ended, and it left the line"},
};

std::string Reason(const std::string& word) {
  for (const auto& [known, words] : kReasons) {
    if (known == word) return std::string(words);
  }
  return word;
}

std::string Process(const Event& event) {
  if (!event.pid) return "a process";
  return "process " + std::to_string(*event.pid) +
         (event.command.empty() ? "" : " (" + event.command + ")");
}

std::string OnGpu(const Event& event) {
  return event.gpu ? " on GPU " + std::to_string(*event.gpu) : "";
}

std::string Size(const std::optional<uint64_t>& bytes) {
  return bytes ? FormatBytes(*bytes) : "memory";
}

std::string Colon(const std::string& text) { return text.empty() ? "" : ": " + text; }

// "the share's limit is 4 GiB, and it holds 3 GiB"
std::string Full(const Event& event) {
  const std::string holds = event.used_bytes ? " holds " + FormatBytes(*event.used_bytes) : "";
  if (event.why == "own_limit" && event.limit_bytes) {
    return "the share's limit is " + FormatBytes(*event.limit_bytes) +
           (holds.empty() ? "" : ", and it" + holds);
  }
  return (event.why == "device_full" ? "the GPU is full" : event.why) +
         (holds.empty() ? "" : ", and the share" + holds);
}

std::string Refusal(const Event& event) {
  if (event.count <= 1) {
    return Process(event) + " was refused " + Size(event.asked_bytes) + OnGpu(event) + ": " +
           Full(event);
  }
  return Process(event) + " was refused " + std::to_string(event.count) + " times" + OnGpu(event) +
         ", last " + Size(event.asked_bytes) + ": " + Full(event);
}

std::string Wait(const Event& event) {
  if (event.kind == EventKind::kWaitBegun) {
    return Process(event) + " waits for " + Size(event.asked_bytes) + OnGpu(event) +
           Colon(event.detail);
  }
  return Process(event) + " has waited " + std::to_string(event.waited_ms.value_or(0)) +
         " ms for " + Size(event.asked_bytes) + OnGpu(event) + ": " + Reason(event.outcome);
}

// "the share that process 812 (prorata) asked for waits in line: ..."
std::string StartWaits(const Event& event) {
  const std::string share = "the share that " + Process(event) + " asked for ";
  if (event.kind == EventKind::kShareWaits) return share + "waits in line" + Colon(event.detail);
  const std::string waited = std::to_string(event.waited_ms.value_or(0)) + " ms";
  const std::string how = event.outcome == "timed_out" ? "that was as long as --wait allows"
                          : event.outcome == "refused" ? "it was refused"
                                                       : Reason(event.outcome);
  return share + "waited " + waited + " in line: " + how + Colon(event.detail);
}

std::string Persistent(const Event& event) {
  const std::string seconds = std::to_string(event.running_ms.value_or(0) / 1000) + " s";
  if (event.kind == EventKind::kPersistentKernelOver) {
    return Process(event) + " runs no persistent kernel any more" + OnGpu(event) +
           ": the last one ran for " + seconds;
  }
  return Process(event) + " runs a kernel that has not ended for " + seconds + OnGpu(event) +
         ": it cannot be preempted. While it runs, other shares run beside it, and the limit on "
         "its "
         "share's GPU time does not hold; memory limits do. Give the share a GPU of its own, or "
         "let the kernel end now and then";
}

// "used 6 GiB, limit 4 GiB"
std::string UsedOfLimit(const Event& event) {
  return (event.used_bytes ? FormatBytes(*event.used_bytes) + " used, " : "") + "limit " +
         (event.limit_bytes ? FormatBytes(*event.limit_bytes) : "unknown");
}

}  // namespace

constinit const std::span<const std::pair<EventKind, std::string_view>> Names<EventKind>::kAll =
    kEventNames;

// clang-format off
template <> constinit const Table TableOf<Event>::kTable = {
    "event", "Something that happened.", kEvent};
// clang-format on

std::string NameOf(EventKind kind) { return std::string(NameIn(kind)); }
std::optional<EventKind> EventKindOf(std::string_view name) { return ValueIn<EventKind>(name); }

json ToJson(const Event& event) { return WriteMessage(TableOf<Event>::kTable, &event); }
Result<Event> EventFromJson(const json& object) { return ReadReply<Event>(object); }

std::string Words(const Event& event) {
  switch (event.kind) {
    case EventKind::kAgentStarted:
      return "the agent started" + Colon(event.detail);
    case EventKind::kShareCreated:
      return "the share was made" + Colon(event.detail);
    case EventKind::kShareAdopted:
      return "the share was taken over from the agent that ran before" + Colon(event.detail);
    case EventKind::kShareChanged:
      return "the share was changed" + OnGpu(event) + Colon(event.detail);
    case EventKind::kShareEnded:
      return "the share ended";
    case EventKind::kMemberJoined:
      return Process(event) + " joined";
    case EventKind::kMemberGone:
      return Process(event) + " is gone";
    case EventKind::kContainerJoined:
      return "container " + event.detail + " has the share";
    case EventKind::kContainerGone:
      return "container " + event.detail + " ended; the share waits for another";
    case EventKind::kShareWaits:
    case EventKind::kShareWaitEnded:
      return StartWaits(event);
    case EventKind::kMemberRefused:
      return Process(event) + " was turned away" +
             (event.count > 1 ? " " + std::to_string(event.count) + " times" : "") + ": " +
             Reason(event.why);
    case EventKind::kRefusal:
      return Refusal(event);
    case EventKind::kWaitBegun:
    case EventKind::kWaitEnded:
      return Wait(event);
    case EventKind::kBypassSuspected:
      return (event.pid ? Process(event) : "the share") +
             " holds memory that it took past prorata" + OnGpu(event) + " (" + UsedOfLimit(event) +
             ")" + Colon(event.detail);
    case EventKind::kBypassOver:
      return (event.pid ? Process(event) : "the share") +
             " no longer holds memory that it took past prorata" + OnGpu(event) + " (" +
             UsedOfLimit(event) + ")";
    case EventKind::kFalseUsage:
      return Process(event) + " says that it uses more than it was granted" + OnGpu(event) + " (" +
             UsedOfLimit(event) + ")" + Colon(event.detail);
    case EventKind::kOutsideProcess:
      return Process(event) + " of the share's container uses the device" + OnGpu(event) +
             " past the share: none of its limits holds for that process" +
             (event.used_bytes ? " (" + FormatBytes(*event.used_bytes) + " used)" : "") +
             Colon(event.detail);
    case EventKind::kUngovernedFunctions:
      return Process(event) + " uses " + std::to_string(event.count) +
             (event.count == 1 ? " driver function" : " driver functions") +
             " unknown to prorata; the memory and GPU time that they take is not charged";
    case EventKind::kPersistentKernel:
    case EventKind::kPersistentKernelOver:
      return Persistent(event);
    case EventKind::kFiguresMissing:
      return "no memory figures per process" + OnGpu(event) + Colon(event.detail);
    case EventKind::kResourceConfigApplied:
      return "the resource configuration is in force" + OnGpu(event) + Colon(event.detail);
    case EventKind::kResourceConfigRefused:
      return "the resource configuration is refused, and nothing changed" + OnGpu(event) +
             Colon(event.detail);
    case EventKind::kGangBegun:
      return "runs on all its GPUs at the same time now" + Colon(event.detail);
    case EventKind::kGangOver:
      return "runs on each of its GPUs by itself again" + Colon(event.detail);
    case EventKind::kDriverSlow:
      return "the driver (NVML) has not answered for a second: figures of GPU memory are late; "
             "shares keep their limits and their GPU time" +
             Colon(event.detail);
    case EventKind::kDriverSlowOver:
      return "the driver (NVML) answers again" + Colon(event.detail);
  }
  return NameOf(event.kind);
}

}  // namespace prorata::api
