#include "policy/placement/score_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace prorata::policy::placement {

ScoreTable::ScoreTable(const Cluster& cluster, std::vector<uint32_t> tie_ranks)
    : cluster_(&cluster), scorer_(cluster), tie_ranks_(std::move(tie_ranks)) {
  if (tie_ranks_.empty()) {
    tie_ranks_.resize(cluster.size());
    std::iota(tie_ranks_.begin(), tie_ranks_.end(), 0u);
  }
  views_.resize(cluster.size());
}

size_t ScoreTable::KeyHash::operator()(const Key& key) const {
  uint64_t hash = key.exclusion_label ? 1 : 0;
  const auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  const Request& request = key.request;
  mix(static_cast<uint64_t>(request.cpu_milli) << 32 | static_cast<uint32_t>(request.memory_mib));
  mix(static_cast<uint64_t>(request.gpu_milli) << 32 | static_cast<uint32_t>(request.gpu_count));
  mix(static_cast<uint64_t>(request.gpu_memory_mib) << 32 |
      static_cast<uint32_t>(request.min_bandwidth));
  mix(request.models);
  return hash;
}

const Tournament& ScoreTable::Scores(const Request& request, bool exclusion_label) {
  const Key key{request, exclusion_label};
  auto at = classes_.find(key);
  if (at == classes_.end()) {
    if (classes_.size() >= kMaxClasses) {
      classes_.erase(std::ranges::min_element(
          classes_, {}, [](const auto& entry) { return entry.second->used; }));
    }
    at = classes_.emplace(key, std::make_unique<Class>(tie_ranks_)).first;
  }
  Class* one = at->second.get();
  one->used = ++asked_;
  Update(key, one);
  return one->scores;
}

uint64_t ScoreTable::steps() const {
  uint64_t steps = scored_;
  for (const auto& [key, one] : classes_) steps += one->scores.matches();
  return steps;
}

const NodeView& ScoreTable::ViewOf(NodeIndex node) {
  View& view = views_[node];
  if (view.change != cluster_->last_change(node)) {
    view.view.emplace(cluster_->workload(), cluster_->node(node));
    view.change = cluster_->last_change(node);
  }
  return *view.view;
}

int64_t ScoreTable::ScoreOf(const Key& key, NodeIndex node) {
  ++scored_;
  const NodeState& state = cluster_->node(node);
  if (!HostFits(key.request, state)) return Tournament::kAbsent;
  if (key.request.gpu_count > 0 && FittingGpus(key.request, state) == 0) {
    return Tournament::kAbsent;
  }
  const GpuMask allowed =
      key.exclusion_label ? GpuMask{0xffff} : static_cast<GpuMask>(~state.exclusive);
  const auto scored = scorer_.Score(key.request, node, state, ViewOf(node), allowed);
  return scored ? scored->score : Tournament::kAbsent;
}

void ScoreTable::Update(const Key& key, Class* one) {
  const uint64_t end = cluster_->log_end();
  if (one->seen == end) return;
  // More entries than nodes: look at the nodes instead. Always so the first time.
  if (one->seen < cluster_->log_begin() || end - one->seen > cluster_->size()) {
    const bool first = one->seen == 0;
    for (NodeIndex node = 0; node < cluster_->size(); ++node) {
      if (!first && cluster_->last_change(node) < one->seen) continue;
      one->scores.SetUnplayed(node, ScoreOf(key, node));
    }
    one->scores.Replay();
  } else {
    for (uint64_t number = one->seen; number < end; ++number) {
      const NodeIndex node = cluster_->log_entry(number);
      if (cluster_->last_change(node) != number) continue;  // it changed again: later
      one->scores.Set(node, ScoreOf(key, node));
    }
  }
  one->seen = end;
}

}  // namespace prorata::policy::placement
