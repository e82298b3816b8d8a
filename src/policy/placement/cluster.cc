#include "policy/placement/cluster.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace prorata::policy::placement {
namespace {

// What the log keeps, in times of the number of nodes: whoever fell further behind looks at all.
constexpr size_t kLogPerNode = 4;
constexpr size_t kLogLeast = 1024;

}  // namespace

uint16_t Cluster::AddShape(Shape shape) {
  shapes_.push_back(std::move(shape));
  return static_cast<uint16_t>(shapes_.size());
}

NodeIndex Cluster::AddNode(const NodeSpec& spec) {
  while (even_.size() < static_cast<size_t>(spec.gpu_count)) {
    even_.push_back(Shape::Even(static_cast<int>(even_.size()) + 1, workload_->weight_of_gpus()));
  }
  NodeState state;
  state.cpu_left_milli = spec.cpu_milli;
  state.memory_left_mib = spec.memory_mib;
  state.gpu_count = static_cast<uint8_t>(spec.gpu_count);
  state.model = spec.model;
  state.mode = spec.mode;
  state.shape = spec.shape;
  for (int i = 0; i < spec.gpu_count; ++i) {
    state.gpu_left_milli[i] = kGpuMilli;
    state.gpu_memory_left_mib[i] =
        spec.gpu_memory_mib > 0 ? spec.gpu_memory_mib : std::numeric_limits<int32_t>::max();
  }
  max_cpu_milli_ = std::max(max_cpu_milli_, spec.cpu_milli);
  max_gpu_count_ = std::max(max_gpu_count_, spec.gpu_count);
  const auto index = static_cast<NodeIndex>(states_.size());
  specs_.push_back(spec);
  states_.push_back(state);
  shares_on_.emplace_back();
  last_change_.push_back(0);
  gpu_milli_ += int64_t{spec.gpu_count} * kGpuMilli;
  Log(index);
  return index;
}

const Shape& Cluster::shape(NodeIndex index) const {
  const NodeState& state = states_[index];
  return state.shape == 0 ? even_[state.gpu_count - 1] : shapes_[state.shape - 1];
}

GpuMask Cluster::AllowedGpus(const Labels& labels, NodeIndex node) const {
  const NodeState& state = states_[node];
  GpuMask allowed = static_cast<GpuMask>((1u << state.gpu_count) - 1);
  if (labels.exclusion == 0) allowed &= static_cast<GpuMask>(~state.exclusive);
  if (labels.affinity != 0) {
    if (const auto at = affinity_.find(labels.affinity); at != affinity_.end()) {
      allowed &= at->second.place.node == node ? at->second.place.gpus : GpuMask{0};
    }
  }
  if (labels.exclusion == 0 && labels.anti_affinity == 0) return allowed;
  for (uint32_t rest = allowed & state.occupied; rest != 0; rest &= rest - 1) {
    const int gpu = std::countr_zero(rest);
    const auto at = labels_.find(GpuKey(node, gpu));
    bool ok = true;
    if (labels.exclusion != 0) {
      ok = at != labels_.end() && !at->second.of_shares.empty() &&
           at->second.of_shares.front().exclusion == labels.exclusion;
    }
    if (ok && labels.anti_affinity != 0 && at != labels_.end()) {
      ok = std::ranges::none_of(at->second.of_shares, [&](const Labels& other) {
        return other.anti_affinity == labels.anti_affinity;
      });
    }
    if (!ok) allowed &= static_cast<GpuMask>(~(1u << gpu));
  }
  return allowed;
}

std::optional<Place> Cluster::AffinityPlace(uint32_t affinity) const {
  const auto at = affinity_.find(affinity);
  if (affinity == 0 || at == affinity_.end()) return std::nullopt;
  return at->second.place;
}

bool Cluster::Fits(const Request& request, const Labels& labels, const Place& place) const {
  const NodeState& node = states_[place.node];
  if (node.lost || !HostFits(request, states_[place.host])) return false;
  if (std::popcount(place.gpus) != request.gpu_count) return false;
  if (request.gpu_count == 0) return true;
  const GpuMask usable = FittingGpus(request, node) & AllowedGpus(labels, place.node);
  if ((place.gpus & ~usable) != 0) return false;
  return request.gpu_count == 1 ||
         shape(place.node).Bottleneck(place.gpus) >= request.min_bandwidth;
}

std::optional<ShareId> Cluster::Add(const Request& request, const Labels& labels,
                                    const Place& place, bool movable) {
  if (!Fits(request, labels, place)) return std::nullopt;
  ShareId id;
  if (free_ids_.empty()) {
    id = static_cast<ShareId>(shares_.size());
    shares_.emplace_back();
    slot_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  shares_[id] = {request, labels, place, movable, true};
  slot_[id] = static_cast<uint32_t>(shares_on_[place.node].size());
  shares_on_[place.node].push_back(id);
  Apply(request, place, 1);
  if (labels.Any()) AddLabels(labels, place);
  UpdateOccupied(place.node);
  return id;
}

void Cluster::Remove(ShareId id) {
  Share& share = shares_[id];
  std::vector<ShareId>& there = shares_on_[share.place.node];
  slot_[there.back()] = slot_[id];
  there[slot_[id]] = there.back();
  there.pop_back();
  Apply(share.request, share.place, -1);
  if (share.labels.Any()) RemoveLabels(share.labels, share.place);
  UpdateOccupied(share.place.node);
  share.placed = false;
  free_ids_.push_back(id);
}

bool Cluster::Resize(ShareId id, const Request& request) {
  Share& share = shares_[id];
  if (request.gpu_count != share.request.gpu_count) return false;
  Apply(share.request, share.place, -1);
  // Its own labels would stand against it.
  const bool fits = Fits(request, {.exclusion = share.labels.exclusion}, share.place);
  if (fits) share.request = request;
  Apply(share.request, share.place, 1);
  return fits;
}

bool Cluster::Move(ShareId id, const Place& place) {
  const Share share = shares_[id];
  Remove(id);
  if (Add(share.request, share.labels, place, share.movable)) return true;
  Add(share.request, share.labels, share.place, share.movable);
  return false;
}

std::vector<ShareId> Cluster::LoseNode(NodeIndex node) {
  std::vector<ShareId> lost = shares_on_[node];
  // A share whose CPU is here and whose GPU is elsewhere ends, too.
  for (ShareId id = 0; id < shares_.size(); ++id) {
    const Share& share = shares_[id];
    if (share.placed && share.place.host == node && share.place.node != node) lost.push_back(id);
  }
  for (const ShareId id : lost) Remove(id);
  states_[node].lost = true;
  gpu_milli_ -= int64_t{states_[node].gpu_count} * kGpuMilli;
  UpdateCrowded();
  Log(node);
  return lost;
}

void Cluster::Apply(const Request& request, const Place& place, int sign) {
  NodeState& host = states_[place.host];
  host.cpu_left_milli -= sign * request.cpu_milli;
  host.memory_left_mib -= sign * request.memory_mib;
  NodeState& node = states_[place.node];
  for (uint32_t rest = place.gpus; rest != 0; rest &= rest - 1) {
    const int gpu = std::countr_zero(rest);
    node.gpu_left_milli[gpu] =
        static_cast<int16_t>(node.gpu_left_milli[gpu] - sign * request.gpu_milli);
    node.gpu_memory_left_mib[gpu] -= sign * request.gpu_memory_mib;
  }
  Log(place.node);
  if (place.host != place.node) Log(place.host);
  used_gpu_milli_ += int64_t{sign} * request.TotalGpuMilli();
  UpdateCrowded();
}

void Cluster::UpdateCrowded() {
  const int64_t percent = crowded_ ? kUncrowdedPercent : kCrowdedPercent;
  const bool crowded = 100 * used_gpu_milli_ >= percent * gpu_milli_;
  if (crowded == crowded_) return;
  crowded_ = crowded;
  for (NodeIndex node = 0; node < states_.size(); ++node) Log(node);
}

void Cluster::AddLabels(const Labels& labels, const Place& place) {
  for (uint32_t rest = place.gpus; rest != 0; rest &= rest - 1) {
    const int gpu = std::countr_zero(rest);
    labels_[GpuKey(place.node, gpu)].of_shares.push_back(labels);
    if (labels.exclusion != 0) {
      states_[place.node].exclusive =
          static_cast<GpuMask>(states_[place.node].exclusive | 1u << gpu);
    }
  }
  if (labels.affinity == 0) return;
  auto [at, added] = affinity_.try_emplace(labels.affinity, Affinity{place, 0});
  ++at->second.shares;
}

void Cluster::RemoveLabels(const Labels& labels, const Place& place) {
  for (uint32_t rest = place.gpus; rest != 0; rest &= rest - 1) {
    const int gpu = std::countr_zero(rest);
    const auto at = labels_.find(GpuKey(place.node, gpu));
    std::vector<Labels>& all = at->second.of_shares;
    all.erase(std::ranges::find(all, labels));
    if (!all.empty()) continue;
    labels_.erase(at);
    states_[place.node].exclusive &= static_cast<GpuMask>(~(1u << gpu));
  }
  if (labels.affinity == 0) return;
  const auto at = affinity_.find(labels.affinity);
  if (--at->second.shares == 0) affinity_.erase(at);
}

void Cluster::UpdateOccupied(NodeIndex node) {
  NodeState& state = states_[node];
  state.occupied = 0;
  for (const ShareId id : shares_on_[node]) {
    state.occupied = static_cast<GpuMask>(state.occupied | shares_[id].place.gpus);
  }
}

void Cluster::Log(NodeIndex node) {
  const size_t most = std::max(kLogLeast, kLogPerNode * states_.size());
  if (log_.size() >= 2 * most) {
    const auto drop = static_cast<std::ptrdiff_t>(log_.size() - most);
    log_.erase(log_.begin(), log_.begin() + drop);
    log_begin_ += static_cast<uint64_t>(drop);
  }
  last_change_[node] = log_end();
  log_.push_back(node);
}

}  // namespace prorata::policy::placement
