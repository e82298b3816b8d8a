#include "agent/node/descriptions.h"

#include "policy/compute/throttle_reasons.h"

namespace prorata::agent {

api::ShareStatus Descriptions::OfShare(Share& share) const {
  api::ShareStatus status;
  const ShareConfig& config = share.config();
  status.name = config.name;
  status.directory = config.folder;
  status.owner_uid = config.owner_uid;
  status.kept_by = config.life.Describe();
  status.created_unix_s = config.created_unix_s;
  status.allow_users = config.allow_users;
  status.share_memory_with = config.share_memory_with;
  status.on_full = config.on_full;
  status.gang = config.gang;
  status.runs_as_gang = leases_.RunsAsGang(share);
  status.ended = share.ended();
  if (share.container) {
    const ContainerGroup& group = share.container->group;
    status.container = {{group.engine, group.id, share.container->name}};
  }
  status.any_container = config.any_container;
  status.exclusive = config.exclusive;
  for (uint32_t i = 0; i < share.device_count(); ++i) status.devices.push_back(OnDevice(share, i));
  for (const Outside::Found& found : containers_.OutsideOf(share)) {
    const OutsideProcess& its = found.process;
    status.outside.push_back({its.process.pid, its.command, static_cast<uint32_t>(found.device),
                              found.used_bytes, its.libraries});
  }
  status.members = OfMembers(share);
  return status;
}

api::ShareDevice Descriptions::OnDevice(Share& share, uint32_t i) const {
  const DeviceOfShare& on = share.config().devices[i];
  api::ShareDevice device;
  device.uuid = on.uuid;
  device.index = static_cast<uint32_t>(on.device);
  device.memory_limit_bytes = on.memory_bytes;
  device.memory_request_bytes = on.memory_request_bytes;
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
  time_audit_.Describe(share, i, device);
  memory_.Describe(share, i, device);
  device.throttle_reasons = policy::ThrottleReasons({
      .programs = share.CountLiving(),
      .stopped = leases_.SeemsStopped(share, i),
      .busy = device.achieved,
      .limit = device.compute_limit.value(),
      .waiting = device.waiting_part,
      .at_limit = device.at_limit_part,
      .undrained = device.undrained_part,
      .persistent_kernels = device.persistent_kernels,
      .backlog_ns = static_cast<int64_t>(device.backlog_ns),
      .memory_waits = device.memory_waits,
      .over_memory_limit = device.used_bytes > device.memory_limit_bytes,
  });
  return device;
}

std::vector<api::MemberStatus> Descriptions::OfMembers(const Share& share) const {
  std::vector<api::MemberStatus> members;
  for (const Member* member : share.Members()) {
    if (member->departed) continue;
    api::MemberStatus& out = members.emplace_back();
    out.pid = member->process.pid;
    out.command = member->command;
    for (uint32_t i = 0; i < share.device_count(); ++i) {
      out.used_bytes += share.UsedBytes(*member, i);
      out.device_time_ns += share.time(i).MemberTime(member->slot);
    }
  }
  return members;
}

std::vector<api::ShareStatus> Descriptions::OfShares() const {
  std::vector<api::ShareStatus> all;
  for (Share* share : shares_.All()) all.push_back(OfShare(*share));
  return all;
}

std::vector<api::DeviceStatus> Descriptions::OfDevices() const {
  std::vector<api::DeviceStatus> all;
  for (size_t number = 0; number < devices_.count(); ++number) {
    api::DeviceStatus& status = all.emplace_back();
    status.index = static_cast<uint32_t>(number);
    status.uuid = devices_[number].uuid;
    status.name = devices_[number].name;
    status.total_bytes = devices_[number].total_bytes;
    status.busy = leases_.Busy(number);
    status.others = time_audit_.Others(number);
    status.overcommit = terms_.overcommit(number);
    status.elastic_ceiling = leases_.elastic_ceiling(number);
    status.borrowed_bytes = memory_.Borrowed(number);
    status.links = devices_[number].links;
    const driver::DeviceFacts& facts = devices_[number].facts;
    status.compute_capability = facts.compute_capability;
    status.driver_version = facts.driver_version;
    status.pci_address = facts.pci_address;
    status.numa_node = facts.place.numa_node;
    status.pcie_root = facts.place.root;
    status.used_bytes = devices_.LastUsedBytes(number);
    status.driver_unresponsive_ms = devices_.UnansweredNs() / kNsPerMs;
    AddShares(number, status);
  }
  return all;
}

void Descriptions::AddShares(size_t device, api::DeviceStatus& status) const {
  uint64_t ours = 0;
  for (const auto& [share, index] : shares_.On(device)) {
    const DeviceOfShare& on = share->config().devices[index];
    status.promised_bytes += on.memory_request_bytes;
    status.limit_bytes += on.memory_bytes;
    const bool over = share->ended() && share->CountLiving() == 0;
    if (!over) status.promised_request.ppm += on.compute.request.ppm;
    ++status.shares;
    if (share->config().exclusive) status.exclusive = share->config().name;
    ours += share->UsedBytes(index) + share->DepartedBytes(index);
  }
  status.foreign_bytes = status.used_bytes > ours ? status.used_bytes - ours : 0;
  // What was last read is from before the driver hung; the shares' own accounts go on.
  if (status.driver_unresponsive_ms > 0) status.used_bytes = std::max(status.used_bytes, ours);
}

}  // namespace prorata::agent
