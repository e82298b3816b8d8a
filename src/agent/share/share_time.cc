#include "agent/share/share_time.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace prorata::agent {
namespace {

// See limits_file.h for the meanings. A share with a limit keeps less unfinished: what it has
// submitted when its time is up still runs.
constexpr uint32_t kBacklogAloneUs = 20'000;
constexpr uint32_t kBacklogLimitedUs = 5'000;
constexpr auto kBacklogContendedUs = static_cast<uint32_t>(policy::LeasePolicy::kBacklogNs / 1'000);
constexpr auto kIdleReportUs = static_cast<uint32_t>(policy::LeasePolicy::kIdleReportNs / 1'000);

// The most that a member's memory is believed.
constexpr uint64_t kMaxBacklogNs = 10'000'000'000;
// An expected end further from now than this is another clock's.
constexpr int64_t kComparableNs = 20'000'000'000;
// The helper thread of a member that is at work looks ten times a second at the least.
constexpr int64_t kMaxUnpublishedNs = 200'000'000;
// A counter that jumps by more than a minute between two looks (a tenth of a second apart at most)
// is nonsense; one that goes back is taken as standing still.
constexpr uint64_t kMaxStepNs = 60'000'000'000;

// Who has work, or is asked, and has said and written nothing for so long, nor since its work
// should have ended, is taken to be stopped. Shorter, a thread that waits for a processor is;
// longer, others wait for nobody.
constexpr int64_t kStoppedAfterNs = 52'000'000;

// Can it have launched here? Who has no context has no helper thread to say anything, and nothing
// to say. `launches` alone comes late: the helper thread writes it when it next looks.
bool Engaged(const shm::DeviceUsage& usage) {
  return usage.overhead_bytes.load() > 0 || usage.launches.load() > 0 ||
         usage.backlog_ns.load() > 0;
}

// Of a counter, since it was seen last.
uint64_t GrownBy(uint64_t now_ns, uint64_t& seen_ns) {
  const uint64_t by_ns = now_ns > seen_ns ? std::min(now_ns - seen_ns, kMaxStepNs) : 0;
  seen_ns = std::max(seen_ns, now_ns);
  return by_ns;
}

// By the agent's clock, and not another time namespace's.
bool IsNear(int64_t ns, int64_t now_ns) {
  return ns <= now_ns + kComparableNs && ns >= now_ns - kComparableNs;
}

uint32_t SequenceOf(uint32_t lease) { return lease >> shm::kLeaseSequenceShift; }

void WriteBacklogWords(shm::DeviceLimits& limits, const policy::ComputeTerms& terms,
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

void WriteComputeLimits(shm::DeviceLimits& limits, const policy::ComputeTerms& terms) {
  limits.compute_request_ppm = terms.request.ppm;
  limits.compute_limit_ppm = terms.limit.ppm;
  limits.compute_weight = terms.weight;
  // A bound that stands there stays until DeviceLeases, which knows the other shares, writes anew.
  if (limits.backlog_alone_us == 0) WriteBacklogWords(limits, terms, kMaxBacklogNs);
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

void ShareTime::SetUsage(uint32_t slot, const shm::DeviceUsage* usage) {
  Member* member = Find(slot);
  if (member == nullptr) return;
  if (!member->heard) {
    member->heard = true;
    member->busy_seen_ns = usage->device_time_ns.load();
    member->occupied_seen_ns = usage->occupied_ns.load();
  }
  member->usage = usage;
}

void ShareTime::SetConnected(uint32_t slot, bool connected) {
  if (Member* member = Find(slot)) member->connected = connected;
}

void ShareTime::Depart(uint32_t slot) {
  Member* member = Find(slot);
  if (member == nullptr) return;
  ReadBusy();
  ReadOccupied(occupied_read_ns_);
  member->departed = true;
  member->connected = false;
  member->usage = nullptr;
}

void ShareTime::Forget(uint32_t slot) {
  std::erase_if(members_, [slot](const Member& other) { return other.slot == slot; });
}

void ShareTime::Said(uint32_t slot) {
  if (Member* member = Find(slot)) member->said = true;
}

void ShareTime::SaidIdle(uint32_t slot, uint32_t sequence) {
  Said(slot);
  Member* member = Find(slot);
  if (member == nullptr || member->usage == nullptr) return;
  member->idle_sequence = sequence;
  member->idle_launches = member->usage->launches.load();
}

void ShareTime::SaidDrained(uint32_t slot, uint32_t sequence) {
  Said(slot);
  if (Member* member = Find(slot)) member->drained_sequence = sequence;
}

// Whether it has anything to do: work to look after, a lease to use or to report on. What stands
// behind a wait may do so for ever.
bool ShareTime::MustSpeak(const Member& member, int64_t now_ns) const {
  const shm::DeviceUsage& usage = *member.usage;
  if (!Engaged(usage)) return false;
  const uint32_t sequence = SequenceOf(lease());
  const bool blocked = usage.blocked.load() != 0;
  if (!open()) {
    const int64_t looks_by_ns = usage.looks_by_ns.load();
    const bool late = shm::IsLate(looks_by_ns, now_ns) && IsNear(looks_by_ns, now_ns);
    // It would not be given its lease, and asked by that.
    if (late && usage.waiting.load() > 0) return true;
    return !blocked && usage.drained_sequence.load() != sequence &&
           member.drained_sequence != sequence;
  }
  const bool at_work = usage.backlog_ns.load() > 0 || member.idle_sequence != sequence;
  return contended() && (usage.waiting.load() > 0 || (!blocked && at_work));
}

// Whether all that have something to say are stopped, as far as is known.
bool ShareTime::AllStopped(int64_t now_ns) {
  bool stopped = false, heard = false;
  for (Member& member : members_) {
    if (member.usage == nullptr || !member.connected) continue;
    const shm::DeviceUsage& usage = *member.usage;
    const Words words = {.occupied_ns = usage.occupied_ns.load(),
                         .backlog_ns = usage.backlog_ns.load(),
                         .launches = usage.launches.load(),
                         .busy_ns = usage.device_time_ns.load(),
                         .expected_end_ns = usage.expected_end_ns.load(),
                         .waiting = usage.waiting.load(),
                         .drained_sequence = usage.drained_sequence.load()};
    const bool must = MustSpeak(member, now_ns);
    if (std::exchange(member.said, false) || words != member.words) {
      member.words = words;
      member.quiet_since_ns = now_ns;
      member.stopped = false;
    } else if (!must && !member.stopped) {
      member.quiet_since_ns = now_ns;
    }
    const bool unfinished = words.expected_end_ns > now_ns - kStoppedAfterNs &&
                            words.backlog_ns > 0 && words.expected_end_ns <= now_ns + kComparableNs;
    if (now_ns - member.quiet_since_ns >= kStoppedAfterNs && !unfinished) member.stopped = true;
    stopped |= member.stopped;
    heard |= !member.stopped && (must || usage.waiting.load() > 0);
  }
  return stopped && !heard;
}

void ShareTime::ReadBusy() {
  for (Member& member : members_) {
    if (member.usage == nullptr) continue;
    const uint64_t busy_ns = GrownBy(member.usage->device_time_ns.load(), member.busy_seen_ns);
    member.busy_ns += busy_ns;
    busy_ns_ += busy_ns;
  }
}

// Members that are at work at the same time say the same of one time.
void ShareTime::ReadOccupied(int64_t now_ns) {
  uint64_t sum_ns = 0, most_ns = 0;
  for (Member& member : members_) {
    if (member.usage == nullptr) continue;
    const int64_t believed_ns = member.stopped ? 0 : kMaxUnpublishedNs;
    const uint64_t occupied_ns = shm::OccupiedNs(*member.usage, now_ns, believed_ns);
    const uint64_t by_ns = GrownBy(occupied_ns, member.occupied_seen_ns);
    sum_ns += by_ns;
    most_ns = std::max(most_ns, by_ns);
  }
  const auto passed_ns = static_cast<uint64_t>(std::max<int64_t>(0, now_ns - occupied_read_ns_));
  occupied_read_ns_ = std::max(occupied_read_ns_, now_ns);
  occupied_ns_ += std::min(sum_ns, std::max(most_ns, passed_ns));
}

// From when on none of those that have work, or wait, would have looked in time, nor would any have
// work that should still run.
int64_t ShareTime::AwayNs(int64_t now_ns) const {
  constexpr int64_t kNever = policy::LeasePolicy::kNever;
  int64_t away_ns = 0;
  for (const Member& member : members_) {
    if (member.usage == nullptr || !member.connected) continue;
    const bool works = member.usage->backlog_ns.load() > 0;
    if (!works && member.usage->waiting.load() == 0) continue;
    const int64_t looks_by_ns = member.usage->looks_by_ns.load();
    const int64_t end_ns = member.usage->expected_end_ns.load();
    if (looks_by_ns == 0 || !IsNear(looks_by_ns, now_ns)) return kNever;
    away_ns = std::max(away_ns, looks_by_ns + shm::kLateLookNs);
    if (works && IsNear(end_ns, now_ns)) away_ns = std::max(away_ns, end_ns);
  }
  return away_ns > 0 ? away_ns : kNever;
}

policy::LeasePolicy::Work ShareTime::Poll(int64_t now_ns) {
  ReadBusy();
  ReadOccupied(now_ns);
  policy::LeasePolicy::Work work;
  work.stopped = AllStopped(now_ns);
  work.away_ns = AwayNs(now_ns);
  work.busy_total_ns = busy_ns_;
  work.occupied_total_ns = occupied_ns_;
  work.contexts = 0;
  uint64_t sum_ns = 0;
  int64_t last_ns = std::numeric_limits<int64_t>::min();
  bool comparable = true;
  bool any = false;
  for (const Member& member : members_) {
    if (member.usage == nullptr || member.stopped) continue;
    const uint64_t backlog_ns = std::min(member.usage->backlog_ns.load(), kMaxBacklogNs);
    if (backlog_ns == 0) continue;
    any = true;
    work.contexts += member.usage->blocked.load() == 0;
    sum_ns += backlog_ns;
    const int64_t end_ns = member.usage->expected_end_ns.load();
    comparable = comparable && IsNear(end_ns, now_ns);
    last_ns = std::max(last_ns, end_ns);
  }
  work.backlog_ns = static_cast<int64_t>(std::min(sum_ns, kMaxBacklogNs));
  if (any && comparable) work.end_ns = last_ns;
  work.blocked = work.stopped || (any && work.contexts == 0);
  if (work.stopped) work.backlog_ns = std::max<int64_t>(1, work.backlog_ns);
  work.contexts = std::max(1u, work.contexts);
  return work;
}

uint64_t ShareTime::BusyNs() {
  ReadBusy();
  return busy_ns_;
}

uint64_t ShareTime::MemberTime(uint32_t slot) const {
  const Member* member = Find(slot);
  return member != nullptr ? member->busy_ns : 0;
}

bool ShareTime::AnyWaiting() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.usage != nullptr && member.connected && member.usage->waiting.load() > 0;
  });
}

uint64_t ShareTime::MostLaunches() const {
  uint64_t most = 0;
  for (const Member& member : members_) {
    if (member.departed || member.usage == nullptr) continue;
    most = std::max(most, member.usage->launches.load());
  }
  return most;
}

bool ShareTime::AllDeparted() const {
  return !members_.empty() && std::all_of(members_.begin(), members_.end(),
                                          [](const Member& member) { return member.departed; });
}

bool ShareTime::AnyMember() const { return !members_.empty() && !AllDeparted(); }

bool ShareTime::AllDrained() const {
  const uint32_t sequence = SequenceOf(lease());
  bool any_drained = false;
  bool any_stopped = false;
  for (const Member& member : members_) {
    if (member.departed) continue;
    if (member.usage == nullptr) return false;
    if (!Engaged(*member.usage)) continue;
    if (member.usage->drained_sequence.load() == sequence || member.drained_sequence == sequence) {
      any_drained = true;
    } else if (member.stopped) {
      any_stopped = true;
    } else {
      return false;
    }
  }
  return !any_stopped || any_drained;
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
  bool any_idle = false;
  for (const Member& member : members_) {
    if (member.departed) continue;
    if (member.usage == nullptr || member.usage->waiting.load() > 0) return false;
    if (!Engaged(*member.usage)) continue;
    if (member.idle_sequence != sequence || member.usage->backlog_ns.load() > 0 ||
        member.usage->launches.load() != member.idle_launches) {
      return false;
    }
    any_idle = true;
  }
  return any_idle || AllDeparted();
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

void ShareTime::SetIdleReport(int64_t idle_report_ns) {
  const auto report_us = static_cast<uint32_t>(idle_report_ns / 1'000);
  if (limits_->idle_report_us.load() != report_us) limits_->idle_report_us.store(report_us);
}

void ShareTime::SetTogether(uint32_t together) {
  if (limits_->together.load() != together) limits_->together.store(together);
}

void ShareTime::NoteLimitTokens(int64_t tokens_ns) {
  limits_->limit_tokens_ns.store(tokens_ns);
  if (limits_->limit_tokens_known.load() == 0) limits_->limit_tokens_known.store(1);
}

std::optional<int64_t> ShareTime::LimitTokensNs() const {
  if (limits_->limit_tokens_known.load() == 0) return std::nullopt;
  return limits_->limit_tokens_ns.load();
}

uint32_t ShareTime::WriteLease(bool open, bool contended, uint32_t extra_launches) {
  const uint32_t sequence = SequenceOf(lease()) + 1;
  // First: who reads the word must find what belongs to it.
  if (extra_launches > 0) limits_->extra_launches.store(uint64_t{sequence} << 32 | extra_launches);
  limits_->lease.store((sequence << shm::kLeaseSequenceShift) | (open ? shm::kLeaseOpen : 0) |
                       (contended ? shm::kLeaseContended : 0));
  return sequence;
}

}  // namespace prorata::agent
