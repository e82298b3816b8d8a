#pragma once

// Which GPUs, of which node, for a share: the decision that the agent's cluster, the scheduler
// extender and `prorata simulate` make with the same object.
//
//   Cluster cluster(workload);  // nodes are added
//   Placer placer(&cluster);
//   if (auto place = placer.Choose(request, labels)) cluster.Add(request, labels, *place);
//
// Choosing changes nothing: the caller places, or does not, or asks again. A choice costs the
// scores of nodes that changed since the same request was last asked for, and log2(nodes).
//
// Not thread-safe. No clock, no randomness.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/placement/cluster.h"
#include "policy/placement/score_table.h"

namespace prorata::policy::placement {

struct Choice {
  Place place;
  int64_t score;  // in units of kScorePerGpuMilli to a milli-GPU; lower is better
};

// A node that the share's host can reach over the network, and what using it is worth avoiding.
struct RemoteNode {
  NodeIndex node;
  int32_t cost_gpu_milli;  // of the path: as bad as so much of a GPU made useless
};

class Placer {
 public:
  // `cluster` must outlive this, and has all its nodes already. Ties: see ScoreTable.
  explicit Placer(Cluster* cluster, std::vector<uint32_t> tie_ranks = {})
      : cluster_(cluster), table_(*cluster, std::move(tie_ranks)) {}

  // The best place now; nothing: there is none.
  std::optional<Choice> Choose(const Request& request, const Labels& labels = {});
  // The same for a share that is taken from `without`, which is not considered.
  std::optional<Choice> ChooseExcept(const Request& request, NodeIndex without);

  // CPU and memory on `host`, GPUs on `host` itself or on one of `nodes`: the least of score and
  // path cost. Costs a score for each of them.
  std::optional<Choice> ChooseRemote(const Request& request, const Labels& labels, NodeIndex host,
                                     std::span<const RemoteNode> nodes);

  // Places for all of a group, in their order, or none: on as few nodes as the search finds, of one
  // node before one rack before the cluster. All-or-nothing; costs a walk over the nodes for each
  // node that the group takes. Labels hold against what is placed, not within the group.
  std::optional<std::vector<Place>> ChooseGroup(std::span<const Request> group);

  const Cluster& cluster() const { return *cluster_; }
  ScoreTable& table() { return table_; }

 private:
  std::optional<Choice> ChooseLabelled(const Request& request, const Labels& labels);

  Cluster* cluster_;
  ScoreTable table_;
};

}  // namespace prorata::policy::placement
