// A share is made: for a process that asks for it, or for a line of a file.

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <ctime>

#include "agent/node.h"
#include "agent/share_events.h"
#include "base/bytes.h"

namespace prorata::agent {

void Node::Create(const protocol::ShareSpec& spec, const Peer& owner, OnShare then) {
  ++creating_;  // the agent does not end for want of shares meanwhile
  const auto answer = [this, then = std::move(then)](Result<Share*> share) {
    --creating_;
    const bool failed = !share;
    then(std::move(share));
    if (failed && on_share_gone) on_share_gone();
  };
  RefreshFigures([this, spec, owner, then = answer] {
    auto made = CreateNow(spec, owner);
    if (!made) return then(std::unexpected(made.error()));
    // Whoever has the answer relies on the share, so the next agent must know of it by then.
    Save([this, id = (*made)->id(), then](const Status& saved) {
      Share* share = Find(id);
      if (share == nullptr) return then(Fail("share_ended", "the share has ended already"));
      if (saved) return then(share);
      if (share->config().resource_config.empty()) Abandon(*share);
      then(std::unexpected(saved.error()));
    });
  });
}

void Node::Abandon(Share& share) {
  share.End();
  share.owner_dead = true;
  TakeAwayIfDone(share.id());
}

Result<Share*> Node::CreateNow(const protocol::ShareSpec& spec, const Peer& owner) {
  Share* named = spec.name ? FindByName(*spec.name) : nullptr;
  if (named != nullptr && !named->config().resource_config.empty()) return Join(*named, spec);
  std::vector<std::string> names;
  for (const auto& [id, share] : shares_) names.push_back(share->config().name);
  const std::vector<protocol::DeviceStatus> devices = DescribeDevices();
  auto valid = protocol::ValidateShare(spec, devices, names);
  if (!valid) return std::unexpected(valid.error());

  ShareConfig config;
  config.name = spec.name ? *spec.name : FreeName();
  config.owner_uid = owner.uid;
  config.owner = owner.process;
  config.created_unix_s = ::time(nullptr);
  config.on_full = spec.on_full;
  config.gang = spec.gang;
  config.guaranteed = spec.guaranteed;
  config.share_memory_with = spec.share_memory_with;
  config.allow_users = spec.allow_users;
  for (const auto& [device, terms] : valid->devices) {
    config.devices.push_back(
        {device, devices[device].uuid, terms.memory_bytes, ComputeTermsOf(terms)});
  }
  return Make(std::move(config));
}

Result<Share*> Node::Make(ShareConfig config) {
  config.folder = runtime_dir_ + "/shares/" + protocol::ShareFolder(config.name);
  if (::mkdir(config.folder.c_str(), 0755) != 0 && errno != EEXIST) {
    return FailErrno("share_folder", "cannot make the share's folder '" + config.folder + "'",
                     errno);
  }
  ::chmod(config.folder.c_str(), 0755);  // whatever the umask: containers run as anybody
  auto limits = LimitsMapping::Create(config.folder + "/limits", config.name);
  if (!limits) return std::unexpected(limits.error());
  const uint64_t id = next_id_++;
  auto made = std::make_unique<Share>(id, std::move(config), std::move(*limits));
  Share& share = *made;
  share.WriteLimits(ContextOverheads(share), false);
  shares_[id] = std::move(made);
  Status ok = memory_.Add(share);
  if (ok) ok = Begin(share);
  if (!ok) {
    Abandon(share);
    return std::unexpected(ok.error());
  }
  const std::string whose = share.config().resource_config.empty()
                                ? "process " + std::to_string(share.config().owner.pid)
                                : "'" + share.config().resource_config + "'";
  for (const DeviceOfShare& on : share.config().devices) {
    spdlog::info("share '{}' made: {} of GPU {}, request {}, limit {}, for {}", share.config().name,
                 FormatBytes(on.memory_bytes), on.device, FormatFraction(on.compute.request),
                 FormatFraction(on.compute.limit), whose);
  }
  events_.Add(CreatedEvent(share));
  for (const DeviceOfShare& on : share.config().devices) LearnIdle(on.device);
  return &share;
}

std::string Node::FreeName() const {
  for (int number = 1;; ++number) {
    const std::string name = "share-" + std::to_string(number);
    bool taken = false;
    for (const auto& [id, share] : shares_) taken |= share->config().name == name;
    if (!taken) return name;
  }
}

}  // namespace prorata::agent
