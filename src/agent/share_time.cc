#include "agent/share_time.h"

#include <algorithm>
#include <limits>

namespace prorata::agent {
namespace {

// See limits_file.h for the meanings. A share with a limit keeps less queued: what it has launched
// when its time is up still runs.
constexpr uint32_t kBacklogAloneUs = 20'000;
constexpr uint32_t kBacklogLimitedUs = 5'000;
constexpr uint32_t kBacklogContendedUs = 2'000;
constexpr uint32_t kIdleReportUs = 200;

// The most that a member's memory is believed.
constexpr uint64_t kMostHistoryNs = uint64_t{31'536'000} * 1'000'000'000;  // a year
constexpr uint64_t kMostBacklogNs = 10'000'000'000;
// An expected end further from now than this is another clock's.
constexpr int64_t kComparableNs = 20'000'000'000;
// A share whose work ends sooner than this need not be told that it is called back.
constexpr int64_t kNearNs = 5'000'000;
// A counter that jumps by more than a minute between two looks (a tenth of a second apart at most)
// is nonsense; one that goes back is taken as standing still.
constexpr uint64_t kMostStepNs = 60'000'000'000;

// Can it have launched here? Who has no context has no helper thread to say anything, and nothing
// to say. `launches` alone comes late: the helper thread writes it when it next looks.
bool Engaged(const protocol::DeviceUsage& usage) {
  return usage.overhead_bytes.load() > 0 || usage.launches.load() > 0 ||
         usage.backlog_ns.load() > 0;
}

uint32_t SequenceOf(uint32_t lease) { return lease >> protocol::kLeaseSequenceShift; }

void WriteBacklogWords(protocol::DeviceLimits& limits, const policy::ComputeTerms& terms,
                       int64_t bound_ns) {
  const bool limited = terms.limit < Fraction::One();
  const auto bound_us = static_cast<uint64_t>(std::max<int64_t>(bound_ns, 1'000) / 1'000);
  auto bounded = [bound_us](uint32_t us) {
    return static_cast<uint32_t>(std::min<uint64_t>(us, bound_us));
  };
  limits.backlog_alone_us = bounded(limited ? kBacklogLimitedUs : kBacklogAloneUs);
  limits.backlog_contended_us = bounded(kBacklogContendedUs);
}

}  // namespace

void WriteComputeLimits(protocol::DeviceLimits& limits, const policy::ComputeTerms& terms) {
  limits.compute_request_ppm = terms.request.ppm;
  limits.compute_limit_ppm = terms.limit.ppm;
  limits.compute_weight = terms.weight;
  // A bound that stands there stays until DeviceLeases, which knows the other shares, writes anew.
  if (limits.backlog_alone_us == 0) WriteBacklogWords(limits, terms, kMostBacklogNs);
  limits.idle_report_us = kIdleReportUs;
}

void ShareTime::WriteBacklogs(const policy::ComputeTerms& terms, int64_t bound_ns) {
  WriteBacklogWords(*limits_, terms, bound_ns);
}

ShareTime::Member* ShareTime::Find(uint32_t slot) {
  for (Member& member : members_) {
    if (member.slot == slot) return &member;
  }
  return nullptr;
}

void ShareTime::Admit(uint32_t slot) {
  Forget(slot);
  members_.emplace_back().slot = slot;
}

void ShareTime::SetUsage(uint32_t slot, const protocol::DeviceUsage* usage) {
  Member* member = Find(slot);
  if (member == nullptr) return;
  if (!member->heard) {
    member->heard = true;
    member->counter_ns = usage->device_time_ns.load();
    member->device_time_ns = std::min(member->counter_ns, kMostHistoryNs);
    history_ns_ += member->device_time_ns;
  }
  member->usage = usage;
}

void ShareTime::SetConnected(uint32_t slot, bool connected) {
  if (Member* member = Find(slot)) member->connected = connected;
}

void ShareTime::Depart(uint32_t slot) {
  Member* member = Find(slot);
  if (member == nullptr) return;
  ReadDeviceTime();
  member->departed = true;
  member->connected = false;
  member->usage = nullptr;
}

void ShareTime::Forget(uint32_t slot) {
  const Member* member = Find(slot);
  if (member == nullptr) return;
  forgotten_ns_ += member->device_time_ns;
  std::erase_if(members_, [slot](const Member& other) { return other.slot == slot; });
}

void ShareTime::SaidIdle(uint32_t slot, uint32_t sequence) {
  Member* member = Find(slot);
  if (member == nullptr || member->usage == nullptr) return;
  member->idle_sequence = sequence;
  member->idle_launches = member->usage->launches.load();
}

void ShareTime::SaidDrained(uint32_t slot, uint32_t sequence) {
  if (Member* member = Find(slot)) member->drained_sequence = sequence;
}

uint64_t ShareTime::ReadDeviceTime() {
  uint64_t sum = forgotten_ns_;
  for (Member& member : members_) {
    if (member.usage != nullptr) {
      const uint64_t counter = member.usage->device_time_ns.load();
      if (counter > member.counter_ns) {
        member.device_time_ns += std::min(counter - member.counter_ns, kMostStepNs);
        member.counter_ns = counter;
      }
    }
    sum += member.device_time_ns;
  }
  return sum;
}

uint64_t ShareTime::MemberTime(uint32_t slot) const {
  const Member* member = Find(slot);
  return member != nullptr ? member->device_time_ns : 0;
}

uint64_t ShareTime::BacklogNs() const {
  uint64_t sum = 0;
  for (const Member& member : members_) {
    if (member.usage != nullptr) sum += std::min(member.usage->backlog_ns.load(), kMostBacklogNs);
  }
  return std::min(sum, kMostBacklogNs);
}

ShareTime::Queued ShareTime::QueuedAt(int64_t now_ns) const {
  Queued queued = {BacklogNs()};
  if (limits_->closely.load() != 0) return queued;
  uint64_t left_ns = 0;
  int64_t last_ns = std::numeric_limits<int64_t>::min();
  for (const Member& member : members_) {
    if (member.usage == nullptr || !Engaged(*member.usage)) continue;
    const int64_t end_ns = member.usage->expected_end_ns.load();
    const bool outstanding = member.usage->backlog_ns.load() != 0;
    if (!outstanding && end_ns <= now_ns) continue;
    if (end_ns > now_ns + kComparableNs || end_ns < now_ns - kComparableNs) return queued;
    left_ns += end_ns > now_ns ? static_cast<uint64_t>(end_ns - now_ns) : 0;
    last_ns = std::max(last_ns, end_ns);
    if (outstanding && left_ns == 0) left_ns = 1;
  }
  if (left_ns == 0) return queued;
  queued.ns = std::min(left_ns, kMostBacklogNs);
  queued.end_ns = last_ns <= now_ns ? last_ns : now_ns + static_cast<int64_t>(queued.ns);
  return queued;
}

bool ShareTime::AnyWaiting() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.usage != nullptr && member.connected && member.usage->waiting.load() > 0;
  });
}

bool ShareTime::AnyLiving() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return !member.departed; });
}

bool ShareTime::AllDrained(bool late) const {
  const uint32_t sequence = SequenceOf(lease());
  bool any_drained = false;
  bool any_silent = false;
  for (const Member& member : members_) {
    if (member.departed) continue;
    if (member.usage == nullptr) return false;
    if (!Engaged(*member.usage)) continue;
    if (member.usage->drained_sequence.load() == sequence || member.drained_sequence == sequence) {
      any_drained = true;
    } else if (late && member.usage->backlog_ns.load() == 0) {
      any_silent = true;
    } else {
      return false;
    }
  }
  return !any_silent || any_drained;
}

int64_t ShareTime::DrainedSince(int64_t now_ns) const {
  int64_t since_ns = std::numeric_limits<int64_t>::min();
  for (const Member& member : members_) {
    if (member.departed || member.usage == nullptr || !Engaged(*member.usage)) continue;
    const int64_t end_ns = member.usage->expected_end_ns.load();
    if (end_ns > now_ns || end_ns < now_ns - kComparableNs) return now_ns;
    since_ns = std::max(since_ns, end_ns);
  }
  return since_ns < now_ns - kComparableNs ? now_ns : since_ns;
}

bool ShareTime::AllIdle() const {
  const uint32_t sequence = SequenceOf(lease());
  bool any_living = false;
  bool any_idle = false;
  for (const Member& member : members_) {
    if (member.departed) continue;
    any_living = true;
    if (member.usage == nullptr || member.usage->waiting.load() > 0) return false;
    if (!Engaged(*member.usage)) continue;
    if (member.idle_sequence != sequence || member.usage->backlog_ns.load() > 0 ||
        member.usage->launches.load() != member.idle_launches) {
      return false;
    }
    any_idle = true;
  }
  return any_idle || !any_living;
}

void ShareTime::CountActive() {
  uint32_t active = 0;
  for (Member& member : members_) {
    if (member.departed || member.usage == nullptr) continue;
    const uint64_t launches = member.usage->launches.load();
    const bool moves = launches != member.counted_launches || member.usage->waiting.load() > 0 ||
                       member.usage->backlog_ns.load() > 0;
    member.counted_launches = launches;
    member.quiet_counts = moves ? 0 : std::min(member.quiet_counts + 1, kActiveCounts);
    active += member.quiet_counts < kActiveCounts;
  }
  limits_->active_members.store(active);
}

uint32_t ShareTime::MembersAtWork() const {
  return static_cast<uint32_t>(
      std::count_if(members_.begin(), members_.end(), [](const Member& member) {
        return !member.departed && member.usage != nullptr && member.usage->backlog_ns.load() > 0;
      }));
}

void ShareTime::SetContendedBacklog(int64_t backlog_ns) {
  const auto backlog_us = static_cast<uint32_t>(backlog_ns / 1'000);
  if (limits_->backlog_contended_us.load() != backlog_us) {
    limits_->backlog_contended_us.store(backlog_us);
  }
}

void ShareTime::SetTogether(bool together) {
  const uint32_t word = together ? 1 : 0;
  if (limits_->together.load() != word) limits_->together.store(word);
}

void ShareTime::SetClosely(bool closely) {
  const uint32_t word = closely ? 1 : 0;
  if (limits_->closely.load() != word) limits_->closely.store(word);
}

bool ShareTime::SetDrainUnawaited(bool unawaited) {
  const uint32_t sequence = SequenceOf(lease());
  const uint32_t before = limits_->drain_unawaited.load();
  const uint32_t word = unawaited ? sequence : 0;
  if (before != word) limits_->drain_unawaited.store(word);
  return before == sequence && !unawaited;
}

// Open: a thread of it waits, and is woken by the word. Closed: the look comes when what it has
// launched should be done, and that is known and near.
bool ShareTime::MindsLease(uint32_t slot, int64_t now_ns) const {
  const Member* member = Find(slot);
  if (member == nullptr || member->usage == nullptr) return false;
  const protocol::DeviceUsage& usage = *member->usage;
  const uint32_t minds = usage.minds_lease.load();
  if ((lease() & protocol::kLeaseOpen) != 0) {
    return (minds & protocol::kMindsOpening) != 0 && usage.waiting.load() > 0;
  }
  if ((minds & protocol::kMindsClosing) == 0) return false;
  const int64_t left_ns = usage.expected_end_ns.load() - now_ns;
  return usage.backlog_ns.load() > 0 && left_ns > 0 && left_ns < kNearNs;
}

uint32_t ShareTime::WriteLease(bool open, bool contended) {
  const uint32_t sequence = SequenceOf(lease()) + 1;
  limits_->lease.store((sequence << protocol::kLeaseSequenceShift) |
                       (open ? protocol::kLeaseOpen : 0) |
                       (contended ? protocol::kLeaseContended : 0));
  return sequence;
}

}  // namespace prorata::agent
