#pragma once

// The scores of the policies that prorata is compared with: higher is better.

#include <memory>
#include <random>

#include "policy/placement/cluster.h"
#include "sim/cluster/policies.h"

namespace prorata::sim::cluster {

struct NodeScore {
  double score;
  policy::placement::GpuMask gpus;
};

class NodeScorer {
 public:
  virtual ~NodeScorer() = default;
  // The node fits the request: `usable` GPUs each do, and there are enough of them.
  virtual NodeScore Score(const policy::placement::Request& request,
                          policy::placement::NodeIndex node, policy::placement::GpuMask usable) = 0;
};

std::unique_ptr<NodeScorer> MakeScorer(PolicyKind kind, const policy::placement::Cluster& cluster,
                                       std::mt19937_64* random);

}  // namespace prorata::sim::cluster
