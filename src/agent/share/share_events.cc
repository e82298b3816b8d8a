#include "agent/share/share_events.h"

#include "base/bytes.h"
#include "base/duration.h"

namespace prorata::agent {
namespace {

// The most that a member's memory is believed: a hundred years.
constexpr uint64_t kMaxRunningNs = uint64_t{100} * 31'536'000 * kNsPerS;

using api::Event;
using api::EventKind;
using wire::RefusedReason;

// What of the memory is set aside, where that is not all of it.
std::string RequestInWords(const DeviceOfShare& on) {
  if (on.memory_request_bytes == on.memory_bytes) return "";
  return " (request " + FormatBytes(on.memory_request_bytes) + ")";
}

std::string TermsInWords(const DeviceOfShare& on) {
  const policy::ComputeTerms& compute = on.compute;
  std::string words = FormatBytes(on.memory_bytes) + RequestInWords(on) + ", compute " +
                      FormatFraction(compute.request) + "-" + FormatFraction(compute.limit) +
                      ", weight " + std::to_string(compute.weight);
  if (compute.priority != 0) {
    words += ", priority " + std::to_string(compute.priority) + ", yield within " +
             FormatDuration(compute.yield_within_ns);
  }
  return words;
}

std::string WordOf(RefusedReason reason) {
  switch (reason) {
    case RefusedReason::kMalformed:
      return "malformed";
    case RefusedReason::kVersion:
      return "version";
    case RefusedReason::kShareEnded:
      return "share_ended";
    case RefusedReason::kTooManyMembers:
      return "too_many_members";
    case RefusedReason::kNotAllowed:
      return "not_allowed";
    case RefusedReason::kOtherUser:
      return "other_user";
    case RefusedReason::kOtherContainer:
      return "other_container";
  }
  return "refused";
}

// How much a counter has grown since `*reported`; one that went back begins anew.
uint64_t Grown(uint64_t counter, uint64_t* reported) {
  const uint64_t before = std::exchange(*reported, counter);
  return counter > before ? counter - before : 0;
}

// `running_ns`: of the kernel that its usage memory tells of; 0: of none.
void ReportPersistentKernel(Events& events, const Share& share, Member& member, uint32_t device,
                            uint64_t running_ns) {
  uint64_t& reported_ns = member.devices[device].persistent_ns;
  const uint64_t before_ns = std::exchange(reported_ns, running_ns);
  if ((before_ns == 0) == (running_ns == 0)) return;
  const bool over = running_ns == 0;
  Event event = EventOf(over ? EventKind::kPersistentKernelOver : EventKind::kPersistentKernel,
                        share, &member, device);
  event.limit_bytes = event.used_bytes = {};
  event.running_ms =
      static_cast<int64_t>(std::min(over ? before_ns : running_ns, kMaxRunningNs) / kNsPerMs);
  events.AddCounted(std::move(event));
}

}  // namespace

Event EventOf(EventKind kind, const Share& share, const Member* member,
              std::optional<uint32_t> device) {
  Event event{.kind = kind, .share = share.config().name};
  if (member != nullptr) {
    event.pid = member->process.pid;
    event.command = member->command;
  }
  if (device) {
    const DeviceOfShare& on = share.config().devices[*device];
    event.gpu = static_cast<uint32_t>(on.device);
    event.uuid = on.uuid;
    event.limit_bytes = on.memory_bytes;
    event.used_bytes = share.UsedBytes(*device);
  }
  return event;
}

Event ContainerEvent(EventKind kind, const Share& share) {
  Event event = EventOf(kind, share);
  const ContainerGroup& group = share.container->group;
  event.detail = share.container->name + " (" + group.engine + " " + group.id.substr(0, 12) + ")";
  return event;
}

Event CreatedEvent(const Share& share) {
  Event event = EventOf(EventKind::kShareCreated, share);
  const ShareLife& life = share.config().life;
  if (const ProcessId* owner = life.process()) {
    event.pid = owner->pid;
    event.command = CommandOf(owner->pid);
  }
  if (share.device_count() == 1) {
    event.gpu = static_cast<uint32_t>(share.config().devices[0].device);
    event.uuid = share.config().devices[0].uuid;
    event.limit_bytes = share.config().devices[0].memory_bytes;
  }
  for (const DeviceOfShare& on : share.config().devices) {
    event.detail += (event.detail.empty() ? "" : "; ") + std::string("GPU ") +
                    std::to_string(on.device) + ", " + TermsInWords(on);
  }
  if (share.config().gang != api::Gang::kAuto) {
    event.detail += "; gang " + api::FormatGang(share.config().gang);
  }
  if (life.OutlivesPrograms()) event.detail += ", by " + api::FormatKeptBy(life.Describe());
  return event;
}

Event ChangedEvent(const Share& share, uint32_t device, const api::ShareTerms& terms) {
  const DeviceOfShare& on = share.config().devices[device];
  Event event = EventOf(EventKind::kShareChanged, share, nullptr, device);
  event.limit_bytes = terms.memory_bytes;
  auto changed = [&event](const char* what, const std::string& before, const std::string& after) {
    if (before == after) return;
    event.detail +=
        (event.detail.empty() ? "" : ", ") + std::string(what) + " " + before + " to " + after;
  };
  changed("memory", FormatBytes(on.memory_bytes), FormatBytes(terms.memory_bytes));
  const bool all = on.memory_request_bytes == on.memory_bytes &&
                   terms.memory_request_bytes == terms.memory_bytes;
  if (!all) {
    changed("memory request", FormatBytes(on.memory_request_bytes),
            FormatBytes(terms.memory_request_bytes));
  }
  changed("compute", FormatFraction(on.compute.request), FormatFraction(terms.compute_request));
  changed("compute limit", FormatFraction(on.compute.limit), FormatFraction(terms.compute_limit));
  changed("weight", std::to_string(on.compute.weight), std::to_string(terms.weight));
  changed("priority", std::to_string(on.compute.priority), std::to_string(terms.priority));
  changed("yield within", FormatDuration(on.compute.yield_within_ns),
          FormatDuration(terms.yield_within_ns));
  if (event.detail.empty()) event.detail = "nothing is different";
  return event;
}

Event GangEvent(const Share& share, bool begun) {
  Event event = EventOf(begun ? EventKind::kGangBegun : EventKind::kGangOver, share);
  event.detail = begun
                     ? "its kernels on one GPU were seen to wait for those on another, again and "
                       "again; `--gang always` spares it the seeing, `--gang never` keeps it off"
                     : "it has run well for a while, or has stalled and launches nothing any more; "
                       "should its kernels wait again, it becomes one again";
  return event;
}

Event RefusedEvent(const Share* share, pid_t pid, RefusedReason reason) {
  Event event{.kind = EventKind::kMemberRefused, .why = WordOf(reason)};
  if (share != nullptr) event.share = share->config().name;
  if (pid > 0) {
    event.pid = pid;
    event.command = CommandOf(pid);
  }
  return event;
}

void ReportCounters(Events& events, Share& share, Member& member) {
  if (!member.usage) return;
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    const shm::DeviceUsage& usage = member.usage->device(i);
    Member::OnDevice& on = member.devices[i];
    if (const uint64_t count = Grown(usage.refusals.load(std::memory_order_acquire), &on.refusals);
        count > 0) {
      share.CountRefusals(i, count);
      Event event = EventOf(EventKind::kRefusal, share, &member, i);
      event.asked_bytes = usage.refused_bytes.load();
      // What the agent was not asked about was more than the whole share.
      event.why = on.refused_why.empty() ? "own_limit" : std::exchange(on.refused_why, {});
      event.count = count;
      events.AddCounted(std::move(event));
    }
    if (const uint64_t count = Grown(usage.ungoverned_functions.load(), &on.ungoverned_functions);
        count > 0) {
      Event event = EventOf(EventKind::kUngovernedFunctions, share, &member);
      event.count = count;
      events.AddCounted(std::move(event));
    }
    ReportPersistentKernel(events, share, member, i, usage.persistent_ns.load());
  }
}

void ReportWhatEnded(Events& events, const Share& share, Member& member) {
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    ReportPersistentKernel(events, share, member, i, 0);
  }
}

}  // namespace prorata::agent
