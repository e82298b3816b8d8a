#include "policy/placement/score.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace prorata::policy::placement {
namespace {

GpuMask FreeGpus(const NodeState& state) {
  GpuMask free = 0;
  for (int i = 0; i < state.gpu_count; ++i) {
    free = static_cast<GpuMask>(free | (state.gpu_left_milli[i] == kGpuMilli) << i);
  }
  return free;
}

}  // namespace

std::optional<Scored> Scorer::Score(const Request& request, NodeIndex node, GpuMask allowed) const {
  const NodeState& state = cluster_->node(node);
  if (!HostFits(request, state)) return std::nullopt;
  return Score(request, node, state, NodeView(cluster_->workload(), state), allowed);
}

std::optional<Scored> Scorer::Score(const Request& request, NodeIndex node, const NodeState& state,
                                    const NodeView& view, GpuMask allowed) const {
  if (!HostFits(request, state)) return std::nullopt;
  if (request.gpu_count == 0) {
    return Scored{ScoreOf(request, node, state, view, 0, request.cpu_milli), 0};
  }
  const GpuMask usable = FittingGpus(request, state) & allowed;
  if (std::popcount(usable) < request.gpu_count) return std::nullopt;
  if (request.gpu_count > 1 || request.WholeGpus()) {
    const GpuMask gpus = ChooseSeveral(request, node, state, usable);
    if (gpus == 0) return std::nullopt;
    return Scored{ScoreOf(request, node, state, view, gpus, request.cpu_milli), gpus};
  }
  // A part of one GPU: GPUs with as much left are alike, but for what surrounds them.
  Scored best{std::numeric_limits<int64_t>::max(), 0};
  for (uint32_t rest = usable; rest != 0;) {
    const int16_t level = state.gpu_left_milli[std::countr_zero(rest)];
    GpuMask equal = 0;
    for (uint32_t others = rest; others != 0; others &= others - 1) {
      const int gpu = std::countr_zero(others);
      equal = static_cast<GpuMask>(equal | (state.gpu_left_milli[gpu] == level) << gpu);
    }
    rest &= ~uint32_t{equal};
    const GpuMask gpu = level == kGpuMilli ? cluster_->shape(node).Choose(equal, 1)
                                           : PreferBroken(node, state, equal);
    const int64_t score = ScoreOf(request, node, state, view, gpu, request.cpu_milli);
    if (score < best.score) best = {score, gpu};
  }
  return best;
}

int64_t Scorer::ScoreOf(const Request& request, NodeIndex node, const NodeState& state,
                        const NodeView& view, GpuMask gpus, int32_t host_cpu_milli) const {
  const Workload& workload = cluster_->workload();
  const int32_t cpu_left = state.cpu_left_milli - host_cpu_milli;
  const int32_t gpu_before = view.gpu_left_milli();
  const int32_t gpu_left = gpu_before - request.gpu_milli * std::popcount(gpus);
  int64_t wasted = view.AfterAll(cpu_left, gpus, request.gpu_milli) - view.fragmentation();
  if (cluster_->crowded()) {
    wasted +=
        workload.Stranded(cpu_left, gpu_left) - workload.Stranded(state.cpu_left_milli, gpu_before);
  }
  const int64_t fit =
      kBestFitGpuMilli *
      ((int64_t{cpu_left} << kWeightBits) / cluster_->max_cpu_milli() +
       (int64_t{gpu_left} << kWeightBits) / (int64_t{cluster_->max_gpu_count()} * kGpuMilli));
  int64_t damage = 0;
  const GpuMask free = gpus == 0 ? GpuMask{0} : FreeGpus(state);
  if ((gpus & free) != 0) {
    const Shape& shape = cluster_->shape(node);
    if (shape.max_damage() > 0) {
      damage = shape.Damage(free, gpus & free) * ((1 << kLinkBits) - 1) / shape.max_damage();
    }
  }
  return ((wasted + fit) << kLinkBits) + damage;
}

GpuMask Scorer::ChooseSeveral(const Request& request, NodeIndex node, const NodeState& state,
                              GpuMask usable) const {
  const Shape& shape = cluster_->shape(node);
  GpuMask gpus = 0;
  if (!request.WholeGpus() && shape.even()) {  // the fullest that fit
    for (int taken = 0; taken < request.gpu_count; ++taken) {
      int tightest = -1;
      for (uint32_t rest = usable & ~gpus; rest != 0; rest &= rest - 1) {
        const int gpu = std::countr_zero(rest);
        if (tightest < 0 || state.gpu_left_milli[gpu] < state.gpu_left_milli[tightest]) {
          tightest = gpu;
        }
      }
      gpus = static_cast<GpuMask>(gpus | 1u << tightest);
    }
  } else {
    gpus = shape.Choose(usable, request.gpu_count);
  }
  if (request.gpu_count > 1 && shape.Bottleneck(gpus) < request.min_bandwidth) return 0;
  return gpus;
}

// Of GPUs that are equally full, one whose neighbours are already in use: whole islands of links
// stay whole. The lowest of those.
GpuMask Scorer::PreferBroken(NodeIndex node, const NodeState& state, GpuMask equal) const {
  const Shape& shape = cluster_->shape(node);
  if (shape.even() || std::has_single_bit(equal)) return equal & static_cast<GpuMask>(-equal);
  const GpuMask free = FreeGpus(state);
  GpuMask best = 0;
  int64_t best_near = 0;
  for (uint32_t rest = equal; rest != 0; rest &= rest - 1) {
    const auto gpu = static_cast<GpuMask>(rest & -rest);
    int64_t near = 0;  // links to GPUs that are free
    for (uint32_t others = free; others != 0; others &= others - 1) {
      near += shape.Bottleneck(static_cast<GpuMask>(gpu | (others & -others)));
    }
    if (best != 0 && near >= best_near) continue;
    best = gpu;
    best_near = near;
  }
  return best;
}

}  // namespace prorata::policy::placement
