#include "agent/share.h"

#include <cstring>

#include "base/check.h"

namespace prorata::agent {
namespace {

// See limits_file.h for the meanings. A share with a limit keeps less queued: what it has launched
// when its time is up still runs.
constexpr uint32_t kBacklogAloneUs = 20'000;
constexpr uint32_t kBacklogLimitedUs = 5'000;
constexpr uint32_t kBacklogContendedUs = 2'000;
constexpr uint32_t kIdleReportUs = 200;

}  // namespace

Share::Share(uint64_t id, ShareConfig config, LimitsMapping limits)
    : id_(id), config_(std::move(config)), limits_(std::move(limits)) {
  for (const DeviceOfShare& device : config_.devices) {
    ledgers_.emplace_back(device.memory_bytes, kMaxMembers);
  }
}

std::optional<uint32_t> Share::IndexOf(size_t device) const {
  for (uint32_t i = 0; i < device_count(); ++i) {
    if (config_.devices[i].device == device) return i;
  }
  return std::nullopt;
}

void Share::WriteLimits(uint64_t context_overhead_bytes, bool adopted) {
  protocol::LimitsHeader& header = limits_->header;
  for (uint32_t i = 0; i < device_count(); ++i) {
    const DeviceOfShare& device = config_.devices[i];
    protocol::DeviceLimits& out = limits_->devices[i];
    if (!adopted) std::strncpy(out.uuid, device.uuid.c_str(), sizeof out.uuid - 1);
    const bool limited = device.compute.limit < Fraction::One();
    out.memory_limit_bytes = device.memory_bytes;
    out.context_overhead_bytes = context_overhead_bytes;
    out.compute_request_ppm = device.compute.request.ppm;
    out.compute_limit_ppm = device.compute.limit.ppm;
    out.compute_weight = device.compute.weight;
    out.backlog_alone_us = limited ? kBacklogLimitedUs : kBacklogAloneUs;
    out.backlog_contended_us = kBacklogContendedUs;
    out.idle_report_us = kIdleReportUs;
  }
  header.device_count = device_count();
  // Last: members that see the new epoch join again, and find all of the above in place.
  header.epoch.fetch_add(1);
}

Member* Share::Admit(const ProcessId& process) {
  for (uint32_t slot = 0; slot < kMaxMembers; ++slot) {
    if (members_[slot] != nullptr) continue;
    for (uint32_t device = 0; device < device_count(); ++device) {
      GrantWord(slot, device) = 0;
      ledgers_[device].Admit(slot);
    }
    members_[slot] = std::make_unique<Member>();
    members_[slot]->slot = slot;
    members_[slot]->process = process;
    ++member_count_;
    return members_[slot].get();
  }
  return nullptr;
}

Member* Share::Restore(uint32_t slot, const ProcessId& process) {
  if (slot >= kMaxMembers || members_[slot] != nullptr) return nullptr;
  for (uint32_t device = 0; device < device_count(); ++device) {
    protocol::DeviceLimits& limits = limits_->devices[device];
    std::atomic<uint64_t>& word = GrantWord(slot, device);
    // Killed in the middle of a recall: the member may use what it had before it.
    if (limits.recall_slot_plus_one == slot + 1) {
      word = std::max(word.load(), limits.recall_previous_bytes.load());
      limits.recall_slot_plus_one = 0;
    }
    ledgers_[device].Admit(slot, word);
    PublishGranted(device);
  }
  members_[slot] = std::make_unique<Member>();
  members_[slot]->slot = slot;
  members_[slot]->process = process;
  ++member_count_;
  return members_[slot].get();
}

Member* Share::FindLiving(const ProcessId& process) const {
  for (const auto& member : members_) {
    if (member != nullptr && !member->departed && member->process == process) return member.get();
  }
  return nullptr;
}

std::vector<Member*> Share::Members() const {
  std::vector<Member*> members;
  members.reserve(member_count_);
  for (const auto& member : members_) {
    if (member != nullptr) members.push_back(member.get());
  }
  return members;
}

uint32_t Share::CountLiving() const {
  uint32_t count = 0;
  for (const auto& member : members_) count += member != nullptr && !member->departed;
  return count;
}

void Share::Depart(Member& member, int64_t now_ns) {
  PRORATA_CHECK(!member.departed);
  for (uint32_t device = 0; device < device_count(); ++device) {
    ReadDeviceTime(device);  // its last words
    ledgers_[device].Depart(member.slot);
  }
  member.departed = true;
  member.departed_ns = now_ns;
  member.usage.reset();
  member.watch.reset();
  if (const auto connection = std::move(member.connection)) connection->Close();
}

void Share::SetUsage(Member& member, UsageMapping usage) {
  for (uint32_t device = 0; device < device_count() && !member.usage; ++device) {
    Member::OnDevice& on = member.devices[device];
    on.counter_ns = usage.device(device).device_time_ns.load();
    // What a true counter can have reached: no more than a year.
    on.device_time_ns = std::min<uint64_t>(on.counter_ns, uint64_t{31'536'000} * 1'000'000'000);
    history_ns_[device] += on.device_time_ns;
  }
  member.usage = std::move(usage);
}

bool Share::Release(Member& member, uint32_t device) {
  Member::OnDevice& on = member.devices[device];
  if (!on.released) {
    on.released = true;
    // Before anybody else is given it: the dead member's row must not promise it any more.
    GrantWord(member.slot, device) = 0;
    ledgers_[device].Release(member.slot);
    PublishGranted(device);
  }
  for (uint32_t i = 0; i < device_count(); ++i) {
    if (!member.devices[i].released) return false;
  }
  for (uint32_t i = 0; i < device_count(); ++i) {
    retired_time_ns_[i] += member.devices[i].device_time_ns;
  }
  members_[member.slot].reset();
  --member_count_;
  return true;
}

bool Share::HasDeparted(uint32_t device) const {
  for (const auto& member : members_) {
    if (member != nullptr && member->departed && !member->devices[device].released) return true;
  }
  return false;
}

uint64_t Share::ReadDeviceTime(uint32_t device) {
  // A counter that jumps by more than a minute between two looks (a tenth of a second apart at
  // most) is nonsense; one that goes back is taken as standing still.
  constexpr uint64_t kMostNs = 60'000'000'000;
  uint64_t sum = retired_time_ns_[device];
  for (const auto& member : members_) {
    if (member == nullptr) continue;
    Member::OnDevice& on = member->devices[device];
    if (member->usage) {
      const uint64_t counter = member->usage->device(device).device_time_ns.load();
      if (counter > on.counter_ns) {
        on.device_time_ns += std::min(counter - on.counter_ns, kMostNs);
        on.counter_ns = counter;
      }
    }
    sum += on.device_time_ns;
  }
  return sum;
}

uint64_t Share::BacklogNs(uint32_t device) const {
  constexpr uint64_t kMostNs = 10'000'000'000;
  uint64_t sum = 0;
  for (const auto& member : members_) {
    if (member == nullptr || !member->usage) continue;
    sum += std::min(member->usage->device(device).backlog_ns.load(), kMostNs);
  }
  return std::min(sum, kMostNs);
}

bool Share::AnyWaiting(uint32_t device) const {
  for (const auto& member : members_) {
    if (member != nullptr && member->usage && member->connection != nullptr &&
        member->usage->device(device).waiting.load() > 0) {
      return true;
    }
  }
  return false;
}

void Share::End() {
  ended_ = true;
  limits_->header.ended = 1;
}

}  // namespace prorata::agent
