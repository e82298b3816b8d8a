#pragma once

// Who has what of the cluster's GPUs, as far as the extender knows, and where the next pod goes.
//
// Three sources, each with the last word on something:
//   nodes   the annotation that the device plugin writes on each (pods/annotations.h)
//   bound   pods that the API server says are bound, with the GPUs written on them
//   assumed pods for which a node was chosen in Filter or bound in Bind, and which the API server
//           has not said anything of yet. The scheduler asks for the next pod before this one is
//           bound; without this the two would get the same place.
//
// An assumption ends when the pod is seen bound or gone, when it is asked for again, or after a
// time. Decisions are policy/placement's. What is bound and does not fit (bound by somebody else,
// or the node lost a GPU) counts as much as there is.
//
// Pure: the time is given. One thread at a time.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kubernetes/pods/annotations.h"
#include "kubernetes/pods/pod_group.h"
#include "kubernetes/pods/pod_request.h"
#include "policy/placement/cluster.h"
#include "policy/placement/score_table.h"

namespace prorata::kubernetes {

class Account {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Longer than the scheduler takes from filter to bind, volumes aside.
  static constexpr std::chrono::seconds kAssumedFor{30};
  // A pod that was bound is seen within milliseconds, unless the watch is broken.
  static constexpr std::chrono::seconds kBoundUnreportedFor{300};
  // The scheduler asks for each pod of a group by itself, some of them after its longest back-off.
  static constexpr std::chrono::seconds kGroupAssumedFor{60};

  Account();
  ~Account();

  void SetNode(const std::string& name, std::vector<NodeGpu> gpus);
  void RemoveNode(const std::string& name);
  void KeepOnlyNodes(const std::unordered_set<std::string>& names);

  // A pod that is bound and has not ended. `group`: its name (pods/pod_group.h); empty: of none.
  void SetBound(const std::string& uid, const std::string& node,
                std::span<const ContainerRequest> requests, const AssignedGpus& assigned,
                const std::string& group = "");
  // A pod of a group that is not bound.
  void SetWaiting(const std::string& uid, std::span<const ContainerRequest> requests,
                  const std::string& group);
  void Remove(const std::string& uid);  // bound or waiting
  // Of the pods that were seen bound only these are left.
  void KeepOnlyPods(const std::unordered_set<std::string>& uids);

  struct Fit {
    size_t node;    // the place of its name among those that were asked about
    int64_t score;  // lower is better
  };
  struct Filtered {
    std::vector<Fit> fits;
    std::vector<size_t> full;     // could have it if others left
    std::vector<size_t> too_big;  // have no such GPUs
    std::optional<size_t> best;   // of `fits`: an index in it
    // Of a group: why none of its pods has a place yet. Nothing is in the lists then.
    std::string group_waits = {};
  };
  // Where something would fit.
  Filtered Look(std::span<const ContainerRequest> requests, std::span<const std::string> nodes);

  // Where the pod fits. The best place is assumed to be its own from now on.
  Filtered Filter(const std::string& uid, std::span<const ContainerRequest> requests,
                  std::span<const std::string> nodes, Time now);

  // For a pod of a group: the place that it has among all of them. It has one when as many of the
  // group's pods are there as the group needs, and all that are not bound yet fit at once; then all
  // of these have their places from now on, and as long as one of the group is bound.
  Filtered FilterGroup(const std::string& uid, const PodGroup& group,
                       std::span<const ContainerRequest> requests,
                       std::span<const std::string> nodes, Time now);

  // The pod's GPUs on the node, which are its own from now on. "full": they do not fit there any
  // more; "unknown_node"; "bound": it is bound already.
  Result<AssignedGpus> Bind(const std::string& uid, std::span<const ContainerRequest> requests,
                            const std::string& node, Time now);
  // It was not bound after all.
  void Unbind(const std::string& uid);
  // What a pod that is assumed or bound asks for.
  std::optional<std::vector<ContainerRequest>> RequestsOf(const std::string& uid) const;

  struct Counts {
    size_t nodes;
    size_t bound;
    size_t assumed;
  };
  Counts counts() const;

 private:
  struct Piece {
    policy::placement::Request request;
    policy::placement::GpuMask gpus;
    policy::placement::ShareId share;
  };
  struct Pod {
    std::string node;
    std::vector<ContainerRequest> requests;
    AssignedGpus assigned;
    std::optional<Time> until;  // of an assumption; nothing: seen bound
    std::vector<Piece> pieces = {};
    std::string group = {};
  };
  struct GpusOfModel {
    size_t model;  // its number in models_
    policy::placement::GpuMask gpus;
  };
  struct Node {
    std::vector<NodeGpu> gpus;
    policy::placement::NodeIndex index = 0;
    std::vector<GpusOfModel> models = {};
  };
  // A container that is to be placed.
  struct Wanted {
    const ContainerRequest* container;
    policy::placement::Request request;
    bool any_gpu;              // it chooses none
    std::vector<bool> models;  // by number: whether the container may have GPUs of it
  };
  struct Plan {
    std::vector<policy::placement::GpuMask> gpus;  // of each that was wanted
    int64_t score = 0;
  };

  void Expire(Time now);
  size_t CountBound(const std::string& group) const;
  Filtered PlaceOf(const std::string& uid, std::span<const std::string> nodes) const;
  // Of a group's pods that have no place; "": they have one now, else why not.
  std::string PlaceGroup(const PodGroup& group, std::span<const std::string> nodes, Time now);
  void Build();
  void AddNode(Node* node);
  void AddPieces(Pod* pod);
  void RemovePieces(Pod* pod);
  void RemovePlace(const std::string& uid);
  void Assume(const std::string& uid, std::span<const ContainerRequest> requests,
              const std::string& node, const Plan& plan, Time until);
  // Valid until nodes change.
  std::vector<Wanted> WantedOf(std::span<const ContainerRequest> requests) const;
  // Of so many nodes only the best is planned in full: scores of pods with one container, as most
  // are, are kept from one pod to the next (score_table.h). They are those of a container that may
  // have any GPU, which holds on each node whose GPUs are all as chosen.
  const policy::placement::Tournament* KeptScores(std::span<const Wanted> wanted);
  // The score on one node, in `plan`; false: no room. `kept`: of KeptScores.
  bool ScoreOn(std::span<const Wanted> wanted, const Node& node,
               const policy::placement::Tournament* kept, Plan* plan) const;
  // Overwrites `plan`; false: no room.
  bool PlanOn(std::span<const Wanted> wanted, const Node& node, Plan* plan) const;
  static policy::placement::GpuMask AllowedGpus(const Wanted& wanted, const Node& node);
  // Init containers, which need no more than another container, aside.
  static bool CouldEverFit(std::span<const Wanted> wanted, const Node& node);
  AssignedGpus AssignmentOf(std::span<const ContainerRequest> requests, const Plan& plan,
                            const Node& node) const;

  policy::placement::Workload workload_;
  std::unique_ptr<policy::placement::Cluster> cluster_;
  std::unique_ptr<policy::placement::ScoreTable> table_;
  std::unordered_map<std::string, Node> nodes_;
  // The number of each model of GPUs, by its name. Names are compared with what a pod chooses once
  // each, and not on each of thousands of nodes.
  std::unordered_map<std::string, size_t> models_;
  std::unordered_map<std::string, Pod> pods_;  // by UID
  // Pods of groups that are not bound, with a place or without: by group and UID.
  std::map<std::string, std::map<std::string, std::vector<ContainerRequest>>> waiting_;
  bool stale_ = true;      // nodes changed: the cluster is built anew before the next decision
  bool squeezed_ = false;  // something bound counts less than it has
  Time first_expiry_ = Time::max();
};

// Of each of `fits`, from 0 to `highest`: the higher, the better. The best one stands out.
std::vector<int> PrioritiesOf(const Account::Filtered& filtered, int highest);

}  // namespace prorata::kubernetes
