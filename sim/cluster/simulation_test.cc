#include "sim/cluster/simulation.h"

#include <gtest/gtest.h>

#include "sim/cluster/simulate.h"

namespace prorata::sim::cluster {
namespace {

const std::string kOpenb = std::string(PRORATA_SOURCE_DIR) + "/bench/placement/openb/";

struct Openb {
  Nodes nodes;
  Pods pods;
};

const Openb& Trace() {
  static const Openb trace = [] {
    auto nodes = ReadNodes(kOpenb + "openb_node_list_gpu_node.csv", false);
    EXPECT_TRUE(nodes) << nodes.error().message;
    auto pods = ReadPods(kOpenb + "openb_pod_list_default.csv", nodes->models);
    EXPECT_TRUE(pods) << pods.error().message;
    return Openb{std::move(*nodes), std::move(*pods)};
  }();
  return trace;
}

// Mean of two seeds; the protocol of docs/reports/placement.md takes ten, and one seed's spread is
// 0.15 at most, so that two are within 0.3 of it.
double UnallocatedAt100(RunOptions options) {
  double sum = 0;
  for (const uint64_t seed : {42, 43}) {
    options.seed = seed;
    options.load = 1.02;
    sum += RunPolicy(Trace().nodes, Trace().pods, options).At(100).unallocated_percent;
  }
  return sum / 2;
}

TEST(Openb, IsWholeAndWhatTheFactsSay) {
  EXPECT_EQ(Trace().nodes.nodes.size(), 1'213u);
  EXPECT_EQ(Trace().nodes.GpuMilli(), 6'212'000);
  EXPECT_EQ(Trace().pods.pods.size(), 8'152u);
  EXPECT_TRUE(Trace().pods.has_times);
  const Floor floor = FloorOf(Trace().pods);
  EXPECT_EQ(floor.gpu_milli, 810);
  EXPECT_EQ(floor.shares, 1'078);
  EXPECT_NEAR(floor.left_percent, 3.36, 0.02);
}

TEST(Openb, OthersComeToWhatTheyPublished) {
  EXPECT_NEAR(UnallocatedAt100({.policy = PolicyKind::kFgd}), 4.77, 0.3);
  EXPECT_NEAR(UnallocatedAt100({.policy = PolicyKind::kBestFit}), 7.14, 0.3);
  EXPECT_NEAR(UnallocatedAt100({.policy = PolicyKind::kPacking}), 8.22, 0.4);
  EXPECT_NEAR(UnallocatedAt100({.policy = PolicyKind::kClustering}), 8.35, 0.4);
  EXPECT_NEAR(UnallocatedAt100({.policy = PolicyKind::kDotProduct}), 9.38, 0.4);
  EXPECT_NEAR(UnallocatedAt100({.policy = PolicyKind::kFgdRandomTies}), 10.0, 0.5);
  EXPECT_NEAR(UnallocatedAt100({.policy = PolicyKind::kRandom}), 13.7, 0.8);
}

TEST(Openb, ProrataWastesLessWhateverTheOrderOfTies) {
  double least = 100, most = 0;
  for (const Ties ties : {Ties::kShuffled, Ties::kName, Ties::kReverse, Ties::kRandom}) {
    const double wasted = UnallocatedAt100({.policy = PolicyKind::kProrata, .ties = ties});
    least = std::min(least, wasted);
    most = std::max(most, wasted);
  }
  EXPECT_LE(most, 4.75);
  EXPECT_LE(most - least, 0.1);
}

TEST(Openb, LookingAheadIsNoWorse) {
  const double one_by_one = UnallocatedAt100({});
  EXPECT_LE(UnallocatedAt100({.look_ahead = 32}), one_by_one + 0.02);  // two seeds' noise
}

TEST(Openb, MovesBringItBelowFour) {
  RunOptions options = {.load = 1.02, .move_every = 20};
  const RunResult result = RunPolicy(Trace().nodes, Trace().pods, options);
  EXPECT_LE(result.At(100).unallocated_percent, 4.1);  // one seed; ten are below 4.0
  EXPECT_GT(result.moves, 0);
  EXPECT_LE(result.moves, result.placed / 20 + 1);
}

TEST(Openb, WithDeparturesLessIsWastedThanByFgdOnEverySeed) {
  for (uint64_t seed = 42; seed < 44; ++seed) {
    RunOptions options = {.seed = seed, .arrivals = Arrivals::kTimes};
    const double ours = RunPolicy(Trace().nodes, Trace().pods, options).wasted_gpu_hours;
    options.policy = PolicyKind::kFgd;
    EXPECT_LT(ours, RunPolicy(Trace().nodes, Trace().pods, options).wasted_gpu_hours) << seed;
  }
}

TEST(Simulation, OneSeedIsOneResult) {
  for (const PolicyKind policy : {PolicyKind::kRandom, PolicyKind::kProrata}) {
    const RunOptions options = {.policy = policy, .seed = 7, .load = 1.0};
    const Nodes nodes = DrawNodes(Trace().nodes, 200, 7);
    const RunResult a = RunPolicy(nodes, Trace().pods, options);
    const RunResult b = RunPolicy(nodes, Trace().pods, options);
    ASSERT_EQ(a.points.size(), b.points.size());
    for (size_t i = 0; i < a.points.size(); ++i) {
      EXPECT_EQ(a.points[i].unallocated_percent, b.points[i].unallocated_percent);
    }
  }
}

Pods PodsOf(std::vector<Pod> pods) {
  Pods all;
  all.pods = std::move(pods);
  all.has_times = true;
  NumberKinds(&all);
  return all;
}

TEST(Simulation, WhoDoesNotFitWaitsForADeparture) {
  Nodes nodes;
  nodes.models = {"A"};
  nodes.nodes.push_back({"n", {.cpu_milli = 8'000, .memory_mib = 100, .gpu_count = 1}, ""});
  const policy::placement::Request whole = {.gpu_count = 1, .gpu_milli = 1000};
  const Pods pods =
      PodsOf({{"a", whole, 0, 0, 100}, {"b", whole, 0, 10, 100}, {"c", whole, 0, 20, 5}});
  for (const std::string& name : PolicyNames()) {
    const RunResult result =
        RunPolicy(nodes, pods, {.policy = *PolicyOf(name), .arrivals = Arrivals::kTimes});
    EXPECT_EQ(result.placed, 3) << name;
    EXPECT_EQ(result.waited, 2) << name;
    EXPECT_DOUBLE_EQ(result.longest_wait_s, 180) << name;
    EXPECT_DOUBLE_EQ(result.mean_wait_s, (90 + 180) / 3.0) << name;
  }
}

// As Kubernetes' allocator does with the slices of prorata's driver.
TEST(Simulation, DraTakesTheFullestGpuOfMemoryAndTime) {
  Nodes nodes;
  nodes.models = {"A"};
  nodes.nodes.push_back({"n", {.gpu_count = 2, .gpu_memory_mib = 1000}, ""});
  const auto share = [](const char* name, int32_t milli, int32_t mib) {
    return Pod{name, {.gpu_count = 1, .gpu_milli = milli, .gpu_memory_mib = mib}, 0, 0, 0};
  };
  // The third does not fit beside the first: it makes the second GPU the fullest (0.5 + 0.5 against
  // 0.8 + 0.1), so the fourth is there as well, and the fifth where there is memory left for it.
  const Pods pods = PodsOf({share("a", 700, 50), share("b", 100, 50), share("c", 500, 500),
                            share("d", 200, 100), share("e", 100, 800)});
  const RunResult result = RunPolicy(
      nodes, pods, {.policy = PolicyKind::kDra, .arrivals = Arrivals::kTrace, .note_gpus = true});
  ASSERT_EQ(result.gpus.size(), 2u);
  EXPECT_EQ(result.gpus[0].gpu_milli, 900);
  EXPECT_EQ(result.gpus[0].memory_mib, 900);
  EXPECT_EQ(result.gpus[1].gpu_milli, 700);
  EXPECT_EQ(result.gpus[1].memory_mib, 600);
}

TEST(Simulation, APlannerLearnsWhatSharingSaves) {
  const policy::placement::Request half = {.cpu_milli = 100, .gpu_count = 1, .gpu_milli = 500};
  std::vector<Pod> pods;
  for (int i = 0; i < 64; ++i) pods.push_back({"p" + std::to_string(i), half, 0, 0, 0});
  const Plan plan = PlanGpus(SyntheticNodes(), PodsOf(pods), Arrivals::kSampled);
  EXPECT_EQ(plan.gpus_shared, 32);
  EXPECT_EQ(plan.gpus_whole, 64);
}

TEST(Simulation, AClusterIsDrawnFromTheFilesNodes) {
  const Nodes some = DrawNodes(Trace().nodes, 100, 1);
  EXPECT_GE(some.GpuMilli(), 100'000);
  EXPECT_LT(some.GpuMilli(), 108'000);
  EXPECT_GE(DrawNodes(Trace().nodes, 20'000, 1).nodes.size(), 3'600u);
}

}  // namespace
}  // namespace prorata::sim::cluster
