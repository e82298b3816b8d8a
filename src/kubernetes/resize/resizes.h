#pragma once

// Holds the shares of claims to what the annotations of their pods ask for (wish.h). What a share
// is to be follows from its claim and the annotations alone, so doing it again changes nothing,
// after a restart neither, and an annotation that goes takes its effect with it.
//
// What cannot be is refused: nothing changes, an event on the pod says why, and it is tried again
// as long as the annotation is there. One thread at a time.

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kubernetes/api/pod_events.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/dra/claims.h"
#include "kubernetes/resize/pod_set.h"

namespace prorata::kubernetes {

class Resizes {
 public:
  // `changed`: a share was.
  Resizes(Claims& claims, Agent& agent, PodEvents& events, std::function<void()> changed)
      : claims_(claims), agent_(agent), events_(events), changed_(std::move(changed)) {}

  // `pods`: the node's, with claims. Errors: that nothing could be judged, the agent's and the API
  // server's.
  Status Reconcile(std::span<const PodView> pods, Agent::Deadline deadline);

 private:
  // A share, who asks something of it, and what.
  struct Target {
    std::string entry;
    const AllocatedClaim* claim = nullptr;
    const api::ShareStatus* share = nullptr;
    ShareWish wish = {};
    std::vector<const PodView*> pods = {};
    bool refused = false;
  };
  using Targets = std::map<std::string, Target>;  // by the claim's UID

  Targets Gather(std::span<const PodView> pods, const NodeState& state,
                 const AllocatedClaims& allocated);
  void GatherPod(const PodView& pod, const NodeState& state, const AllocatedClaims& allocated,
                 Targets* targets);
  Status Apply(const Target& target, const NodeState& state, Agent::Deadline deadline);
  // That what was allocated and is not prepared yet keeps its place.
  Status CheckPlace(const Target& target, const api::ShareSpec& wanted, const NodeState& state);
  void Refuse(const PodView& pod, const std::string& what, const Error& why);
  void Record(const PodView& pod, bool warning, const std::string& message);

  Claims& claims_;
  Agent& agent_;
  PodEvents& events_;
  const std::function<void()> changed_;
  // What was refused, by pod and what of it, with why: reported once.
  std::map<std::pair<std::string, std::string>, std::string> reported_;
};

}  // namespace prorata::kubernetes
