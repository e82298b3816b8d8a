#include "kubernetes/dra/claims.h"

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

constexpr char kCdiPrefix[] = "prorata.dev/share=";

std::unexpected<Error> Busy(const std::string& uid) {
  return Fail("claim_busy", "another call for the claim with UID " + uid +
                                " has not ended yet; the kubelet asks again");
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

}  // namespace prorata::kubernetes
