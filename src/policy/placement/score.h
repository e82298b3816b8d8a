#pragma once

// How good a node is for a request: the lower, the better.
//
//   score = growth of fragmentation + growth of what is stranded (workload.h) + best fit
//
// all in milli-GPU: what the placement makes useless, exactly, plus a little for each free thing on
// the node that is left, so that of nodes that lose the same the fullest is taken. Nothing is
// rounded to a coarse scale, so ties are rare and their order does not matter. Below the resolution
// of that, the damage to the links that are left decides (topology.h).
//
// Scores are integers, so that they are the same however they were arrived at.

#include <cstdint>
#include <optional>

#include "policy/placement/cluster.h"
#include "policy/placement/resources.h"
#include "policy/placement/workload.h"

namespace prorata::policy::placement {

// Score units per milli-GPU, and the low bits that links decide by.
inline constexpr int kLinkBits = 6;
inline constexpr int64_t kScorePerGpuMilli = kWeightOne << kLinkBits;

// An empty node of the largest kind is this much worse than a full one, in milli-GPU, for CPU and
// for GPUs each. From 20 to 100 the results differ little.
inline constexpr int64_t kBestFitGpuMilli = 50;

struct Scored {
  int64_t score;
  GpuMask gpus;
};

class Scorer {
 public:
  // `cluster` must outlive this.
  explicit Scorer(const Cluster& cluster) : cluster_(&cluster) {}

  // Of the best GPUs of the node for the request among those allowed; nothing where it does not
  // fit.
  std::optional<Scored> Score(const Request& request, NodeIndex node, GpuMask allowed) const;
  // The same with the node's view at hand.
  std::optional<Scored> Score(const Request& request, NodeIndex node, const NodeState& state,
                              const NodeView& view, GpuMask allowed) const;

  // Of these GPUs, which fit. `host_cpu_milli`: what it takes of this node's CPU (0 if the CPU is
  // another node's).
  int64_t ScoreOf(const Request& request, NodeIndex node, const NodeState& state,
                  const NodeView& view, GpuMask gpus, int32_t host_cpu_milli) const;

  // The GPUs of `usable` that the request gets of the node; 0: its links are too slow. Fractions of
  // one GPU aside, which the score decides.
  GpuMask ChooseSeveral(const Request& request, NodeIndex node, const NodeState& state,
                        GpuMask usable) const;

 private:
  GpuMask PreferBroken(NodeIndex node, const NodeState& state, GpuMask equal) const;

  const Cluster* cluster_;
};

}  // namespace prorata::policy::placement
