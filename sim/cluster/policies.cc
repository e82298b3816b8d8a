#include "sim/cluster/policies.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "sim/cluster/scorers.h"

namespace prorata::sim::cluster {
namespace {

using policy::placement::Cluster;
using policy::placement::FittingGpus;
using policy::placement::GpuMask;
using policy::placement::HostFits;
using policy::placement::kGpuMilli;
using policy::placement::NodeIndex;
using policy::placement::Place;
using policy::placement::Placer;
using policy::placement::Request;

std::vector<uint32_t> Ranks(Ties ties, size_t nodes, std::mt19937_64* random) {
  std::vector<uint32_t> ranks(nodes);
  std::iota(ranks.begin(), ranks.end(), 0u);
  if (ties == Ties::kReverse) std::ranges::reverse(ranks);
  if (ties == Ties::kShuffled) Shuffle(random, &ranks);
  return ranks;
}

// Looks at all nodes each time. A node's score is kept until the node changes, unless it is drawn.
class ScanPolicy : public Policy {
 public:
  ScanPolicy(std::unique_ptr<NodeScorer> scorer, bool keep, Ties ties, const Cluster& cluster,
             uint32_t kinds, std::mt19937_64* random)
      : scorer_(std::move(scorer)),
        keep_(keep),
        random_ties_(ties == Ties::kRandom),
        cluster_(&cluster),
        random_(random),
        ranks_(Ranks(ties, cluster.size(), random)) {
    kept_.resize(kinds);
  }

  std::optional<Place> Choose(uint32_t kind, const Request& request) override {
    std::vector<Kept>& kept = kept_[kind];
    if (kept.empty()) kept.resize(cluster_->size());
    const Kept* best = nullptr;
    NodeIndex best_node = 0;
    uint64_t ties = 0;
    for (NodeIndex node = 0; node < cluster_->size(); ++node) {
      Kept& one = kept[node];
      if (!keep_ || one.change != cluster_->last_change(node)) {
        one = {cluster_->last_change(node), false, {}};
        Score(request, node, &one);
      }
      if (!one.fits || (best != nullptr && one.score.score < best->score.score)) continue;
      if (best == nullptr || one.score.score > best->score.score) {
        ties = 1;
      } else if (random_ties_ ? Draw(random_, ++ties) != 0 : ranks_[node] > ranks_[best_node]) {
        continue;
      }
      best = &one;
      best_node = node;
    }
    if (best == nullptr) return std::nullopt;
    return Place{best_node, best_node, best->score.gpus};
  }

 private:
  struct Kept {
    uint64_t change = ~uint64_t{0};
    bool fits = false;
    NodeScore score = {};
  };

  void Score(const Request& request, NodeIndex node, Kept* one) {
    const auto& state = cluster_->node(node);
    if (!HostFits(request, state)) return;
    const GpuMask usable = request.gpu_count == 0 ? GpuMask{0} : FittingGpus(request, state);
    if (std::popcount(usable) < request.gpu_count) return;
    one->score = scorer_->Score(request, node, usable);
    one->fits = true;
  }

  std::unique_ptr<NodeScorer> scorer_;
  bool keep_;
  bool random_ties_;
  const Cluster* cluster_;
  std::mt19937_64* random_;
  std::vector<uint32_t> ranks_;
  std::vector<std::vector<Kept>> kept_;
};

class ProrataPolicy : public Policy {
 public:
  ProrataPolicy(Cluster* cluster, std::vector<uint32_t> ranks)
      : placer_(cluster, std::move(ranks)) {}

  std::optional<Place> Choose(uint32_t, const Request& request) override {
    const auto choice = placer_.Choose(request);
    if (!choice) return std::nullopt;
    return choice->place;
  }
  Placer* placer() override { return &placer_; }

 private:
  Placer placer_;
};

// The same scores without the tournament, for ties that are drawn each time.
class ProrataScorer : public NodeScorer {
 public:
  explicit ProrataScorer(const Cluster& cluster) : scorer_(cluster) {}
  NodeScore Score(const Request& request, NodeIndex node, GpuMask usable) override {
    const auto scored = scorer_.Score(request, node, usable);
    if (!scored) return {-1e300, 0};
    return {-static_cast<double>(scored->score), scored->gpus};
  }

 private:
  policy::placement::Scorer scorer_;
};

class DraScorer : public ProrataScorer {
 public:
  explicit DraScorer(const Cluster& cluster) : ProrataScorer(cluster), cluster_(&cluster) {}
  NodeScore Score(const Request& request, NodeIndex node, GpuMask usable) override {
    NodeScore scored = ProrataScorer::Score(request, node, usable);
    if (scored.gpus != 0) scored.gpus = Fullest(node, usable, request.gpu_count);
    return scored;
  }

 private:
  GpuMask Fullest(NodeIndex node, GpuMask usable, int32_t count) const {
    const auto& state = cluster_->node(node);
    const int32_t total_mib = cluster_->spec(node).gpu_memory_mib;
    const auto fullness = [&](int gpu) {
      const int32_t left_mib = state.gpu_memory_left_mib[gpu];
      const double memory = total_mib == 0 ? 0 : 1.0 - static_cast<double>(left_mib) / total_mib;
      return memory + 1.0 - static_cast<double>(state.gpu_left_milli[gpu]) / kGpuMilli;
    };
    std::vector<int> gpus;
    for (int i = 0; i < state.gpu_count; ++i) {
      if ((usable >> i & 1) != 0) gpus.push_back(i);
    }
    std::ranges::stable_sort(gpus, std::ranges::greater(), fullness);
    GpuMask taken = 0;
    for (int32_t i = 0; i < count; ++i) taken = static_cast<GpuMask>(taken | 1 << gpus[i]);
    return taken;
  }

  const Cluster* cluster_;
};

}  // namespace

const std::vector<std::string>& PolicyNames() {
  static const std::vector<std::string> names = {
      "random",          "dot-product",   "packing",   "clustering", "best-fit", "fgd",
      "fgd-random-ties", "gpu-admission", "kubeshare", "prorata",    "extender", "dra"};
  return names;
}

std::optional<PolicyKind> PolicyOf(std::string_view name) {
  const auto at = std::ranges::find(PolicyNames(), name);
  if (at == PolicyNames().end()) return std::nullopt;
  return static_cast<PolicyKind>(at - PolicyNames().begin());
}

std::string_view NameOf(PolicyKind kind) { return PolicyNames()[static_cast<size_t>(kind)]; }

bool IsProrata(PolicyKind kind) { return kind == PolicyKind::kProrata || ExpectsWorkload(kind); }

bool ExpectsWorkload(PolicyKind kind) {
  return kind == PolicyKind::kExtender || kind == PolicyKind::kDra;
}

std::unique_ptr<Policy> MakePolicy(PolicyKind kind, Ties ties, Cluster* cluster, uint32_t kinds,
                                   std::mt19937_64* random) {
  const bool dra = kind == PolicyKind::kDra;
  if (IsProrata(kind) && !dra && ties != Ties::kRandom) {
    return std::make_unique<ProrataPolicy>(cluster, Ranks(ties, cluster->size(), random));
  }
  std::unique_ptr<NodeScorer> scorer;
  if (dra) {
    scorer = std::make_unique<DraScorer>(*cluster);
  } else if (IsProrata(kind)) {
    scorer = std::make_unique<ProrataScorer>(*cluster);
  } else {
    scorer = MakeScorer(kind, *cluster, random);
  }
  const bool random_policy = kind == PolicyKind::kRandom;
  if (random_policy || kind == PolicyKind::kFgdRandomTies) ties = Ties::kRandom;
  return std::make_unique<ScanPolicy>(std::move(scorer), !random_policy, ties, *cluster, kinds,
                                      random);
}

uint64_t Draw(std::mt19937_64* random, uint64_t bound) {
  // By rejection, so that no value is likelier.
  const uint64_t most = std::mt19937_64::max() - std::mt19937_64::max() % bound;
  for (;;) {
    const uint64_t value = (*random)();
    if (value < most) return value % bound;
  }
}

}  // namespace prorata::sim::cluster
