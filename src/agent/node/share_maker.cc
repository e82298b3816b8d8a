#include "agent/node/share_maker.h"

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <ctime>
#include <memory>
#include <utility>

#include "agent/share/validate_share.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

// A share whose programs are all dead is there until the device shows their memory gone: some
// milliseconds, or as long as the driver hangs. Who asks for its name waits for that, and so long.
constexpr int64_t kNameNs = kNsPerS;
constexpr auto kLookAgainAfter = std::chrono::milliseconds(2);

bool SaysNothing(const api::ShareSpec& spec) {
  const api::ShareSpec none;
  return spec.gpus.empty() && !spec.gpu_count && !spec.memory && !spec.memory_request &&
         spec.on.empty() && spec.compute_request == none.compute_request &&
         spec.compute_limit == none.compute_limit && spec.weight == none.weight &&
         spec.priority == none.priority && spec.yield_within_ns == none.yield_within_ns &&
         spec.on_full == none.on_full && spec.gang == none.gang && !spec.guaranteed &&
         spec.share_memory_with.empty() && spec.allow_users.Nobody();
}

// A program that names a share which is there for any joins it as it is.
Result<Share*> Join(Share& share, const api::ShareSpec& spec) {
  const std::string& name = share.config().name;
  const std::string* file = share.config().life.file();
  if (share.ended()) {
    return Fail("share_ended", "share '" + name + "' is ending: " +
                                   (file != nullptr ? "its line in '" + *file + "' is gone"
                                                    : std::string("it was removed")) +
                                   "; nobody joins it any more");
  }
  if (share.config().exclusive) {
    return Fail("exclusive", "share '" + name +
                                 "' is whole GPUs for containers (--mode exclusive), which no "
                                 "program joins; on this machine itself run the program without "
                                 "prorata, with CUDA_VISIBLE_DEVICES=" +
                                 share.config().devices.front().uuid);
  }
  if (!SaysNothing(spec) && file != nullptr) {
    return Fail("resource_config",
                "share '" + name + "' has its terms from '" + *file +
                    "'; give `prorata run` nothing but its --name, or change its line there");
  }
  if (!SaysNothing(spec)) {
    return Fail("share_exists", "share '" + name +
                                    "' exists already, with terms of its own: give `prorata run` "
                                    "nothing but its --name, or change it with `prorata update`");
  }
  return &share;
}

}  // namespace

void ShareMaker::AwaitName(const std::optional<std::string>& name, std::function<void()> then) {
  use_.memory.Sample();
  AwaitNameUntil(name, RealClock().NowNs() + kNameNs, std::move(then));
}

void ShareMaker::AwaitNameUntil(const std::optional<std::string>& name, int64_t until_ns,
                                std::function<void()> then) {
  RefreshFigures([this, name, until_ns, then = std::move(then)] {
    Share* named = name ? use_.shares.FindByName(*name) : nullptr;
    if (named != nullptr) {
      use_.lives.SweepOwner(*named);
      named = use_.shares.FindByName(*name);
    }
    const bool over = named != nullptr && !named->kept() && named->CountLiving() == 0;
    if (!over || RealClock().NowNs() >= until_ns) return then();
    use_.reaper.ReapSoon();
    auto timer = std::make_shared<boost::asio::steady_timer>(loop_, kLookAgainAfter);
    timer->async_wait(
        [this, name, until_ns, then, timer](const boost::system::error_code& stopped) {
          if (!stopped) AwaitNameUntil(name, until_ns, then);
        });
  });
}

void ShareMaker::RefreshFigures(std::function<void()> then) {
  use_.devices.Refresh(std::move(then));
}

// An agent that ended after it had saved a share for a process and before it answered: the process
// asks the next agent for the same again, and must not find its own share in the way. Where it has
// become a program that asks for another of the same terms, it gets this one, once.
Share* ShareMaker::FindUnanswered(const api::ShareSpec& spec, const Peer& owner) {
  const std::vector<api::DeviceStatus> devices = DescribeDevices();
  for (Share* share : use_.shares.All()) {
    const ShareConfig& config = share->config();
    const ProcessId* of = config.life.process();
    if (!share->may_be_unanswered || share->ended() || of == nullptr || *of != owner.process) {
      continue;
    }
    if (spec.token || (spec.name && *spec.name != config.name) || spec.on_full != config.on_full ||
        spec.gang != config.gang || spec.any_container != config.any_container ||
        spec.share_memory_with != config.share_memory_with ||
        spec.allow_users != config.allow_users) {
      continue;
    }
    std::vector<api::DeviceStatus> own;
    for (const DeviceOfShare& on : config.devices) own.push_back(devices[on.device]);
    if (!MayBeOf(spec, own, share->Terms())) continue;
    share->may_be_unanswered = false;
    return share;
  }
  return nullptr;
}

std::optional<Result<Share*>> ShareMaker::FindMade(const api::ShareSpec& spec, const Peer& owner) {
  if (Share* its = FindUnanswered(spec, owner)) return its;
  Share* named = spec.name ? use_.shares.FindByName(*spec.name) : nullptr;
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

Result<Share*> ShareMaker::Make(const api::ShareSpec& spec, const Peer& owner,
                                const std::vector<api::DeviceStatus>& devices) {
  auto valid = ValidateShare(spec, devices, use_.shares.Names());
  if (!valid) return std::unexpected(valid.error());

  ShareConfig config;
  config.name = spec.name ? *spec.name : use_.shares.FreeName();
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
  return use_.lives.Make(std::move(config));
}

Status ShareMaker::MayName(const api::ShareSpec& spec) {
  return spec.token ? use_.specifications.MayName(*spec.name) : Status{};
}

// Whoever has the answer relies on the share, so the next agent must know of it by then.
void ShareMaker::Keep(Share& made, OnShare then) {
  use_.state.Save([this, id = made.id(), then = std::move(then)](const Status& saved) {
    Share* share = use_.shares.Find(id);
    if (share == nullptr) return then(Fail("share_ended", "the share has ended already"));
    if (saved && share->config().life.token() != nullptr) return Publish(*share, then);
    if (saved) return then(share);
    const std::string name = share->config().name;
    Abandon(*share);
    then(std::unexpected(NotSaved(saved.error(), "share '" + name + "' was not made")));
  });
}

void ShareMaker::Publish(Share& share, OnShare then) {
  use_.specifications.Write(share.config(), [this, id = share.id(), name = share.config().name,
                                             then](const Status& written) {
    Share* its = use_.shares.Find(id);
    if (its == nullptr || its->ended()) {
      // Removed meanwhile, and no other has its name.
      if (use_.shares.FindByName(name) == nullptr || use_.shares.FindByName(name) == its)
        use_.specifications.Remove(name);
      return then(Fail("share_ended", "the share has ended already"));
    }
    if (written) return then(its);
    Abandon(*its);
    then(std::unexpected(written.error()));
  });
}

}  // namespace prorata::agent
