#include "kubernetes/dra/claims.h"

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

constexpr char kCdiPrefix[] = "prorata.dev/share=";

std::unexpected<Error> Busy(const std::string& uid) {
  return Fail("claim_busy", "another call for the claim with UID " + uid +
                                " has not ended yet; the kubelet asks again");
}

std::string ClaimText(const nlohmann::json& claim, const char* field) {
  return claim.value(nlohmann::json::json_pointer("/metadata") / field, std::string());
}

// The UIDs of the claims whose shares are there.
std::set<std::string> ClaimsOfShares(const NodeState& state) {
  std::set<std::string> uids;
  for (const api::ShareStatus& share : state.shares) {
    auto uid = ClaimOfShare(share.name);
    if (uid && !share.ended) uids.insert(std::move(*uid));
  }
  return uids;
}

}  // namespace

KeyLocks::Guard::~Guard() {
  if (locks_ == nullptr) return;
  {
    const std::lock_guard lock(locks_->mutex_);
    locks_->held_.erase(key_);
  }
  locks_->freed_.notify_all();
}

std::optional<KeyLocks::Guard> KeyLocks::Lock(const std::string& key, Agent::Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!freed_.wait_until(lock, deadline, [&] { return !held_.contains(key); })) {
    return std::nullopt;
  }
  held_.insert(key);
  return std::optional<Guard>(std::in_place, this, key);
}

Claims::Claims(ClaimApi& api, Agent& agent, std::string pool, std::function<void()> changed)
    : api_(api), agent_(agent), pool_(std::move(pool)), changed_(std::move(changed)) {}

Result<std::vector<PreparedDevice>> Claims::Prepare(const ClaimReference& reference,
                                                    Agent::Deadline deadline) {
  const auto held = locks_.Lock(reference.uid, deadline);
  if (!held) return Busy(reference.uid);
  const auto claim = api_.Get(reference);
  if (!claim) return std::unexpected(claim.error());
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  const auto plan = PlanClaim(*claim, reference, pool_, state->devices);
  if (!plan) return std::unexpected(plan.error());
  const auto share = agent_.Create(plan->share, deadline);
  if (!share) return std::unexpected(share.error());
  {
    const std::lock_guard lock(mutex_);
    known_[reference.uid] = {reference, plan->share};
  }
  changed_();
  std::vector<PreparedDevice> prepared;
  for (const AllocatedDevice& device : plan->devices) prepared.push_back({device, {}});
  // One share is one CDI device, however many GPUs it has; named twice its edits would be made
  // twice.
  prepared.front().cdi_devices.push_back(kCdiPrefix + share->name);
  return prepared;
}

Status Claims::Unprepare(const ClaimReference& reference, Agent::Deadline deadline) {
  return RemoveShare(reference.uid, deadline);
}

Status Claims::RemoveShare(const std::string& uid, Agent::Deadline deadline) {
  const auto held = locks_.Lock(uid, deadline);
  if (!held) return Busy(uid);
  auto removed = agent_.Remove(ShareNameOfClaim(uid), deadline);
  {
    const std::lock_guard lock(mutex_);
    known_.erase(uid);
  }
  changed_();
  return removed;
}

Result<std::vector<std::string>> Claims::RemoveStale(Agent::Deadline deadline) {
  // The agent first: the claim of a share that it has was allocated before.
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  std::vector<std::string> prepared;
  for (const api::ShareStatus& share : state->shares) {
    auto uid = ClaimOfShare(share.name);
    if (uid && !share.ended && share.kept_by.kind == api::KeptBy::Kind::kHold) {
      prepared.push_back(std::move(*uid));
    }
  }
  std::vector<std::string> removed;
  if (prepared.empty()) return removed;
  const auto allocated = api_.ListAllocated(pool_);
  if (!allocated) return std::unexpected(allocated.error());
  for (const std::string& uid : prepared) {
    if (allocated->contains(uid)) continue;
    if (auto ok = RemoveShare(uid, deadline); !ok) return std::unexpected(ok.error());
    removed.push_back(uid);
  }
  return removed;
}

Result<AllocatedClaims> Claims::ListClaims(const NodeState& state) {
  const auto allocated = api_.ListAllocated(pool_);
  if (!allocated) return std::unexpected(allocated.error());
  AllocatedClaims claims;
  for (const auto& [uid, claim] : *allocated) {
    const ClaimReference reference = {ClaimText(claim, "namespace"), ClaimText(claim, "name"), uid};
    // One that cannot be prepared has no share and gets none.
    auto plan = PlanClaim(claim, reference, pool_, state.devices);
    if (plan) claims[uid] = {reference, std::move(plan->share)};
  }
  return claims;
}

Result<AllocatedClaims> Claims::Prepared(const NodeState& state) {
  const std::set<std::string> uids = ClaimsOfShares(state);
  const auto take = [&] {
    const std::lock_guard lock(mutex_);
    AllocatedClaims found;
    for (const std::string& uid : uids) {
      const auto known = known_.find(uid);
      if (known != known_.end()) found.insert(*known);
    }
    return found;
  };
  AllocatedClaims found = take();
  if (found.size() == uids.size()) return found;
  auto listed = ListClaims(state);
  if (!listed) return std::unexpected(listed.error());
  {
    const std::lock_guard lock(mutex_);
    for (auto& [uid, claim] : *listed) {
      if (uids.contains(uid)) known_.try_emplace(uid, std::move(claim));
    }
  }
  return take();
}

std::optional<ClaimReference> Claims::Known(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(uid);
  if (known == known_.end()) return std::nullopt;
  return known->second.reference;
}

Result<AllocatedClaims> Claims::NotPrepared(const NodeState& state) {
  auto claims = ListClaims(state);
  if (!claims) return std::unexpected(claims.error());
  for (const std::string& uid : ClaimsOfShares(state)) claims->erase(uid);
  return claims;
}

}  // namespace prorata::kubernetes
