// An agent takes over the shares of the one before it, which may have been killed at any moment.

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "agent/node/node.h"
#include "agent/node/recover_state.h"
#include "agent/share/share_events.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

// Those in line under the agent before come back within this time, or lose their place. Their
// clients try twice a second and more often (cli/start_wait.cc).
constexpr int64_t kReturnNs = 2 * kNsPerS;

// f(device) for the one that is named, or for each where none is.
template <typename F>
Status ForEachNamed(const Devices& devices, const std::string& gpu, std::string_view option, F f) {
  if (!gpu.empty()) {
    const auto device = devices.Named(gpu, option);
    if (!device) return std::unexpected(device.error());
    f(*device);
    return {};
  }
  for (size_t device = 0; device < devices.count(); ++device) f(device);
  return {};
}

bool HasSharesOn(const SavedState& saved, const std::string& uuid) {
  return std::ranges::any_of(saved.shares, [&](const SavedShare& share) {
    return std::ranges::any_of(share.config.devices,
                               [&](const DeviceOfShare& on) { return on.uuid == uuid; });
  });
}

// An agent that was killed while it made a share leaves its folder, of which no state knows: nobody
// was answered, so nobody relies on it. One that was killed while it took a share away may leave a
// folder without limits.
void RemoveUnknownFolders(const std::string& shares, const std::set<std::string>& known) {
  std::error_code none;
  std::vector<std::string> unknown;
  for (const auto& entry : std::filesystem::directory_iterator(shares, none)) {
    const bool whole = std::filesystem::exists(entry.path() / "limits", none);
    if (!whole || !known.contains(entry.path().filename())) unknown.push_back(entry.path());
  }
  for (const std::string& folder : unknown) RemoveShareFolder(folder);
}

}  // namespace

Status Node::Adopt() {
  auto state = LoadState(StatePath());
  const bool damaged = !state && state.error().code == "state_damaged";
  if (damaged) {
    spdlog::error("{}; it is set aside, and the shares are as their own files say",
                  state.error().message);
    state = RecoverState(runtime_dir_);
    if (auto ok = SetAside(StatePath()); !ok) return ok;
  }
  if (!state) return std::unexpected(state.error());
  if (auto ok = SetOvercommit(*state); !ok) return ok;
  if (auto ok = SetElasticCeilings(*state); !ok) return ok;
  std::set<std::string> known;
  for (SavedShare& saved : state->shares) {
    const std::string name = saved.config.name;
    known.insert(api::ShareFolder(name));
    if (auto ok = AdoptShare(std::move(saved)); !ok) {
      spdlog::error("share '{}' is lost: {}", name, ok.error().message);
    } else if (damaged) {
      api::Event event{.kind = api::EventKind::kShareChanged, .share = name};
      event.detail = "the agent's state was damaged and is in '" + StatePath() +
                     ".damaged': this share keeps its memory, request, limit and weight, all else "
                     "is as if it had not been asked for";
      events_.Add(std::move(event));
    }
  }
  RemoveUnknownFolders(runtime_dir_ + "/shares", known);
  returning_ = std::min<uint32_t>(state->waiting, api::kMaxWaiting);
  returning_until_ns_ = RealClock().NowNs() + kReturnNs;
  std::vector<const ShareConfig*> held;
  for (const auto& [id, share] : shares_) {
    if (share->config().life.token() != nullptr && !share->ended())
      held.push_back(&share->config());
  }
  specifications_.Restore(held);
  return SaveNow();
}

// As this agent's options say; else, while there are shares that were made so, as the agent before.
Status Node::SetOvercommit(const SavedState& saved) {
  std::map<size_t, double> reported;
  for (const agent::Overcommit& over : overcommit_) {
    if (auto ok = ForEachNamed(devices_, over.gpu, "--overcommit",
                               [&](size_t device) { reported[device] = over.ratio; });
        !ok) {
      return ok;
    }
  }
  for (size_t device = 0; device < devices_.count(); ++device) {
    const std::string& uuid = devices_[device].uuid;
    if (reported.contains(device)) {
      ratios_[device] = reported[device];
    } else if (HasSharesOn(saved, uuid) && saved.overcommit.contains(uuid)) {
      ratios_[device] = saved.overcommit.at(uuid);
    }
    if (ratios_[device] > 1) {
      spdlog::info("GPU {}: up to {} times its memory is promised", device,
                   agent::FormatRatio(ratios_[device]));
    }
  }
  return {};
}

// As this agent's options say; else, while there are shares of the device, as the agent before.
Status Node::SetElasticCeilings(const SavedState& saved) {
  std::map<size_t, Fraction> reported;
  for (const agent::ElasticCeiling& ceiling : elastic_ceilings_) {
    if (auto ok = ForEachNamed(devices_, ceiling.gpu, "--elastic-ceiling",
                               [&](size_t device) { reported[device] = ceiling.ceiling; });
        !ok) {
      return ok;
    }
  }
  for (size_t device = 0; device < devices_.count(); ++device) {
    const std::string& uuid = devices_[device].uuid;
    Fraction ceiling = Fraction::One();
    const auto before = saved.elastic_ceiling_ppm.find(uuid);
    if (HasSharesOn(saved, uuid) && before != saved.elastic_ceiling_ppm.end())
      ceiling = {before->second};
    if (reported.contains(device)) ceiling = reported[device];
    if (ceiling < Fraction::One()) {
      spdlog::info("GPU {}: above their requests, shares use up to {} of its time together", device,
                   FormatFraction(ceiling));
    }
    leases_.SetElasticCeiling(device, ceiling);
  }
  return {};
}

std::map<std::string, uint32_t> Node::ElasticCeilings() const {
  std::map<std::string, uint32_t> ppm;
  for (size_t device = 0; device < devices_.count(); ++device) {
    const Fraction ceiling = leases_.elastic_ceiling(device);
    if (ceiling < Fraction::One()) ppm[devices_[device].uuid] = ceiling.ppm;
  }
  return ppm;
}

Status Node::AdoptShare(SavedShare saved) {
  saved.config.folder = runtime_dir_ + "/shares/" + api::ShareFolder(saved.config.name);
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
  for (uint32_t slot = 0; slot < kMaxMembers; ++slot) {
    const auto former = share.FormerMember(slot);
    Member* restored = former ? share.Restore(slot, former->process) : nullptr;
    if (restored == nullptr) continue;
    held[slot] = true;
    restored->command = CommandOf(former->process.pid);
    members.push_back(restored);
    const auto now = IdentifyProcess(former->process.pid);
    if (former->departed || !now || *now != former->process) {
      share.Depart(*restored, RealClock().NowNs());
    }
  }
  // A row of nobody: its member was never told of it.
  for (uint32_t slot = 0; slot < kMaxMembers; ++slot) {
    for (uint32_t i = 0; !held[slot] && i < share.device_count(); ++i) {
      share.limits()->grants[slot].bytes[i] = 0;
    }
  }
  share.container = std::move(saved.container);
  const bool ended = saved.ended || share.limits()->header.ended != 0;
  if (ended) share.End();
  shares_[id] = std::move(made);
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    devices_.AdoptContextOverhead(share.config().devices[i].device,
                                  share.limits()->devices[i].context_overhead_bytes);
  }
  share.WriteLimits(ContextOverheads(share), true);
  memory_.Adopt(share);
  if (auto ok = Begin(share); !ok) {
    memory_.Remove(share);
    leases_.Remove(share);
    heartbeat_.Remove(share.limits());
    shares_.erase(id);
    return ok;
  }
  if (ended) share.LetGo();
  for (Member* member : members) {
    if (!member->departed) WatchMember(share, *member);
  }
  spdlog::info("share '{}' taken over, with {} members", share.config().name, members.size());
  api::Event adopted = EventOf(api::EventKind::kShareAdopted, share);
  adopted.detail = std::to_string(members.size()) + " process(es)";
  events_.Add(std::move(adopted));
  ReapSoon();
  boost::asio::post(loop_, [this, id] { TakeAwayIfDone(id); });
  return {};
}

}  // namespace prorata::agent
