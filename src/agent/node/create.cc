// A share is made: for a process that asks for it, or for a line of a file.

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "agent/node/node.h"
#include "agent/node/recover_state.h"
#include "agent/share/share_events.h"
#include "agent/share/validate_share.h"
#include "base/bytes.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

// A share whose programs are all dead is there until the device shows their memory gone: some
// milliseconds, or as long as the driver hangs. Who asks for its name waits for that, and so long.
constexpr int64_t kNameNs = kNsPerS;
constexpr auto kLookAgainAfter = std::chrono::milliseconds(2);

}  // namespace

uint64_t Node::Create(const api::ShareSpec& spec, const Peer& owner, OnShare then,
                      const std::optional<api::StartWait>& wait, Start::OnPlace on_place) {
  ++creating_;  // the agent does not end for want of shares meanwhile
  const uint64_t ticket = next_ticket_++;
  Start& start = starts_[ticket];
  start.spec = spec;
  start.owner = owner;
  start.wait = wait;
  start.then = std::move(then);
  start.on_place = std::move(on_place);
  const int64_t now_ns = RealClock().NowNs();
  if (wait && wait->within_ms && *wait->within_ms < uint64_t{1} << 42) {
    start.until_ns = now_ns + static_cast<int64_t>(*wait->within_ms) * kNsPerMs;
  }
  memory_.Sample();
  // Never answered from here: the caller does not know the ticket yet.
  boost::asio::post(loop_, [this, ticket, name = spec.name, until_ns = now_ns + kNameNs] {
    AwaitName(name, until_ns, [this, ticket] { EnterLine(ticket); });
  });
  return ticket;
}

void Node::Write(uint64_t ticket, Share& made) {
  starts_.at(ticket).stage = Start::Stage::kMaking;
  LeaveLine(ticket);
  const auto then = [this, ticket](Result<Share*> share) {
    if (share && starts_.at(ticket).given_up) {
      Abandon(**share);
      share = Fail("given_up", "its client ended");
    }
    Finish(ticket, std::move(share));
  };
  // Whoever has the answer relies on the share, so the next agent must know of it by then.
  Save([this, id = made.id(), then](const Status& saved) {
    Share* share = Find(id);
    if (share == nullptr) return then(Fail("share_ended", "the share has ended already"));
    if (saved && share->config().life.token() != nullptr) return Publish(*share, then);
    if (saved) return then(share);
    Abandon(*share);
    then(std::unexpected(saved.error()));
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
    if (named != nullptr && named->owner_watch != nullptr &&
        HasEnded(named->owner_watch->pidfd())) {
      OwnerEnded(*named);
      named = FindByName(*name);
    }
    const bool over = named != nullptr && !named->kept() && named->CountLiving() == 0;
    if (!over || RealClock().NowNs() >= until_ns) return then();
    reaper_.ReapSoon();
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

std::optional<Result<Share*>> Node::FindMade(const api::ShareSpec& spec) {
  Share* named = spec.name ? FindByName(*spec.name) : nullptr;
  if (named == nullptr) return std::nullopt;
  if (spec.token) {
    // Asked for again, for its answer was lost.
    const std::string* token = named->config().life.token();
    if (token != nullptr && *token == *spec.token && !named->ended()) return named;
    return std::nullopt;
  }
  if (named->config().life.OutlivesPrograms()) return Join(*named, spec);
  return std::nullopt;
}

Result<Share*> Node::CreateNow(const api::ShareSpec& spec, const Peer& owner,
                               const std::vector<api::DeviceStatus>& devices) {
  auto valid = ValidateShare(spec, devices, shares_.Names());
  if (!valid) return std::unexpected(valid.error());

  ShareConfig config;
  config.name = spec.name ? *spec.name : shares_.FreeName();
  config.owner_uid = owner.uid;
  config.life = spec.token ? ShareLife::OfToken(*spec.token) : ShareLife::OfProcess(owner.process);
  config.any_container = spec.any_container;
  config.exclusive = spec.exclusive;
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
  config.folder = runtime_dir_ + "/shares/" + api::ShareFolder(config.name);
  if (::mkdir(config.folder.c_str(), 0755) != 0 && errno != EEXIST) {
    return FailErrno("share_folder", "cannot make the share's folder '" + config.folder + "'",
                     errno);
  }
  ::chmod(config.folder.c_str(), 0755);  // whatever the umask: containers run as anybody
  auto limits = LimitsMapping::Create(config.folder + "/limits", config.name);
  if (!limits) return std::unexpected(limits.error());
  Share& share = shares_.Add(std::move(config), std::move(*limits));
  share.WriteLimits(ContextOverheads(share), false);
  if (share.config().life.token() != nullptr) {
    // Without it a share is recovered less well, should the state be damaged: no reason to fail.
    const UniqueFd mark(::open(HeldMark(share.config().folder).c_str(),
                               O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444));
    if (share.config().exclusive && mark) {
      [[maybe_unused]] const auto written =
          ::write(mark.get(), kExclusiveMark, sizeof kExclusiveMark - 1);
    }
  }
  // Nobody asks for memory of a share without members.
  Status ok = share.config().exclusive ? Status{} : memory_.Add(share);
  if (ok) ok = Begin(share);
  if (!ok) {
    Abandon(share);
    return std::unexpected(ok.error());
  }
  const std::string whose = api::FormatKeptBy(share.config().life.Describe());
  for (const DeviceOfShare& on : share.config().devices) {
    spdlog::info("share '{}' made: {} of GPU {}, {} set aside, request {}, limit {}, for {}",
                 share.config().name, FormatBytes(on.memory_bytes), on.device,
                 FormatBytes(on.memory_request_bytes), FormatFraction(on.compute.request),
                 FormatFraction(on.compute.limit), whose);
  }
  events_.Add(CreatedEvent(share));
  for (const DeviceOfShare& on : share.config().devices) memory_audit_.LearnIdle(on.device);
  return &share;
}

}  // namespace prorata::agent
