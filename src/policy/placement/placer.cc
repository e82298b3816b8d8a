#include "policy/placement/placer.h"

#include <algorithm>

namespace prorata::policy::placement {

std::optional<Choice> Placer::Choose(const Request& request, const Labels& labels) {
  if (labels.Any()) return ChooseLabelled(request, labels);
  const Tournament& scores = table_.Scores(request, false);
  const auto node = scores.Best();
  if (!node) return std::nullopt;
  const GpuMask allowed = static_cast<GpuMask>(~cluster_->node(*node).exclusive);
  const auto scored = table_.scorer().Score(request, *node, allowed);
  return Choice{{*node, *node, scored->gpus}, scored->score};
}

std::optional<Choice> Placer::ChooseExcept(const Request& request, NodeIndex without) {
  const auto node = table_.Scores(request, false).BestExcept(without);
  if (!node) return std::nullopt;
  const GpuMask allowed = static_cast<GpuMask>(~cluster_->node(*node).exclusive);
  const auto scored = table_.scorer().Score(request, *node, allowed);
  return Choice{{*node, *node, scored->gpus}, scored->score};
}

// Labels forbid GPUs, which can only make a node worse. So nodes are tried from the best on, until
// the next one, at its best, is no better than what was found.
std::optional<Choice> Placer::ChooseLabelled(const Request& request, const Labels& labels) {
  std::optional<Choice> best;
  const auto consider = [&](NodeIndex node) {
    const auto scored = table_.scorer().Score(request, node, cluster_->AllowedGpus(labels, node));
    if (scored && (!best || scored->score < best->score)) {
      best = Choice{{node, node, scored->gpus}, scored->score};
    }
  };
  if (const auto place = cluster_->AffinityPlace(labels.affinity)) {
    consider(place->node);
    return best;
  }
  const Tournament& scores = table_.Scores(request, labels.exclusion != 0);
  Tournament::Walk walk(scores);
  while (const auto node = walk.Next()) {
    // What links decide is not bounded so: the best-linked GPUs may be the forbidden ones.
    if (best && scores.score(*node) >> kLinkBits > best->score >> kLinkBits) break;
    consider(*node);
  }
  return best;
}

std::optional<Choice> Placer::ChooseRemote(const Request& request, const Labels& labels,
                                           NodeIndex host, std::span<const RemoteNode> nodes) {
  if (!HostFits(request, cluster_->node(host))) return std::nullopt;
  std::optional<Choice> best;
  if (const auto local =
          table_.scorer().Score(request, host, cluster_->AllowedGpus(labels, host))) {
    best = Choice{{host, host, local->gpus}, local->score};
  }
  // The GPU's node gives no CPU: there the share is one that asks for none.
  Request gpus_only = request;
  gpus_only.cpu_milli = 0;
  gpus_only.memory_mib = 0;
  // What it makes of the host's own GPUs counts, too.
  const NodeState& state = cluster_->node(host);
  const NodeView view(cluster_->workload(), state);
  const int64_t host_score = table_.scorer().ScoreOf({.cpu_milli = request.cpu_milli}, host, state,
                                                     view, 0, request.cpu_milli);
  for (const RemoteNode& remote : nodes) {
    if (remote.node == host) continue;
    const auto scored =
        table_.scorer().Score(gpus_only, remote.node, cluster_->AllowedGpus(labels, remote.node));
    if (!scored) continue;
    const int64_t score = scored->score + host_score + remote.cost_gpu_milli * kScorePerGpuMilli;
    if (!best || score < best->score) best = Choice{{remote.node, host, scored->gpus}, score};
  }
  return best;
}

}  // namespace prorata::policy::placement
