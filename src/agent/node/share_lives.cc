#include "agent/node/share_lives.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <memory>
#include <utility>

#include "agent/node/recover_state.h"
#include "agent/runtime/connection.h"
#include "agent/share/share_events.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

// Without it a share is recovered less well, should the state be damaged: no reason to fail.
void WriteHeldMark(const ShareConfig& config) {
  const UniqueFd mark(
      ::open(HeldMark(config.folder).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444));
  if (config.exclusive && mark) {
    [[maybe_unused]] const auto written =
        ::write(mark.get(), kExclusiveMark, sizeof kExclusiveMark - 1);
  }
}

void LogMade(const ShareConfig& config) {
  const std::string whose = api::FormatKeptBy(config.life.Describe());
  for (const DeviceOfShare& on : config.devices) {
    spdlog::info("share '{}' made: {} of GPU {}, {} guaranteed, request {}, limit {}, for {}",
                 config.name, FormatBytes(on.memory_bytes), on.device,
                 FormatBytes(on.memory_request_bytes), FormatFraction(on.compute.request),
                 FormatFraction(on.compute.limit), whose);
  }
}

}  // namespace

Result<Share*> ShareLives::Make(ShareConfig config) {
  config.folder = folder_ + "/" + api::ShareFolder(config.name);
  if (::mkdir(config.folder.c_str(), 0755) != 0 && errno != EEXIST) {
    return FailErrno("share_folder", "cannot make the share's folder '" + config.folder + "'",
                     errno);
  }
  ::chmod(config.folder.c_str(), 0755);  // whatever the umask: containers run as anybody
  auto limits = LimitsMapping::Create(config.folder + "/limits", config.name);
  if (!limits) {
    RemoveShareFolder(config.folder);
    return std::unexpected(limits.error());
  }
  Share& share = use_.shares.Add(std::move(config), std::move(*limits));
  share.WriteLimits(ContextOverheads(share), false);
  if (share.config().life.token() != nullptr) WriteHeldMark(share.config());
  // Nobody asks for memory of a share without members.
  Status ok = share.config().exclusive ? Status{} : use_.memory.Add(share);
  if (ok) ok = Begin(share);
  if (ok) ok = WatchOwner(share);
  if (!ok) {
    End(share);
    return std::unexpected(ok.error());
  }
  LogMade(share.config());
  use_.events.Add(CreatedEvent(share));
  on_made(share);
  return &share;
}

std::vector<uint64_t> ShareLives::ContextOverheads(const Share& share) const {
  std::vector<uint64_t> bytes;
  for (const DeviceOfShare& on : share.config().devices) {
    bytes.push_back(use_.devices.ContextOverhead(on.device));
  }
  return bytes;
}

Status ShareLives::Begin(Share& share) {
  share.limits()->header.dilation = static_cast<uint32_t>(use_.clock.dilation());
  auto socket = Listen(share.config().folder + "/socket", 0666);
  if (!socket) return std::unexpected(socket.error());
  share.acceptor = std::make_unique<Acceptor>(
      loop_, std::move(*socket),
      [this, id = share.id()](UniqueFd fd) { on_connection(id, std::move(fd)); });
  use_.heartbeat.Add(share.limits());
  use_.leases.Add(share);
  return {};
}

Status ShareLives::WatchOwner(Share& share) {
  const ProcessId* owner = share.config().life.process();
  if (owner == nullptr) return {};
  auto pidfd = WatchProcess(*owner);
  if (!pidfd && pidfd.error().code != "no_process") return std::unexpected(pidfd.error());
  if (!pidfd) {
    // It ended already. As if it ended in a moment: nobody should find the share gone at once.
    share.LetGo();
    boost::asio::post(loop_, [this, id = share.id()] { TakeAwayIfDone(id); });
    return {};
  }
  share.owner_watch =
      std::make_unique<ProcessWatch>(loop_, std::move(*pidfd), [this, id = share.id()] {
        Share* ended = use_.shares.Find(id);
        if (ended != nullptr) OwnerEnded(*ended);
      });
  return {};
}

void ShareLives::WatchAgain(Share& share) {
  Status ok = share.kept() && share.owner_watch == nullptr ? WatchOwner(share) : Status{};
  for (Member* member : share.Members()) {
    if (ok && !member->departed && member->watch == nullptr) use_.members.Watch(share, *member);
  }
}

void ShareLives::OwnerEnded(Share& share) {
  share.LetGo();
  use_.members.SweepDead(share);
  TakeAwayIfDone(share.id());
}

void ShareLives::SweepOwner(Share& share) {
  const bool ended = share.owner_watch != nullptr && HasEnded(share.owner_watch->pidfd());
  if (ended) OwnerEnded(share);
}

Status ShareLives::Adopt(SavedShare saved) {
  saved.config.folder = folder_ + "/" + api::ShareFolder(saved.config.name);
  for (DeviceOfShare& device : saved.config.devices) {
    const auto found = use_.devices.Find(device.uuid);
    if (!found) return Fail("unknown_gpu", "its GPU " + device.uuid + " is not there any more");
    device.device = *found;
  }
  auto limits = LimitsMapping::Adopt(saved.config.folder + "/limits", saved.config.name);
  if (!limits) return std::unexpected(limits.error());
  Share& share = use_.shares.Add(std::move(saved.config), std::move(*limits));
  const std::vector<Member*> members = Restore(share);
  share.container = std::move(saved.container);
  share.may_be_unanswered = members.empty() && share.config().life.process() != nullptr;
  const bool ended = saved.ended || share.limits()->header.ended != 0;
  if (ended) share.End();
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    use_.devices.AdoptContextOverhead(share.config().devices[i].device,
                                      share.limits()->devices[i].context_overhead_bytes);
  }
  share.WriteLimits(ContextOverheads(share), true);
  use_.memory.Adopt(share);
  if (auto ok = Begin(share); !ok) {
    use_.memory.Remove(share);
    use_.leases.Remove(share);
    use_.heartbeat.Remove(share.limits());
    use_.shares.Remove(share.id());
    return ok;
  }
  if (ended) share.LetGo();
  if (auto ok = WatchOwner(share); !ok) spdlog::warn("{}", ok.error().message);  // WatchAgain
  for (Member* member : members) {
    if (!member->departed) use_.members.Watch(share, *member);
  }
  const std::string processes =
      std::to_string(members.size()) + (members.size() == 1 ? " process" : " processes");
  spdlog::info("share '{}' taken over, with {}", share.config().name, processes);
  api::Event adopted = EventOf(api::EventKind::kShareAdopted, share);
  adopted.detail = processes;
  use_.events.Add(std::move(adopted));
  use_.reaper.ReapSoon();
  boost::asio::post(loop_, [this, id = share.id()] { TakeAwayIfDone(id); });
  return {};
}

// First everybody, then the dead among them: a grant that nobody holds is not to be seen between.
std::vector<Member*> ShareLives::Restore(Share& share) {
  std::array<bool, kMaxMembers> held{};
  std::vector<Member*> members;
  for (uint32_t slot = 0; slot < kMaxMembers; ++slot) {
    const auto former = share.FormerMember(slot);
    Member* restored = former ? share.Restore(slot, former->process) : nullptr;
    if (restored == nullptr) continue;
    held[slot] = true;
    restored->command = CommandOf(former->process.pid);
    members.push_back(restored);
    const auto now = IdentifyProcess(former->process.pid);
    const bool dead = now ? *now != former->process : now.error().code == "no_process";
    if (former->departed || dead) {
      share.Depart(*restored, RealClock().NowNs());
    }
  }
  // A row of nobody: its member never got it.
  for (uint32_t slot = 0; slot < kMaxMembers; ++slot) {
    for (uint32_t i = 0; !held[slot] && i < share.device_count(); ++i) {
      share.limits()->grants[slot].bytes[i] = 0;
    }
  }
  return members;
}

Status ShareLives::Remove(const std::string& name) {
  Share* share = use_.shares.FindByName(name);
  if (share == nullptr) return NoShare(name);
  if (const std::string* file = share->config().life.file()) {
    return Fail("resource_config",
                "share '" + name + "' is kept by '" + *file + "'; take its line out of that file");
  }
  share->End();
  use_.specifications.Remove(name);
  use_.state.SaveSoon();
  End(*share);
  return {};
}

void ShareLives::End(Share& share) {
  share.End();
  share.LetGo();
  TakeAwayIfDone(share.id());
}

void ShareLives::TakeAwayIfDone(uint64_t id) {
  Share* share = use_.shares.Find(id);
  if (share == nullptr || share->kept()) return;
  share->EndIfOver();
  if (share->HasMembers()) return;
  spdlog::info("share '{}' ended", share->config().name);
  use_.events.Add(EventOf(api::EventKind::kShareEnded, *share));
  const std::string folder = share->config().folder;
  use_.specifications.Remove(share->config().name);
  if (share->acceptor != nullptr) use_.leases.Remove(*share);
  use_.heartbeat.Remove(share->limits());
  use_.memory.Remove(*share);
  use_.shares.Remove(id);
  if (use_.memory.anybody_waits()) use_.reaper.ReapSoon();
  use_.sharing.Forget(id);
  RemoveShareFolder(folder);
  use_.state.SaveSoon();
  on_gone();
}

}  // namespace prorata::agent
