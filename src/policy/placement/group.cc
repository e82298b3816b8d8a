// Placer::ChooseGroup.

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

#include "policy/placement/placer.h"

namespace prorata::policy::placement {
namespace {

// The members of a group that are not placed yet, the largest first, and where the others are.
struct Partial {
  std::vector<size_t> waiting;
  std::vector<Place> places;     // by member
  std::vector<NodeIndex> nodes;  // that it uses
  int64_t score = 0;
};

// What one node takes of the waiting members, tried on a copy of its state.
struct Taken {
  std::vector<size_t> members;
  std::vector<GpuMask> gpus;
  int64_t score = 0;
};

Taken TakeInto(const Cluster& cluster, const Scorer& scorer, std::span<const Request> group,
               std::span<const size_t> waiting, NodeIndex index) {
  Taken taken;
  NodeState state = cluster.node(index);
  for (const size_t member : waiting) {
    const Request& request = group[member];
    if (!HostFits(request, state)) continue;
    const NodeView view(cluster.workload(), state);
    const auto scored =
        scorer.Score(request, index, state, view, static_cast<GpuMask>(~state.exclusive));
    if (!scored) continue;
    taken.members.push_back(member);
    taken.gpus.push_back(scored->gpus);
    taken.score += scored->score;
    state.cpu_left_milli -= request.cpu_milli;
    state.memory_left_mib -= request.memory_mib;
    for (uint32_t rest = scored->gpus; rest != 0; rest &= rest - 1) {
      const int gpu = std::countr_zero(rest);
      state.gpu_left_milli[gpu] =
          static_cast<int16_t>(state.gpu_left_milli[gpu] - request.gpu_milli);
      state.gpu_memory_left_mib[gpu] -= request.gpu_memory_mib;
    }
  }
  return taken;
}

// Fills `domain`'s nodes, each time the one that takes most of what is left, of equal ones the best
// score.
std::optional<Partial> Fill(const Cluster& cluster, const Scorer& scorer,
                            std::span<const Request> group, Partial partial,
                            std::span<const NodeIndex> domain) {
  while (!partial.waiting.empty()) {
    std::optional<Taken> best;
    NodeIndex best_node = 0;
    for (const NodeIndex node : domain) {
      // A node that is in use has taken all it can.
      if (std::ranges::find(partial.nodes, node) != partial.nodes.end()) continue;
      Taken taken = TakeInto(cluster, scorer, group, partial.waiting, node);
      if (taken.members.empty()) continue;
      if (best && (taken.members.size() < best->members.size() ||
                   (taken.members.size() == best->members.size() && taken.score >= best->score))) {
        continue;
      }
      best = std::move(taken);
      best_node = node;
    }
    if (!best) return std::nullopt;
    for (size_t i = 0; i < best->members.size(); ++i) {
      partial.places[best->members[i]] = {best_node, best_node, best->gpus[i]};
      std::erase(partial.waiting, best->members[i]);
    }
    partial.nodes.push_back(best_node);
    partial.score += best->score;
  }
  return partial;
}

}  // namespace

std::optional<std::vector<Place>> Placer::ChooseGroup(std::span<const Request> group) {
  Partial none;
  none.places.resize(group.size());
  none.waiting.resize(group.size());
  std::iota(none.waiting.begin(), none.waiting.end(), size_t{0});
  std::sort(none.waiting.begin(), none.waiting.end(), [&](size_t a, size_t b) {
    const int32_t gpus_a = group[a].TotalGpuMilli(), gpus_b = group[b].TotalGpuMilli();
    return gpus_a != gpus_b ? gpus_a > gpus_b : a < b;
  });
  std::map<uint32_t, std::vector<NodeIndex>> racks;
  std::vector<NodeIndex> all;
  for (NodeIndex node = 0; node < cluster_->size(); ++node) {
    if (cluster_->node(node).lost) continue;
    all.push_back(node);
    racks[cluster_->spec(node).rack].push_back(node);
  }
  // One node, then one rack; a group that fits one node fits its rack with one node, so racks find
  // both. Only where no rack will do, the cluster.
  std::optional<Partial> best;
  for (const auto& [rack, nodes] : racks) {
    auto filled = Fill(*cluster_, table_.scorer(), group, none, nodes);
    if (!filled) continue;
    if (best && (filled->nodes.size() > best->nodes.size() ||
                 (filled->nodes.size() == best->nodes.size() && filled->score >= best->score))) {
      continue;
    }
    best = std::move(filled);
  }
  if (!best && racks.size() > 1) best = Fill(*cluster_, table_.scorer(), group, none, all);
  if (!best) return std::nullopt;
  return std::move(best->places);
}

}  // namespace prorata::policy::placement
