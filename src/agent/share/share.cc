#include "agent/share/share.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace prorata::agent {

policy::ComputeTerms ComputeTermsOf(const api::ShareTerms& terms) {
  return {terms.compute_request, terms.compute_limit, terms.weight, terms.priority,
          terms.yield_within_ns};
}

DeviceOfShare OnDevice(size_t device, const std::string& uuid, const api::ShareTerms& terms) {
  return {device, uuid, terms.memory_bytes, terms.memory_request_bytes, ComputeTermsOf(terms)};
}

Share::Share(uint64_t id, ShareConfig config, LimitsMapping limits)
    : id_(id), config_(std::move(config)), limits_(std::move(limits)) {
  for (uint32_t i = 0; i < device_count(); ++i) {
    ledgers_.emplace_back(config_.devices[i].memory_bytes, kMaxMembers);
    times_.emplace_back(&limits_->devices[i]);
    shown_ns_.push_back(0);
    audits_.emplace_back().of_device.Set(limits_->devices[i].overhead_bytes);
  }
}

bool Share::Admits(uid_t user) const {
  return user == 0 || user == ::geteuid() || user == config_.owner_uid ||
         config_.allow_users.Admits(user);
}

std::optional<uint32_t> Share::IndexOf(size_t device) const {
  for (uint32_t i = 0; i < device_count(); ++i) {
    if (config_.devices[i].device == device) return i;
  }
  return std::nullopt;
}

void Share::WriteLimits(std::span<const uint64_t> context_overhead_bytes, bool adopted) {
  shm::LimitsHeader& header = limits_->header;
  for (uint32_t i = 0; i < device_count(); ++i) {
    const DeviceOfShare& device = config_.devices[i];
    shm::DeviceLimits& out = limits_->devices[i];
    if (!adopted) std::strncpy(out.uuid, device.uuid.c_str(), sizeof out.uuid - 1);
    WriteTerms(i);
    out.context_overhead_bytes = context_overhead_bytes[i];
  }
  header.device_count = device_count();
  header.agent_pid_namespace = OwnPidNamespace();
  header.on_full_wait_ms = config_.on_full.wait_ms;
  // Last: members that see the new epoch join again, and find all of the above in place.
  header.epoch.fetch_add(1);
}

void Share::WriteTerms(uint32_t device) {
  const DeviceOfShare& from = config_.devices[device];
  shm::DeviceLimits& out = limits_->devices[device];
  out.memory_limit_bytes = from.memory_bytes;
  out.memory_beyond_request_bytes =
      from.memory_bytes - std::min(from.memory_bytes, from.memory_request_bytes);
  WriteComputeLimits(out, from.compute);
}

void Share::SetTerms(uint32_t device, const api::ShareTerms& terms) {
  DeviceOfShare& on = config_.devices[device];
  on.memory_bytes = terms.memory_bytes;
  on.memory_request_bytes = terms.memory_request_bytes;
  on.compute = ComputeTermsOf(terms);
  WriteTerms(device);
  ApplyLimit(device);
}

std::vector<api::ShareTerms> Share::Terms() const {
  std::vector<api::ShareTerms> terms;
  for (const DeviceOfShare& on : config_.devices) {
    terms.push_back({on.memory_bytes, on.compute.request, on.compute.limit, on.compute.weight,
                     on.memory_request_bytes, on.compute.priority, on.compute.yield_within_ns});
  }
  return terms;
}

void Share::SetOnFull(api::OnFull on_full) {
  config_.on_full = on_full;
  limits_->header.on_full_wait_ms = on_full.wait_ms;
}

Member* Share::Admit(const ProcessId& process, uint32_t inner_pid) {
  for (uint32_t slot = 0; slot < kMaxMembers; ++slot) {
    if (members_[slot] != nullptr) continue;
    for (uint32_t device = 0; device < device_count(); ++device) {
      GrantWord(slot, device) = 0;
      limits_->members[slot].overhead_bytes[device] = 0;
      ledgers_[device].Admit(slot);
      times_[device].Admit(slot);
    }
    members_[slot] = std::make_unique<Member>();
    members_[slot]->slot = slot;
    members_[slot]->process = process;
    limits_->members[slot].departed = 0;
    ++member_count_;
    may_be_unanswered = false;
    PublishProcess(*members_[slot], inner_pid);
    return members_[slot].get();
  }
  return nullptr;
}

std::optional<Share::Former> Share::FormerMember(uint32_t slot) const {
  const shm::MemberRow& row = limits_->members[slot];
  const auto pid = static_cast<pid_t>(row.host_pid.load());
  if (pid == 0) return std::nullopt;
  return Former{{pid, row.start_ticks.load()}, row.departed != 0};
}

Member* Share::Restore(uint32_t slot, const ProcessId& process) {
  // Of the agent before us is what stands there: the grants, and the overhead that it found.
  if (slot >= kMaxMembers || members_[slot] != nullptr) return nullptr;
  for (uint32_t device = 0; device < device_count(); ++device) {
    shm::DeviceLimits& limits = limits_->devices[device];
    std::atomic<uint64_t>& word = GrantWord(slot, device);
    // Killed in the middle of a recall: the member may use what it had before it.
    if (limits.recall_slot_plus_one == slot + 1) {
      word = std::max(word.load(), limits.recall_previous_bytes.load());
      limits.recall_slot_plus_one = 0;
    }
    ledgers_[device].Admit(slot, word);
    times_[device].Admit(slot);
    PublishGranted(device);
  }
  members_[slot] = std::make_unique<Member>();
  members_[slot]->slot = slot;
  members_[slot]->process = process;
  members_[slot]->reported_references = false;
  ++member_count_;
  Member& member = *members_[slot];
  for (uint32_t device = 0; device < device_count(); ++device) {
    member.devices[device].audit.Set(OverheadWord(member, device));
    ApplyLimit(device);
  }
  PublishProcess(member, 0);
  return &member;
}

Member* Share::FindLiving(const ProcessId& process) const {
  for (const auto& member : members_) {
    if (member != nullptr && !member->departed && member->process == process) return member.get();
  }
  return nullptr;
}

std::vector<Member*> Share::Members() const {
  std::vector<Member*> members;
  if (member_count_ == 0) return members;
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
  limits_->members[member.slot].departed = 1;
  for (uint32_t device = 0; device < device_count(); ++device) {
    times_[device].Depart(member.slot);
    DropSlack(member, device);
    ledgers_[device].Depart(member.slot);
  }
  member.departed = true;
  member.departed_ns = now_ns;
  member.usage.reset();
  PublishUsage(member);
  member.watch.reset();
  if (const auto connection = std::move(member.connection)) connection->Close();
}

void Share::SetUsage(Member& member, UsageMapping usage) {
  // The old mapping goes when nobody looks at it any more.
  const std::optional<UsageMapping> old = std::exchange(member.usage, std::move(usage));
  for (uint32_t device = 0; device < device_count(); ++device) {
    if (!old) {  // what it counted before was reported by the agent before us
      member.devices[device].refusals = member.usage->device(device).refusals;
      member.devices[device].ungoverned_functions =
          member.usage->device(device).ungoverned_functions;
    }
    times_[device].SetUsage(member.slot, &member.usage->device(device));
    // What its counter already shows is no news: it may be the work of hours under an agent before.
    shown_ns_[device] = times_[device].BusyNs();
    member.devices[device].shown_ns = times_[device].MemberTime(member.slot);
  }
  ++usage_count_;
  PublishUsage(member);
}

std::shared_ptr<Connection> Share::Connect(Member& member, std::shared_ptr<Connection> connection) {
  for (ShareTime& time : times_) time.SetConnected(member.slot, connection != nullptr);
  return std::exchange(member.connection, std::move(connection));
}

bool Share::Release(Member& member, uint32_t device) {
  Member::OnDevice& on = member.devices[device];
  if (!on.released) {
    on.released = true;
    // Before anybody else is given it: the dead member's row must not promise it any more.
    GrantWord(member.slot, device) = 0;
    ledgers_[device].Release(member.slot);
    SetOverhead(member, device, 0);
  }
  for (uint32_t i = 0; i < device_count(); ++i) {
    if (!member.devices[i].released) return false;
  }
  for (ShareTime& time : times_) time.Forget(member.slot);
  PublishGone(member.slot);
  members_[member.slot].reset();
  --member_count_;
  return true;
}

bool Share::SharesMemoryWith(const Share& other) const {
  const auto& names = config_.share_memory_with;
  return std::find(names.begin(), names.end(), other.config_.name) != names.end();
}

bool Share::HasDeparted(uint32_t device) const {
  for (const auto& member : members_) {
    if (member != nullptr && member->departed && !member->devices[device].released) return true;
  }
  return false;
}

bool Share::HasAbsent() const {
  return std::ranges::any_of(members_, [](const auto& member) {
    return member != nullptr && !member->departed && !member->usage;
  });
}

void Share::End() {
  ended_ = true;
  limits_->header.ended = 1;
}

void Share::KeepAgain(ShareLife life) {
  config_.life = std::move(life);
  ended_ = false;
  kept_ = true;
  limits_->header.ended = 0;
}

}  // namespace prorata::agent
