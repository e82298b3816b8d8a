#include "kubernetes/resize/resizes.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "kubernetes/resize/change.h"

namespace prorata::kubernetes {
namespace {

constexpr char kResized[] = "ShareResized";
constexpr char kRefused[] = "ShareResizeRefused";
constexpr char kWholePod[] = "";  // in place of an entry

// Nobody's refusal: it is tried again, and the log has it.
bool IsPassing(const Error& error) {
  static const std::set<std::string> kPassing = {"connect",     "agent_gone",     "agent_slow",
                                                 "agent_reply", "foreign_agent",  "no_share",
                                                 "share_ended", "api_unreachable"};
  return kPassing.contains(error.code);
}

const AllocatedClaim* FindClaim(const AllocatedClaims& allocated, const std::string& name_space,
                                const std::string& name) {
  for (const auto& [uid, claim] : allocated) {
    if (claim.reference.name == name && claim.reference.name_space == name_space) return &claim;
  }
  return nullptr;
}

const api::ShareStatus* FindShare(const NodeState& state, const std::string& uid) {
  for (const api::ShareStatus& share : state.shares) {
    if (share.name == ShareNameOfClaim(uid) && !share.ended) return &share;
  }
  return nullptr;
}

uint64_t FreeOf(const api::DeviceStatus& device) {
  const uint64_t taken = device.foreign_bytes + device.promised_bytes;
  return taken < device.total_bytes ? device.total_bytes - taken : 0;
}

}  // namespace

Status Resizes::Reconcile(std::span<const PodView> pods, Agent::Deadline deadline) {
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  const auto allocated = claims_.Prepared(*state);
  if (!allocated) return std::unexpected(allocated.error());
  std::set<std::string> uids;
  for (const PodView& pod : pods) uids.insert(pod.uid);
  std::erase_if(reported_, [&](const auto& entry) { return !uids.contains(entry.first.first); });
  Status outcome;
  for (auto& [uid, target] : Gather(pods, *state, *allocated)) {
    if (target.refused) continue;
    const auto ok = Apply(target, *state, deadline);
    for (const PodView* pod : target.pods) {
      if (ok) {
        reported_.erase({pod->uid, target.entry});
      } else if (!IsPassing(ok.error())) {
        Refuse(*pod, target.entry, ok.error());
      }
    }
    if (!ok && IsPassing(ok.error())) outcome = ok;
  }
  return outcome;
}

Resizes::Targets Resizes::Gather(std::span<const PodView> pods, const NodeState& state,
                                 const AllocatedClaims& allocated) {
  Targets targets;
  for (const PodView& pod : pods) {
    // Before it runs, some of its claims may have no share yet.
    if (pod.running) GatherPod(pod, state, allocated, &targets);
  }
  return targets;
}

void Resizes::GatherPod(const PodView& pod, const NodeState& state,
                        const AllocatedClaims& allocated, Targets* targets) {
  std::vector<std::string> entries;
  std::vector<Target*> own;
  for (const PodClaim& claim : pod.claims) {
    const AllocatedClaim* found = FindClaim(allocated, pod.name_space, claim.name);
    const api::ShareStatus* share = found ? FindShare(state, found->reference.uid) : nullptr;
    if (share == nullptr) continue;
    entries.push_back(claim.entry);
    Target& target = (*targets)[found->reference.uid];
    target.entry = claim.entry;
    target.claim = found;
    target.share = share;
    target.pods.push_back(&pod);
    own.push_back(&target);
  }
  auto wishes = ReadWishes(pod.annotations, entries);
  if (!wishes) {
    for (Target* target : own) target->refused = true;
    return Refuse(pod, kWholePod, wishes.error());
  }
  reported_.erase({pod.uid, kWholePod});
  for (size_t i = 0; i < own.size(); ++i) {
    if (auto ok = MergeWish((*wishes)[entries[i]], &own[i]->wish); !ok) {
      own[i]->refused = true;
      for (const PodView* each : own[i]->pods) Refuse(*each, entries[i], ok.error());
    }
  }
}

Status Resizes::Apply(const Target& target, const NodeState& state, Agent::Deadline deadline) {
  const api::ShareSpec wanted = WishedShare(target.claim->share, target.wish);
  const auto change = ChangeTo(wanted, *target.share);
  if (!change) return std::unexpected(change.error());
  if (change->Empty()) return {};
  if (auto ok = CheckPlace(target, wanted, state); !ok) return ok;
  const auto after = agent_.Update(target.share->name, *change, deadline);
  if (!after) return std::unexpected(after.error());
  const std::string what = DescribeChange(*target.share, *after);
  if (what.empty()) return {};
  changed_();
  for (const PodView* pod : target.pods) {
    Record(*pod, false, "the share of claim '" + target.entry + "' was resized: " + what);
  }
  return {};
}

Status Resizes::CheckPlace(const Target& target, const api::ShareSpec& wanted,
                           const NodeState& state) {
  const auto grows = [&](const api::ShareDevice& on) {
    return AllocatedOn(wanted, on.uuid).memory_bytes > on.memory_request_bytes;
  };
  const auto& devices = target.share->devices;
  if (std::none_of(devices.begin(), devices.end(), grows)) return {};
  const auto coming = claims_.NotPrepared(state);
  if (!coming) return std::unexpected(coming.error());
  for (const api::ShareDevice& on : devices) {
    if (!grows(on)) continue;
    const auto device =
        std::find_if(state.devices.begin(), state.devices.end(),
                     [&](const api::DeviceStatus& each) { return each.uuid == on.uuid; });
    uint64_t kept = 0;
    for (const auto& [uid, claim] : *coming) kept += AllocatedOn(claim.share, on.uuid).memory_bytes;
    if (device == state.devices.end() || kept == 0) continue;
    const uint64_t more = AllocatedOn(wanted, on.uuid).memory_bytes - on.memory_request_bytes;
    if (more + kept <= FreeOf(*device)) continue;
    return Fail("kept_for_others", "GPU " + std::to_string(on.index) + " has " +
                                       FormatBytes(FreeOf(*device)) + " left, of which " +
                                       FormatBytes(kept) +
                                       " are allocated to pods that are about to start there");
  }
  return {};
}

void Resizes::Refuse(const PodView& pod, const std::string& what, const Error& why) {
  std::string& reported = reported_[{pod.uid, what}];
  if (std::exchange(reported, why.message) == why.message) return;
  Record(pod, true,
         (what.empty() ? "the pod's shares stay as before: "
                       : "the share of claim '" + what + "' stays as before: ") +
             why.message);
}

void Resizes::Record(const PodView& pod, bool warning, const std::string& message) {
  spdlog::log(warning ? spdlog::level::warn : spdlog::level::info, "pod {}/{}: {}", pod.name_space,
              pod.name, message);
  const auto recorded = events_.Record({pod.name_space, pod.name, pod.uid}, warning,
                                       warning ? kRefused : kResized, message);
  if (!recorded) spdlog::warn("no event of that: {}", recorded.error().message);
}

}  // namespace prorata::kubernetes
