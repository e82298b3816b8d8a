// What the agent says about shares and devices, and what it learns from NVML about contexts.

#include <spdlog/spdlog.h>

#include "agent/node.h"
#include "base/bytes.h"
#include "policy/slowness.h"

namespace prorata::agent {

protocol::ShareStatus Node::Describe(Share& share) {
  protocol::ShareStatus status;
  const ShareConfig& config = share.config();
  status.name = config.name;
  status.directory = config.folder;
  status.owner_uid = config.owner_uid;
  status.owner_pid = config.owner.pid;
  status.created_unix_s = config.created_unix_s;
  status.on_full = config.on_full;
  status.gang = config.gang;
  status.runs_as_gang = leases_.RunsAsGang(share);
  status.guaranteed = config.guaranteed;
  status.ended = share.ended();
  status.resource_config = config.resource_config;
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    const DeviceOfShare& on = config.devices[i];
    protocol::ShareDevice& device = status.devices.emplace_back();
    device.uuid = on.uuid;
    device.index = static_cast<uint32_t>(on.device);
    device.memory_limit_bytes = on.memory_bytes;
    device.used_bytes = share.UsedBytes(i);
    device.overhead_bytes = share.OverheadBytes(i);
    device.granted_bytes = share.ledger(i).granted_bytes() + share.AuditedBytes(i);
    device.figures_missing = share.audit(i).figures_missing;
    device.bypass_suspected = share.audit(i).bypass.on();
    device.refusals = share.refusals(i);
    for (const Member* member : share.Members()) {
      device.persistent_kernels += member->devices[i].persistent_ns != 0;
    }
    device.compute_request = on.compute.request;
    device.compute_limit = on.compute.limit;
    device.weight = on.compute.weight;
    device.priority = on.compute.priority;
    device.yield_within_ns = on.compute.yield_within_ns;
    leases_.Describe(share, i, device);
    memory_.Describe(share, i, device);
    device.why_slow = policy::WhySlow({
        .programs = share.CountLiving(),
        .busy = device.busy,
        .limit = device.compute_limit.value(),
        .waiting = device.waiting_part,
        .at_limit = device.at_limit_part,
        .undrained = device.undrained_part,
        .persistent_kernels = device.persistent_kernels,
        .backlog_ns = static_cast<int64_t>(device.backlog_ns),
        .memory_waits = device.memory_waits,
        .over_memory_limit = device.used_bytes > device.memory_limit_bytes,
    });
  }
  for (const Member* member : share.Members()) {
    if (member->departed) continue;
    protocol::MemberStatus& out = status.members.emplace_back();
    out.pid = member->process.pid;
    out.command = member->command;
    for (uint32_t i = 0; i < share.device_count(); ++i) {
      out.used_bytes += share.UsedBytes(*member, i);
      out.device_time_ns += share.time(i).MemberTime(member->slot);
    }
  }
  return status;
}

std::vector<protocol::ShareStatus> Node::DescribeShares() {
  std::vector<protocol::ShareStatus> all;
  for (const auto& [id, share] : shares_) all.push_back(Describe(*share));
  return all;
}

std::vector<protocol::DeviceStatus> Node::DescribeDevices() {
  std::vector<protocol::DeviceStatus> all;
  for (size_t number = 0; number < devices_.count(); ++number) {
    protocol::DeviceStatus& status = all.emplace_back();
    status.index = static_cast<uint32_t>(number);
    status.uuid = devices_[number].uuid;
    status.name = devices_[number].name;
    status.total_bytes = devices_[number].total_bytes;
    status.busy = leases_.Busy(number);
    status.overcommit = memory_.ratio(number);
    status.elastic_ceiling = leases_.elastic_ceiling(number);
    status.set_aside_bytes = memory_.SetAside(number);
    status.links = devices_[number].links;
    if (const auto memory = devices_.Memory(number)) status.used_bytes = memory->used_bytes;
    uint64_t ours = 0;
    for (const auto& [id, share] : shares_) {
      const auto index = share->IndexOf(number);
      if (!index) continue;
      const DeviceOfShare& on = share->config().devices[*index];
      status.promised_bytes += on.memory_bytes;
      status.promised_request.ppm += on.compute.request.ppm;
      ++status.shares;
      ours += share->UsedBytes(*index) + share->DepartedBytes(*index);
    }
    status.foreign_bytes = status.used_bytes > ours ? status.used_bytes - ours : 0;
  }
  return all;
}

// What a member took that it could not name. Its charges must not move while NVML is asked; those
// of memory that is not taken yet make the figure too small, never too large.
protocol::ContextSettled Node::SettleOther(Share& share, Member& member,
                                           const protocol::ContextMade& made) {
  constexpr int kAttempts = 3;
  protocol::ContextSettled settled{made.id, made.device, protocol::kNotMeasured, 0};
  if (!member.usage) return settled;
  const protocol::DeviceUsage& usage = member.usage->device(made.device);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t used = usage.used_bytes.load();
    const auto processes = devices_.Processes(share.config().devices[made.device].device);
    if (!processes) return settled;
    const auto found = processes->find(member.process.pid);
    if (found == processes->end() || !found->second) return settled;
    if (usage.used_bytes.load() != used) continue;
    if (made.reserved_bytes > used) return settled;
    const uint64_t before = used - made.reserved_bytes;
    // What the audit found of this member is in that figure too, and is charged with it from now
    // on.
    member.devices[made.device].audit.Set(0);
    share.SetOverhead(member, made.device, 0);
    settled.overhead_bytes = *found->second > before ? *found->second - before : 0;
    const bool covered =
        settled.overhead_bytes <= made.reserved_bytes ||
        memory_.Grant(share, member, made.device, before + settled.overhead_bytes) ==
            protocol::GrantResult::kGranted;
    settled.measured = covered ? protocol::kTook : protocol::kTookTooMuch;
    return settled;
  }
  return settled;
}

protocol::ContextSettled Node::SettleContext(Share& share, Member& member,
                                             const protocol::ContextMade& made) {
  if (made.what != protocol::kMadeContext) return SettleOther(share, member, made);
  const uint32_t index = made.device;
  const size_t number = share.config().devices[index].device;
  protocol::ContextSettled settled{made.id, index, 0, 0};
  if (!member.usage) return settled;
  // NVML's figure for a process is its contexts' alone only while nothing else of it is on the
  // device, that is, while `used` is all overhead: a charge comes before the driver's allocation
  // and goes after its free. Beside other memory the two are never read at one moment: threads that
  // allocate meanwhile would make the overhead too small (and take the share over its limit) or too
  // large for ever. Then the reservation stays, which is what earlier contexts took.
  const protocol::DeviceUsage& usage = member.usage->device(index);
  const uint64_t charged = usage.overhead_bytes.load();
  if (usage.used_bytes.load() != charged || made.reserved_bytes > charged) return settled;
  const auto processes = devices_.Processes(number);
  if (!processes) return settled;
  const auto found = processes->find(member.process.pid);
  if (found == processes->end() || !found->second) return settled;
  if (usage.used_bytes.load() != charged || usage.overhead_bytes.load() != charged) return settled;
  uint64_t overhead = *found->second;

  // What the audit found of this member is in that figure too, and is charged with it from now on.
  const uint64_t before =
      charged - made.reserved_bytes + member.devices[index].audit.overhead_bytes();
  member.devices[index].audit.Set(0);
  share.SetOverhead(member, index, 0);
  if (overhead > before) {
    devices_.LearnContextOverhead(number, overhead - before);
    for (const auto& [id, other] : shares_) {
      const auto other_index = other->IndexOf(number);
      if (!other_index) continue;
      other->limits()->devices[*other_index].context_overhead_bytes =
          devices_.ContextOverhead(number);
    }
  }
  if (overhead > charged &&
      memory_.Grant(share, member, index, overhead) != protocol::GrantResult::kGranted) {
    const uint64_t covered = share.ledger(index).grant_bytes(member.slot);
    spdlog::warn(
        "share '{}': a context of process {} took {}, of which the share can cover only {}",
        share.config().name, member.process.pid, FormatBytes(overhead), FormatBytes(covered));
    overhead = std::max(charged, std::min(covered, overhead));
  }
  settled.measured = protocol::kMeasured;
  settled.overhead_bytes = overhead;
  return settled;
}

}  // namespace prorata::agent
