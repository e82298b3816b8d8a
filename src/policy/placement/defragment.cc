#include "policy/placement/defragment.h"

#include <algorithm>
#include <bit>

namespace prorata::policy::placement {
namespace {

constexpr size_t kMaxKinds = 2 * ScoreTable::kMaxClasses;

}  // namespace

std::vector<Move> Defragmenter::Plan(size_t max_moves, int64_t min_gain_gpu_milli) {
  if (kinds_.size() > kMaxKinds) {  // most are of shares long gone
    kinds_.clear();
    nodes_.clear();
  }
  nodes_.resize(cluster_->size());
  std::vector<Move> plan;
  while (plan.size() < max_moves) {
    const auto move = BestMove(min_gain_gpu_milli);
    if (!move || !cluster_->Move(move->share, move->to)) break;
    plan.push_back(*move);
  }
  for (auto move = plan.rbegin(); move != plan.rend(); ++move) {
    cluster_->Move(move->share, move->from);
  }
  return plan;
}

uint32_t Defragmenter::KindOf(const Request& request) {
  const auto at = std::ranges::find(kinds_, request, &Kind::request);
  if (at != kinds_.end()) return static_cast<uint32_t>(at - kinds_.begin());
  kinds_.push_back({request});
  return static_cast<uint32_t>(kinds_.size() - 1);
}

void Defragmenter::Refresh(NodeIndex index) {
  Node& node = nodes_[index];
  node.change = cluster_->last_change(index);
  node.residents.clear();
  const Scorer& scorer = placer_->table().scorer();
  for (const ShareId id : cluster_->SharesOn(index)) {
    const Cluster::Share& share = cluster_->share(id);
    if (!share.movable || share.labels.Any() || share.place.host != index) continue;
    NodeState without = cluster_->node(index);
    without.cpu_left_milli += share.request.cpu_milli;
    without.memory_left_mib += share.request.memory_mib;
    for (uint32_t rest = share.place.gpus; rest != 0; rest &= rest - 1) {
      const int gpu = std::countr_zero(rest);
      without.gpu_left_milli[gpu] =
          static_cast<int16_t>(without.gpu_left_milli[gpu] + share.request.gpu_milli);
    }
    const NodeView view(cluster_->workload(), without);
    const int64_t keep = scorer.ScoreOf(share.request, index, without, view, share.place.gpus,
                                        share.request.cpu_milli);
    node.residents.push_back({id, KindOf(share.request), keep});
  }
}

void Defragmenter::RefreshKinds() {
  for (Kind& kind : kinds_) {
    const Tournament& scores = placer_->table().Scores(kind.request, false);
    kind.best_score = kind.other_score = Tournament::kAbsent;
    const auto best = scores.Best();
    if (!best) continue;
    kind.best = *best;
    kind.best_score = scores.score(*best);
    if (const auto other = scores.BestExcept(*best)) kind.other_score = scores.score(*other);
  }
}

std::optional<Move> Defragmenter::BestMove(int64_t min_gain_gpu_milli) {
  for (NodeIndex node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].change != cluster_->last_change(node)) Refresh(node);
  }
  RefreshKinds();
  int64_t best_gain = min_gain_gpu_milli * kScorePerGpuMilli - 1;
  std::optional<ShareId> best;
  for (NodeIndex node = 0; node < nodes_.size(); ++node) {
    for (const Resident& resident : nodes_[node].residents) {
      const Kind& kind = kinds_[resident.kind];
      const int64_t there = kind.best == node ? kind.other_score : kind.best_score;
      if (there == Tournament::kAbsent || resident.keep - there <= best_gain) continue;
      best_gain = resident.keep - there;
      best = resident.share;
    }
  }
  if (!best) return std::nullopt;
  const Cluster::Share& share = cluster_->share(*best);
  const auto to = placer_->ChooseExcept(share.request, share.place.node);
  return Move{*best, share.place, to->place, best_gain / kScorePerGpuMilli};
}

}  // namespace prorata::policy::placement
