// An agent takes over the shares of the one before it, which may have been killed at any moment.

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "agent/node.h"
#include "agent/share_events.h"
#include "base/clock.h"

namespace prorata::agent {

Status Node::Adopt() {
  auto state = LoadState(runtime_dir_ + "/state.json");
  if (!state) return std::unexpected(state.error());
  for (SavedShare& saved : state->shares) {
    const std::string name = saved.config.name;
    if (auto ok = AdoptShare(std::move(saved)); !ok) {
      spdlog::error("share '{}' is lost: {}", name, ok.error().message);
    }
  }
  return Save();
}

Status Node::AdoptShare(SavedShare saved) {
  saved.config.folder = runtime_dir_ + "/shares/" + protocol::ShareFolder(saved.config.name);
  for (DeviceOfShare& device : saved.config.devices) {
    const auto found = devices_.Find(device.uuid);
    if (!found) return Fail("unknown_gpu", "its GPU " + device.uuid + " is not there any more");
    device.device = *found;
  }
  auto limits = LimitsMapping::Adopt(saved.config.folder + "/limits", saved.config.name);
  if (!limits) return std::unexpected(limits.error());
  const uint64_t id = next_id_++;
  auto made = std::make_unique<Share>(id, std::move(saved.config), std::move(*limits));
  Share& share = *made;

  // First everybody, then the dead among them: a grant that nobody holds is not to be seen between.
  std::array<bool, kMaxMembers> held{};
  std::vector<Member*> members;
  for (const SavedMember& member : saved.members) {
    Member* restored = share.Restore(member.slot, member.process);
    if (restored == nullptr) continue;
    held[member.slot] = true;
    restored->command = CommandOf(member.process.pid);
    members.push_back(restored);
    const auto now = IdentifyProcess(member.process.pid);
    if (member.departed || !now || *now != member.process) {
      share.Depart(*restored, RealClock().NowNs());
    }
  }
  // A row of nobody: its member was never told of it.
  for (uint32_t slot = 0; slot < kMaxMembers; ++slot) {
    for (uint32_t i = 0; !held[slot] && i < share.device_count(); ++i) {
      share.limits()->grants[slot].bytes[i] = 0;
    }
  }
  if (saved.ended) share.End();
  shares_[id] = std::move(made);
  share.WriteLimits(ContextOverheads(share), true);
  if (auto ok = Begin(share); !ok) {
    leases_.Remove(share);
    heartbeat_.Remove(share.limits());
    shares_.erase(id);
    return ok;
  }
  if (saved.ended) share.owner_dead = true;
  for (Member* member : members) {
    if (!member->departed) WatchMember(share, *member);
  }
  spdlog::info("share '{}' taken over, with {} members", share.config().name, members.size());
  protocol::Event adopted = EventOf(protocol::EventKind::kShareAdopted, share);
  adopted.detail = std::to_string(members.size()) + " process(es)";
  events_.Add(std::move(adopted));
  ReapSoon();
  boost::asio::post(loop_, [this, id] { TakeAwayIfDone(id); });
  return {};
}

}  // namespace prorata::agent
