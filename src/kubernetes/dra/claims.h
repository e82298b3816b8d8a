#pragma once

// The claims that the kubelet wants prepared on this node, each a share of the agent. What is
// prepared is what the agent has, so a driver that was killed goes on where it was; what is kept
// here is what the API server said of allocations, which do not change.
//
// Thread-safe: the kubelet asks for one claim from several threads at once, and those of one claim
// run one after another.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/dra/claim.h"
#include "kubernetes/dra/claim_api.h"

namespace prorata::kubernetes {

// One holder at a time of each key.
class KeyLocks {
 public:
  class Guard {
   public:
    Guard(KeyLocks* locks, std::string key) : locks_(locks), key_(std::move(key)) {}
    Guard(Guard&& other) noexcept
        : locks_(std::exchange(other.locks_, nullptr)), key_(std::move(other.key_)) {}
    Guard& operator=(Guard&&) = delete;
    ~Guard();

   private:
    KeyLocks* locks_;
    std::string key_;
  };

  // Nothing: it was not free before the deadline.
  std::optional<Guard> Lock(const std::string& key, Agent::Deadline deadline);

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  std::set<std::string> held_;
};

struct PreparedDevice {
  AllocatedDevice device;
  std::vector<std::string> cdi_devices;
};

class Claims {
 public:
  // `changed`: a share was made or removed; called from whichever thread did it.
  Claims(ClaimApi& api, Agent& agent, std::string pool, std::function<void()> changed);

  // Makes the claim's share, or finds it made. At least one device has a CDI device: an answer
  // without would start the container without limits. Errors: PlanClaim's, the API's, the agent's.
  Result<std::vector<PreparedDevice>> Prepare(const ClaimReference& claim,
                                              Agent::Deadline deadline);
  // Of a claim that is not prepared it does nothing.
  Status Unprepare(const ClaimReference& claim, Agent::Deadline deadline);

  // Removes the shares of claims that the cluster does not have any more, or not here: of a node
  // whose kubelet forgot them. The UIDs of those that were removed.
  Result<std::vector<std::string>> RemoveStale(Agent::Deadline deadline);

  // The claims whose shares the agent has, but for shares of claims that are gone. Asks the API
  // server only about what it does not know yet.
  Result<AllocatedClaims> Prepared(const NodeState& state);
  // One of those, as far as is known without asking.
  std::optional<ClaimReference> Known(const std::string& uid);
  // Those that were allocated and have no share yet, as the API server has them now.
  Result<AllocatedClaims> NotPrepared(const NodeState& state);

 private:
  Result<AllocatedClaims> ListClaims(const NodeState& state);
  Status RemoveShare(const std::string& uid, Agent::Deadline deadline);

  ClaimApi& api_;
  Agent& agent_;
  const std::string pool_;
  const std::function<void()> changed_;
  KeyLocks locks_;

  std::mutex mutex_;
  AllocatedClaims known_;
};

}  // namespace prorata::kubernetes
