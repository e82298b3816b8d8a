#include "agent/node/share_containers.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "agent/share/share_events.h"

namespace prorata::agent {

ShareContainers::ShareContainers(boost::asio::io_context& loop, Worker& disk, const Shares& shares,
                                 Devices& devices, Members& members, Events& events,
                                 StateWriter& state)
    : containers_(disk),
      shares_(shares),
      members_(members),
      events_(events),
      state_(state),
      outside_(loop, devices) {
  outside_.shares = [this] { return Places(); };
  outside_.is_member = [this](pid_t pid) { return IsMember(pid); };
  outside_.on_found = [this](uint64_t id, const Outside::Found& found) { OnFound(id, found); };
}

// Who was handed the device by root, or by the share's owner, may use it as any user that the
// container has: nothing but the container's own mounts leads there. What a user without rights
// can make himself (a mount namespace) is not enough; it takes an engine's cgroup.
bool ShareContainers::MayUse(const Share& share, const Peer& peer) {
  if (share.config().exclusive) return false;  // it has no members
  if (share.Admits(peer.uid)) return true;
  // One that is a member already stays one: it may have dropped its rights, and its agent be new.
  if (share.FindLiving(peer.process) != nullptr) return true;
  if (share.config().life.token() == nullptr) return false;
  const auto group = Containers::Of(peer.process);
  if (!group) return false;
  return (Containers::IsMadeBy(*group, 0) ||
          Containers::IsMadeBy(*group, share.config().owner_uid)) &&
         Containers::FindsShare(peer.process, share.config().folder);
}

bool ShareContainers::MayJoinFrom(Share& share, const Peer& peer) {
  const auto group = containers_.OfCgroup(peer.process);
  if (!group) return true;
  if (share.container && share.container->group != *group) {
    members_.SweepDead(share);
    ForgetIfEmpty(share);
  }
  const bool any = share.config().any_container;
  if (share.container) return any || share.container->group == *group;
  // The group is this process's, unless its number has changed hands.
  const auto now = IdentifyProcess(peer.process.pid);
  if (!now || *now != peer.process) return true;  // it is not watched as a member (Members::Watch)
  SetContainer(share, {*group, group->id.substr(0, 12)}, peer.process);
  return true;
}

void ShareContainers::SetContainer(Share& share, Container container, const ProcessId& process) {
  share.container = std::move(container);
  state_.SaveSoon();
  const auto reported = [this, id = share.id(),
                         group = share.container->group](const std::string& name) {
    Share* its = shares_.Find(id);
    if (its == nullptr || !its->container || its->container->group != group) return;
    if (!name.empty()) its->container->name = name;
    spdlog::info("share '{}' is that of container {} ({} {})", its->config().name,
                 its->container->name, group.engine, group.id.substr(0, 12));
    events_.Add(ContainerEvent(api::EventKind::kContainerJoined, *its));
    state_.SaveSoon();
  };
  containers_.FindName(share.container->group, process, reported);
}

void ShareContainers::ForgetIfEmpty(Share& share) {
  if (!share.container) return;
  const auto empty = Containers::IsEmpty(share.container->group);
  if (!empty.value_or(share.CountLiving() == 0)) return;
  events_.Add(ContainerEvent(api::EventKind::kContainerGone, share));
  spdlog::info("container {} has ended: share '{}' waits for another", share.container->name,
               share.config().name);
  share.container.reset();
  state_.SaveSoon();
}

void ShareContainers::Poll() {
  for (Share* share : shares_.All()) {
    if (share->CountLiving() == 0) ForgetIfEmpty(*share);
  }
  outside_.Poll();
}

std::vector<Outside::SharePlace> ShareContainers::Places() const {
  std::vector<Outside::SharePlace> places;
  for (const Share* share : shares_.All()) {
    const ShareConfig& config = share->config();
    // Nobody is a member of a share of whole GPUs: it has the plain driver.
    if (config.life.token() == nullptr || config.exclusive) continue;
    Outside::SharePlace& place = places.emplace_back();
    place.id = share->id();
    place.folder = config.folder;
    if (share->container && !config.any_container) place.container = share->container->group;
    for (const DeviceOfShare& on : config.devices) place.devices.push_back(on.device);
  }
  return places;
}

bool ShareContainers::IsMember(pid_t pid) const {
  for (const Share* share : shares_.All()) {
    for (const Member* member : share->Members()) {
      if (member->process.pid == pid) return true;
    }
  }
  return false;
}

void ShareContainers::OnFound(uint64_t share_id, const Outside::Found& found) {
  const Share* share = shares_.Find(share_id);
  if (share == nullptr) return;
  auto event =
      EventOf(api::EventKind::kOutsideProcess, *share, nullptr, share->IndexOf(found.device));
  event.pid = found.process.process.pid;
  event.command = found.process.command;
  event.limit_bytes = {};
  event.used_bytes = found.used_bytes;
  event.detail = found.process.libraries.empty() ? "it has no libcuda mapped that is seen"
                                                 : "it has " + found.process.libraries + " mapped";
  events_.Add(std::move(event));
}

}  // namespace prorata::agent
