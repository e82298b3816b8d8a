#include "sim/cluster/scorers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace prorata::sim::cluster {
namespace {

using policy::placement::Cluster;
using policy::placement::GpuMask;
using policy::placement::kGpuMilli;
using policy::placement::NodeIndex;
using policy::placement::NodeState;
using policy::placement::NodeView;
using policy::placement::Request;

// By these the FGD authors' simulator makes vectors of a node and of a request comparable.
constexpr double kMaxCpuMilli = 128'000;
constexpr double kMaxGpuMilli = 8'000;

GpuMask Lowest(GpuMask gpus, int count) {
  GpuMask chosen = 0;
  for (uint32_t rest = gpus; count > 0; rest &= rest - 1, --count) {
    chosen = static_cast<GpuMask>(chosen | (rest & -rest));
  }
  return chosen;
}

// The fullest that fit.
GpuMask Tightest(const NodeState& node, GpuMask usable, int count) {
  GpuMask chosen = 0;
  for (int taken = 0; taken < count; ++taken) {
    int best = -1;
    for (uint32_t rest = usable & ~chosen; rest != 0; rest &= rest - 1) {
      const int gpu = std::countr_zero(rest);
      if (best < 0 || node.gpu_left_milli[gpu] < node.gpu_left_milli[best]) best = gpu;
    }
    chosen = static_cast<GpuMask>(chosen | 1u << best);
  }
  return chosen;
}

class Scorer : public NodeScorer {
 public:
  explicit Scorer(const Cluster& cluster) : cluster_(&cluster) {}

 protected:
  const NodeState& StateOf(NodeIndex node) const { return cluster_->node(node); }
  const Cluster* cluster_;
};

class RandomScorer : public Scorer {
 public:
  RandomScorer(const Cluster& cluster, std::mt19937_64* random)
      : Scorer(cluster), random_(random) {}

  NodeScore Score(const Request& request, NodeIndex, GpuMask usable) override {
    if (request.gpu_count != 1) return {0, Lowest(usable, request.gpu_count)};
    auto skip = Draw(random_, static_cast<uint64_t>(std::popcount(usable)));
    uint32_t rest = usable;
    for (; skip > 0; --skip) rest &= rest - 1;
    return {0, static_cast<GpuMask>(rest & -rest)};
  }

 private:
  std::mt19937_64* random_;
};

class DotProductScorer : public Scorer {
 public:
  using Scorer::Scorer;
  NodeScore Score(const Request& request, NodeIndex node, GpuMask usable) override {
    const NodeState& state = StateOf(node);
    const double product =
        state.cpu_left_milli / kMaxCpuMilli * (request.cpu_milli / kMaxCpuMilli) +
        state.TotalGpuLeftMilli() / kMaxGpuMilli * (request.TotalGpuMilli() / kMaxGpuMilli);
    return {std::floor(100 * (1 - product / 2)), Tightest(state, usable, request.gpu_count)};
  }
};

class BestFitScorer : public Scorer {
 public:
  using Scorer::Scorer;
  NodeScore Score(const Request& request, NodeIndex node, GpuMask usable) override {
    const NodeState& state = StateOf(node);
    const double left = (state.cpu_left_milli - request.cpu_milli) / kMaxCpuMilli / 2 +
                        (state.TotalGpuLeftMilli() - request.TotalGpuMilli()) / kMaxGpuMilli / 2;
    return {std::floor(100 * (1 - left)), Tightest(state, usable, request.gpu_count)};
  }
};

class PackingScorer : public Scorer {
 public:
  using Scorer::Scorer;
  NodeScore Score(const Request& request, NodeIndex node, GpuMask usable) override {
    if (request.gpu_count == 0) return {0, 0};
    const NodeState& state = StateOf(node);
    const GpuMask gpus = Tightest(state, usable, request.gpu_count);
    int free = 0, free_taken = 0;
    int64_t left_percent = 0;
    for (int i = 0; i < state.gpu_count; ++i) {
      const bool idle = state.gpu_left_milli[i] == kGpuMilli;
      free += idle;
      if ((gpus >> i & 1) == 0) continue;
      free_taken += idle;
      left_percent += state.gpu_left_milli[i] * 100 / kGpuMilli;
    }
    if (free == state.gpu_count) return {static_cast<double>(std::max(33 - free, free)), gpus};
    if (free_taken > 0) return {static_cast<double>(std::max(50 - free_taken, 33)), gpus};
    return {static_cast<double>(std::max<int64_t>(100 - left_percent / 10, 50)), gpus};
  }
};

class ClusteringScorer : public Scorer {
 public:
  using Scorer::Scorer;
  NodeScore Score(const Request& request, NodeIndex node, GpuMask usable) override {
    if (request.gpu_count == 0) return {0, 0};
    const NodeState& state = StateOf(node);
    bool same = false, other = false;
    for (const auto id : cluster_->SharesOn(node)) {
      const Request& there = cluster_->share(id).request;
      if (there.gpu_count == 0) continue;
      (SizeOf(there) == SizeOf(request) ? same : other) = true;
    }
    const int used = 25 * (8'000 - state.TotalGpuLeftMilli()) / 8'000;
    const int base = same ? (other ? 50 : 75) : (other ? 0 : 25);
    return {static_cast<double>(base + used), Tightest(state, usable, request.gpu_count)};
  }

 private:
  static int SizeOf(const Request& request) {
    return request.gpu_count == 1 && !request.WholeGpus() ? 0 : request.gpu_count;
  }
};

class FgdScorer : public Scorer {
 public:
  using Scorer::Scorer;
  NodeScore Score(const Request& request, NodeIndex node, GpuMask usable) override {
    const NodeState& state = StateOf(node);
    const NodeView view(cluster_->workload(), state);
    const int32_t cpu_left = state.cpu_left_milli - request.cpu_milli;
    if (request.gpu_count == 1 && !request.WholeGpus()) {
      NodeScore best{-1, 0};
      for (uint32_t rest = usable; rest != 0; rest &= rest - 1) {
        const auto gpu = static_cast<GpuMask>(rest & -rest);
        const double score = Rounded(view, view.AfterAll(cpu_left, gpu, request.gpu_milli));
        if (score > best.score) best = {score, gpu};
      }
      return best;
    }
    const GpuMask gpus = request.WholeGpus() ? Lowest(usable, request.gpu_count)
                                             : Tightest(state, usable, request.gpu_count);
    return {Rounded(view, view.AfterAll(cpu_left, gpus, request.gpu_milli)), gpus};
  }

 private:
  static double Rounded(const NodeView& view, int64_t after) {
    const double less = static_cast<double>(view.fragmentation() - after) /
                        (static_cast<double>(policy::placement::kWeightOne) * kGpuMilli);
    return std::floor(100 / (1 + std::exp(-less)));
  }
};

class GpuAdmissionScorer : public Scorer {
 public:
  using Scorer::Scorer;
  NodeScore Score(const Request& request, NodeIndex node, GpuMask usable) override {
    const NodeState& state = StateOf(node);
    if (request.gpu_count == 0) return {static_cast<double>(state.cpu_left_milli), 0};
    return {-static_cast<double>(state.TotalGpuLeftMilli()),
            Tightest(state, usable, request.gpu_count)};
  }
};

// What is no share of a GPU is placed by kube-scheduler's default: the least allocated node.
class KubeShareScorer : public Scorer {
 public:
  using Scorer::Scorer;
  NodeScore Score(const Request& request, NodeIndex node, GpuMask usable) override {
    const NodeState& state = StateOf(node);
    const double free = static_cast<double>(state.cpu_left_milli - request.cpu_milli) /
                        cluster_->spec(node).cpu_milli;
    const GpuMask gpus = Tightest(state, usable, request.gpu_count);
    if (request.gpu_count != 1 || request.WholeGpus()) return {free, gpus};
    const int left = state.gpu_left_milli[std::countr_zero(gpus)];
    return {left == kGpuMilli ? free : 2.0 + kGpuMilli - left, gpus};
  }
};

}  // namespace

std::unique_ptr<NodeScorer> MakeScorer(PolicyKind kind, const Cluster& cluster,
                                       std::mt19937_64* random) {
  switch (kind) {
    case PolicyKind::kRandom:
      return std::make_unique<RandomScorer>(cluster, random);
    case PolicyKind::kDotProduct:
      return std::make_unique<DotProductScorer>(cluster);
    case PolicyKind::kPacking:
      return std::make_unique<PackingScorer>(cluster);
    case PolicyKind::kClustering:
      return std::make_unique<ClusteringScorer>(cluster);
    case PolicyKind::kBestFit:
      return std::make_unique<BestFitScorer>(cluster);
    case PolicyKind::kFgd:
    case PolicyKind::kFgdRandomTies:
      return std::make_unique<FgdScorer>(cluster);
    case PolicyKind::kGpuAdmission:
      return std::make_unique<GpuAdmissionScorer>(cluster);
    case PolicyKind::kKubeShare:
      return std::make_unique<KubeShareScorer>(cluster);
    case PolicyKind::kProrata:
    case PolicyKind::kExtender:
    case PolicyKind::kDra:
      break;
  }
  return nullptr;
}

}  // namespace prorata::sim::cluster
