// Random histories: arrivals, departures, resizes, moves and node losses, in any order. Whatever
// happens, nothing is placed where it does not fit, no capacity is negative, and the scores that
// are kept are those computed anew.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <vector>

#include "policy/placement/batch.h"
#include "policy/placement/defragment.h"
#include "policy/placement/placer.h"

namespace prorata::policy::placement {
namespace {

class World {
 public:
  explicit World(uint32_t seed) : random_(seed), workload_(Entries()), cluster_(workload_) {
    const uint16_t linked = cluster_.AddShape(TwoIslands());
    const uint32_t nodes = 2 + Draw(30);
    for (uint32_t i = 0; i < nodes; ++i) {
      const bool islands = Draw(4) == 0;
      cluster_.AddNode({.cpu_milli = static_cast<int32_t>(8'000 * (1 + Draw(12))),
                        .memory_mib = static_cast<int32_t>(100 + Draw(1'000)),
                        .gpu_count = islands ? 8 : static_cast<int32_t>(Draw(9)),
                        .gpu_memory_mib = Draw(2) == 0 ? 0 : 1'000,
                        .model = static_cast<uint8_t>(Draw(3)),
                        .mode = Draw(8) == 0 ? GpuMode::kExclusive : GpuMode::kShared,
                        .shape = islands ? linked : uint16_t{0},
                        .rack = Draw(3)});
    }
    placer_.emplace(&cluster_);
  }

  void Step() {
    switch (Draw(10)) {
      case 0:
      case 1:
      case 2:
      case 3:
        Arrive();
        break;
      case 4:
      case 5:
        if (!shares_.empty()) Depart();
        break;
      case 6:
        if (!shares_.empty()) {
          cluster_.Resize(shares_[Draw(static_cast<uint32_t>(shares_.size()))], RandomRequest());
        }
        break;
      case 7:
        ArriveTogether();
        break;
      case 8:
        MoveSome();
        break;
      default:
        if (Draw(20) == 0) Lose();
    }
  }

  // Recomputes everything from the shares.
  void Check() {
    std::vector<NodeState> expected;
    for (NodeIndex i = 0; i < cluster_.size(); ++i) {
      const NodeState& state = cluster_.node(i);
      ASSERT_GE(state.cpu_left_milli, 0);
      ASSERT_GE(state.memory_left_mib, 0);
      int32_t cpu = cluster_.spec(i).cpu_milli, memory = cluster_.spec(i).memory_mib;
      std::array<int, kMaxGpusPerNode> used = {};
      for (const ShareId id : shares_) {
        const Cluster::Share& share = cluster_.share(id);
        ASSERT_TRUE(share.placed);
        if (share.place.host == i) {
          cpu -= share.request.cpu_milli;
          memory -= share.request.memory_mib;
        }
        if (share.place.node != i) continue;
        ASSERT_EQ(std::popcount(share.place.gpus), share.request.gpu_count);
        for (int gpu = 0; gpu < kMaxGpusPerNode; ++gpu) {
          if (share.place.gpus >> gpu & 1) used[gpu] += share.request.gpu_milli;
        }
      }
      ASSERT_EQ(state.cpu_left_milli, cpu);
      ASSERT_EQ(state.memory_left_mib, memory);
      for (int gpu = 0; gpu < state.gpu_count; ++gpu) {
        ASSERT_GE(state.gpu_left_milli[gpu], 0);
        ASSERT_GE(state.gpu_memory_left_mib[gpu], 0);
        ASSERT_EQ(state.gpu_left_milli[gpu], kGpuMilli - used[gpu]);
      }
    }
    CheckLabels();
  }

  void CheckScores() {
    for (int i = 0; i < 4; ++i) {
      const Request request = asked_[Draw(static_cast<uint32_t>(asked_.size()))];
      for (const bool exclusion : {false, true}) {
        const Tournament& scores = placer_->table().Scores(request, exclusion);
        const Scorer fresh(cluster_);
        int64_t best = Tournament::kAbsent;
        for (NodeIndex node = 0; node < cluster_.size(); ++node) {
          const GpuMask allowed =
              exclusion ? GpuMask{0xffff} : static_cast<GpuMask>(~cluster_.node(node).exclusive);
          const auto scored = fresh.Score(request, node, allowed);
          const int64_t expected = scored ? scored->score : Tournament::kAbsent;
          ASSERT_EQ(scores.score(node), expected) << "node " << node;
          best = std::min(best, expected);
        }
        const auto winner = scores.Best();
        ASSERT_EQ(winner.has_value(), best != Tournament::kAbsent);
        if (winner) {
          ASSERT_EQ(scores.score(*winner), best);
        }
      }
    }
  }

 private:
  static std::vector<WorkloadEntry> Entries() {
    return {{{.cpu_milli = 4'000, .gpu_count = 1, .gpu_milli = 300}, 4},
            {{.cpu_milli = 8'000, .gpu_count = 1, .gpu_milli = 500, .models = 0b011}, 3},
            {{.cpu_milli = 9'000, .gpu_count = 1, .gpu_milli = 1000}, 5},
            {{.cpu_milli = 20'000, .gpu_count = 2, .gpu_milli = 1000}, 2},
            {{.cpu_milli = 12'000}, 2}};
  }

  static Shape TwoIslands() {
    std::vector<int32_t> links(64, 8);
    for (int a = 0; a < 8; ++a) {
      for (int b = 0; b < 8; ++b) links[a * 8 + b] = a / 4 == b / 4 ? 50 : 8;
    }
    constexpr std::array<int64_t, 5> kWeights = {5, 2, 1, 1, 0};
    return Shape(8, links, kWeights);
  }

  uint32_t Draw(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }

  Request RandomRequest() {
    if (!asked_.empty() && Draw(3) != 0) return asked_[Draw(static_cast<uint32_t>(asked_.size()))];
    Request request = {.cpu_milli = static_cast<int32_t>(1'000 * Draw(20)),
                       .memory_mib = static_cast<int32_t>(Draw(100))};
    if (Draw(5) != 0) {
      request.gpu_count = Draw(3) == 0 ? static_cast<int32_t>(1 + Draw(5)) : 1;
      request.gpu_milli = Draw(3) == 0 ? kGpuMilli : static_cast<int32_t>(50 * (1 + Draw(20)));
      request.gpu_memory_mib = Draw(4) == 0 ? static_cast<int32_t>(Draw(900)) : 0;
      request.min_bandwidth = request.gpu_count > 1 && Draw(3) == 0 ? 50 : 0;
      if (Draw(4) == 0) request.models = 1u << Draw(3);
    }
    asked_.push_back(request);
    return request;
  }

  Labels RandomLabels() {
    Labels labels;
    if (Draw(3) != 0) return labels;
    if (Draw(3) == 0) labels.affinity = 1 + Draw(3);
    if (Draw(3) == 0) labels.anti_affinity = 1 + Draw(3);
    if (Draw(3) == 0) labels.exclusion = 1 + Draw(2);
    return labels;
  }

  void Arrive() {
    const Request request = RandomRequest();
    const Labels labels = request.gpu_count == 1 ? RandomLabels() : Labels{};
    std::optional<Choice> choice;
    if (Draw(5) == 0) {
      const NodeIndex host = Draw(static_cast<uint32_t>(cluster_.size()));
      std::vector<RemoteNode> remote;
      for (int i = 0; i < 4; ++i)
        remote.push_back({Draw(static_cast<uint32_t>(cluster_.size())), 20});
      choice = placer_->ChooseRemote(request, labels, host, remote);
    } else {
      choice = placer_->Choose(request, labels);
      ExpectBest(request, labels, choice);
    }
    if (!choice) return;
    const auto share = cluster_.Add(request, labels, choice->place, Draw(2) == 0);
    ASSERT_TRUE(share) << "what was chosen does not fit";
    shares_.push_back(*share);
  }

  // Nothing is better, by a look at every node.
  void ExpectBest(const Request& request, const Labels& labels,
                  const std::optional<Choice>& choice) {
    const Scorer scorer(cluster_);
    int64_t best = Tournament::kAbsent;
    for (NodeIndex node = 0; node < cluster_.size(); ++node) {
      const auto scored = scorer.Score(request, node, cluster_.AllowedGpus(labels, node));
      if (scored) best = std::min(best, scored->score);
    }
    ASSERT_EQ(choice.has_value(), best != Tournament::kAbsent);
    if (choice) {
      ASSERT_EQ(choice->score, best);
    }
  }

  void ArriveTogether() {
    if (Draw(2) == 0) {
      std::vector<Waiting> batch;
      for (uint32_t i = 0; i <= Draw(6); ++i) batch.push_back({RandomRequest(), {}});
      for (const auto& share : PlaceBatch(batch, &cluster_, &*placer_)) {
        if (share) shares_.push_back(*share);
      }
      return;
    }
    std::vector<Request> group;
    for (uint32_t i = 0; i <= Draw(4); ++i) group.push_back(RandomRequest());
    const auto places = placer_->ChooseGroup(group);
    if (!places) return;
    for (size_t i = 0; i < group.size(); ++i) {
      const auto share = cluster_.Add(group[i], {}, (*places)[i]);
      ASSERT_TRUE(share) << "a member of a group does not fit beside the others";
      shares_.push_back(*share);
    }
  }

  void Depart() {
    const size_t which = Draw(static_cast<uint32_t>(shares_.size()));
    cluster_.Remove(shares_[which]);
    shares_.erase(shares_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void MoveSome() {
    if (!defragmenter_) defragmenter_.emplace(&cluster_, &*placer_);
    std::vector<NodeState> before;
    for (NodeIndex node = 0; node < cluster_.size(); ++node) before.push_back(cluster_.node(node));
    const auto plan = defragmenter_->Plan(3, 1);
    ASSERT_LE(plan.size(), 3u);
    for (NodeIndex node = 0; node < cluster_.size(); ++node) {
      ASSERT_EQ(before[node].gpu_left_milli, cluster_.node(node).gpu_left_milli) << "a plan moves";
    }
    for (const Move& move : plan) {
      ASSERT_TRUE(cluster_.share(move.share).movable);
      ASSERT_GE(move.gain_gpu_milli, 1);
      ASSERT_EQ(cluster_.share(move.share).place, move.from);
      ASSERT_TRUE(cluster_.Move(move.share, move.to));
    }
  }

  void Lose() {
    const auto lost = cluster_.LoseNode(Draw(static_cast<uint32_t>(cluster_.size())));
    for (const ShareId id : lost) std::erase(shares_, id);
  }

  void CheckLabels() {
    for (const ShareId a : shares_) {
      for (const ShareId b : shares_) {
        const Cluster::Share& one = cluster_.share(a);
        const Cluster::Share& other = cluster_.share(b);
        if (a == b || one.request.gpu_count == 0 || other.request.gpu_count == 0) continue;
        const bool one_gpu =
            one.place.node == other.place.node && (one.place.gpus & other.place.gpus) != 0;
        if (one_gpu) {
          ASSERT_EQ(one.labels.exclusion, other.labels.exclusion);
        }
        if (one_gpu && one.labels.anti_affinity != 0) {
          ASSERT_NE(one.labels.anti_affinity, other.labels.anti_affinity);
        }
        if (one.labels.affinity != 0 && one.labels.affinity == other.labels.affinity) {
          ASSERT_TRUE(one_gpu);
        }
      }
    }
  }

  std::mt19937 random_;
  Workload workload_;
  Cluster cluster_;
  std::optional<Placer> placer_;
  std::optional<Defragmenter> defragmenter_;
  std::vector<ShareId> shares_;
  std::vector<Request> asked_;
};

TEST(PlacementProperties, HoldAfterAnyHistory) {
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed);
    for (int step = 0; step < 120; ++step) {
      world.Step();
      if (::testing::Test::HasFatalFailure()) return;
      if (step % 4 == 0) world.Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    world.CheckScores();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(PlacementProperties, TheTournamentIsAScan) {
  std::mt19937 random(1);
  for (const uint32_t size : {1u, 2u, 3u, 7u, 64u, 100u}) {
    std::vector<uint32_t> ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0u);
    std::shuffle(ranks.begin(), ranks.end(), random);
    Tournament tournament(ranks);
    std::vector<int64_t> scores(size, Tournament::kAbsent);
    for (int step = 0; step < 500; ++step) {
      const uint32_t who = random() % size;
      scores[who] = random() % 4 == 0 ? Tournament::kAbsent : random() % 6;
      tournament.Set(who, scores[who]);
      const auto best_of = [&](std::optional<uint32_t> except) {
        std::optional<uint32_t> best;
        for (uint32_t i = 0; i < size; ++i) {
          if (i == except || scores[i] == Tournament::kAbsent) continue;
          if (!best || std::pair(scores[i], ranks[i]) < std::pair(scores[*best], ranks[*best]))
            best = i;
        }
        return best;
      };
      ASSERT_EQ(tournament.Best(), best_of(std::nullopt));
      ASSERT_EQ(tournament.BestExcept(who), best_of(who));
      Tournament::Walk walk(tournament);
      std::pair<int64_t, uint32_t> last{-1, 0};
      size_t seen = 0;
      while (const auto next = walk.Next()) {
        const std::pair at{scores[*next], ranks[*next]};
        ASSERT_LT(last, at);
        last = at;
        ++seen;
      }
      ASSERT_EQ(seen, size - static_cast<size_t>(std::ranges::count(scores, Tournament::kAbsent)));
    }
  }
}

}  // namespace
}  // namespace prorata::policy::placement
