// A share is made: for a process that asks for it, or for a line of a file.

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "agent/node.h"
#include "agent/recover_state.h"
#include "agent/share_events.h"
#include "base/bytes.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

// A share whose programs are all dead is there until the device shows their memory gone: some
// milliseconds, or as long as the driver hangs. Who asks for its name waits for that, and so long.
constexpr int64_t kNameNs = kNsPerS;
constexpr auto kLookAgainAfter = std::chrono::milliseconds(2);

}  // namespace

void Node::Create(const protocol::ShareSpec& spec, const Peer& owner, OnShare then) {
  ++creating_;  // the agent does not end for want of shares meanwhile
  const auto answer = [this, then = std::move(then)](Result<Share*> share) {
    --creating_;
    const bool failed = !share;
    then(std::move(share));
    if (failed && on_share_gone) on_share_gone();
  };
  memory_.Sample();
  const int64_t until_ns = RealClock().NowNs() + kNameNs;
  const auto name = spec.name;
  AwaitName(name, until_ns, [this, spec, owner, then = answer] {
    auto made = CreateNow(spec, owner);
    if (!made) return then(std::unexpected(made.error()));
    // Whoever has the answer relies on the share, so the next agent must know of it by then.
    Save([this, id = (*made)->id(), then](const Status& saved) {
      Share* share = Find(id);
      if (share == nullptr) return then(Fail("share_ended", "the share has ended already"));
      if (saved && share->config().life.token() != nullptr) return Publish(*share, then);
      if (saved) return then(share);
      if (share->config().life.file() == nullptr) Abandon(*share);
      then(std::unexpected(saved.error()));
    });
  });
}

void Node::Publish(Share& share, OnShare then) {
  specifications_.Write(share.config(), [this, id = share.id(), name = share.config().name,
                                         then](const Status& written) {
    Share* its = Find(id);
    if (its == nullptr || its->ended()) {
      // Removed meanwhile, and no other has its name.
      if (FindByName(name) == nullptr || FindByName(name) == its) specifications_.Remove(name);
      return then(Fail("share_ended", "the share has ended already"));
    }
    if (written) return then(its);
    Abandon(*its);
    then(std::unexpected(written.error()));
  });
}

void Node::AwaitName(const std::optional<std::string>& name, int64_t until_ns,
                     std::function<void()> then) {
  RefreshFigures([this, name, until_ns, then = std::move(then)] {
    Share* named = name ? FindByName(*name) : nullptr;
    if (named != nullptr && named->keeper_watch != nullptr &&
        HasEnded(named->keeper_watch->pidfd())) {
      KeeperEnded(*named);
      named = FindByName(*name);
    }
    const bool over = named != nullptr && !named->kept() && named->CountLiving() == 0;
    if (!over || RealClock().NowNs() >= until_ns) return then();
    ReapSoon();
    auto timer = std::make_shared<boost::asio::steady_timer>(loop_, kLookAgainAfter);
    timer->async_wait(
        [this, name, until_ns, then, timer](const boost::system::error_code& stopped) {
          if (!stopped) AwaitName(name, until_ns, then);
        });
  });
}

void Node::Abandon(Share& share) {
  share.End();
  share.LetGo();
  TakeAwayIfDone(share.id());
}

Result<Share*> Node::CreateNow(const protocol::ShareSpec& spec, const Peer& owner) {
  Share* named = spec.name ? FindByName(*spec.name) : nullptr;
  if (named != nullptr && spec.token) {
    // Asked for again, for its answer was lost.
    const std::string* token = named->config().life.token();
    if (token != nullptr && *token == *spec.token && !named->ended()) return named;
  } else if (named != nullptr && named->config().life.OutlivesPrograms()) {
    return Join(*named, spec);
  }
  memory_.Gather();
  if (spec.token) {
    if (auto ok = specifications_.MayName(*spec.name); !ok) return std::unexpected(ok.error());
  }
  std::vector<std::string> names;
  for (const auto& [id, share] : shares_) names.push_back(share->config().name);
  const std::vector<protocol::DeviceStatus> devices = DescribeDevices();
  auto valid = protocol::ValidateShare(spec, devices, names);
  if (!valid) return std::unexpected(valid.error());

  ShareConfig config;
  config.name = spec.name ? *spec.name : FreeName();
  config.owner_uid = owner.uid;
  config.life = spec.token ? ShareLife::OfToken(*spec.token) : ShareLife::OfProcess(owner.process);
  config.any_container = spec.any_container;
  config.created_unix_s = ::time(nullptr);
  config.on_full = spec.on_full;
  config.gang = spec.gang;
  config.share_memory_with = spec.share_memory_with;
  config.allow_users = spec.allow_users;
  for (const auto& [device, terms] : valid->devices) {
    config.devices.push_back(OnDevice(device, devices[device].uuid, terms));
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
  if (share.config().life.token() != nullptr) {
    // Without it a share is recovered less well, should the state be damaged: no reason to fail.
    const UniqueFd mark(::open(HeldMark(share.config().folder).c_str(),
                               O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444));
  }
  shares_[id] = std::move(made);
  Status ok = memory_.Add(share);
  if (ok) ok = Begin(share);
  if (!ok) {
    Abandon(share);
    return std::unexpected(ok.error());
  }
  const std::string whose = protocol::FormatKeptBy(share.config().life.Describe());
  for (const DeviceOfShare& on : share.config().devices) {
    spdlog::info("share '{}' made: {} of GPU {}, {} set aside, request {}, limit {}, for {}",
                 share.config().name, FormatBytes(on.memory_bytes), on.device,
                 FormatBytes(on.memory_request_bytes), FormatFraction(on.compute.request),
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
