#include "policy/placement/placer.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "policy/placement/batch.h"

namespace prorata::policy::placement {
namespace {

constexpr Request kHalf = {.cpu_milli = 4'000, .memory_mib = 8, .gpu_count = 1, .gpu_milli = 500};
constexpr Request kWhole = {.cpu_milli = 8'000, .memory_mib = 8, .gpu_count = 1, .gpu_milli = 1000};
constexpr Request kFour = {.cpu_milli = 32'000, .memory_mib = 8, .gpu_count = 4, .gpu_milli = 1000};

class PlacerTest : public ::testing::Test {
 protected:
  PlacerTest()
      : workload_(std::vector<WorkloadEntry>{{kHalf, 5}, {kWhole, 4}, {kFour, 1}}),
        cluster_(workload_) {}

  void AddNodes(int count,
                NodeSpec spec = {.cpu_milli = 96'000, .memory_mib = 1'000, .gpu_count = 8}) {
    for (int i = 0; i < count; ++i) cluster_.AddNode(spec);
  }
  Placer& placer() {
    if (!placer_) placer_.emplace(&cluster_);
    return *placer_;
  }
  std::optional<Place> Put(const Request& request, const Labels& labels = {}) {
    const auto choice = placer().Choose(request, labels);
    if (!choice) return std::nullopt;
    EXPECT_TRUE(cluster_.Add(request, labels, choice->place).has_value());
    return choice->place;
  }

  Workload workload_;
  Cluster cluster_;
  std::optional<Placer> placer_;
};

TEST_F(PlacerTest, TwoHalvesShareAGpu) {
  AddNodes(3);
  EXPECT_EQ(Put(kHalf), Put(kHalf));
}

TEST_F(PlacerTest, NothingWhereNothingFits) {
  AddNodes(1, {.cpu_milli = 96'000, .memory_mib = 1'000, .gpu_count = 2});
  EXPECT_FALSE(Put(kFour));
  EXPECT_FALSE(Put({.memory_mib = 1'001}));
  EXPECT_FALSE(Put({.gpu_count = 1, .gpu_milli = 100, .models = 0b10}));
  EXPECT_FALSE(Put({.gpu_count = 2, .gpu_milli = 1000, .min_bandwidth = 2}));
}

TEST_F(PlacerTest, AnExclusiveNodeTakesWholeGpusOnly) {
  AddNodes(1,
           {.cpu_milli = 96'000, .memory_mib = 1'000, .gpu_count = 2, .mode = GpuMode::kExclusive});
  EXPECT_FALSE(Put(kHalf));
  EXPECT_TRUE(Put(kWhole));
}

TEST_F(PlacerTest, GpuMemoryLimitsToo) {
  AddNodes(1, {.cpu_milli = 96'000, .memory_mib = 1'000, .gpu_count = 1, .gpu_memory_mib = 100});
  const Request small = {.gpu_count = 1, .gpu_milli = 100, .gpu_memory_mib = 60};
  EXPECT_TRUE(Put(small));
  EXPECT_FALSE(Put(small));
}

TEST_F(PlacerTest, PartsOfSeveralGpus) {
  AddNodes(1, {.cpu_milli = 96'000, .memory_mib = 1'000, .gpu_count = 4});
  ASSERT_EQ(Put(kHalf)->gpus, 0b0001);
  const auto place = Put({.gpu_count = 2, .gpu_milli = 300});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->gpus, 0b0011) << "the fullest that fit";
}

// CPU that is used up strands GPUs: a share that wants much CPU goes where there is too much of it.
TEST_F(PlacerTest, CpuIsNotTakenFromGpusThatNeedIt) {
  AddNodes(1);
  AddNodes(1, {.cpu_milli = 104'000, .memory_mib = 1'000, .gpu_count = 2});
  ASSERT_TRUE(Put(kWhole));  // from here on the cluster is crowded
  EXPECT_EQ(Put({.cpu_milli = 60'000})->node, 1u);
}

TEST_F(PlacerTest, AffinityIsOneGpu) {
  AddNodes(2);
  const Labels together = {.affinity = 7};
  const Request small = {.gpu_count = 1, .gpu_milli = 400};
  const auto first = Put(small, together);
  EXPECT_EQ(Put(small, together), first);
  EXPECT_FALSE(Put(small, together)) << "that GPU is full";
  EXPECT_TRUE(Put(small, {.affinity = 8}));
}

TEST_F(PlacerTest, AntiAffinityIsNeverOneGpu) {
  AddNodes(1, {.cpu_milli = 96'000, .memory_mib = 1'000, .gpu_count = 3});
  const Request small = {.gpu_count = 1, .gpu_milli = 100};
  GpuMask seen = 0;
  for (int i = 0; i < 3; ++i) {
    const auto place = Put(small, {.anti_affinity = 1});
    ASSERT_TRUE(place);
    EXPECT_EQ(seen & place->gpus, 0);
    seen = static_cast<GpuMask>(seen | place->gpus);
  }
  EXPECT_FALSE(Put(small, {.anti_affinity = 1}));
  EXPECT_TRUE(Put(small));
}

TEST_F(PlacerTest, ExclusionKeepsOthersOffTheGpu) {
  AddNodes(1, {.cpu_milli = 96'000, .memory_mib = 1'000, .gpu_count = 2});
  const Request small = {.gpu_count = 1, .gpu_milli = 400};
  const auto tenant = Put(small, {.exclusion = 1});
  ASSERT_TRUE(tenant);
  EXPECT_NE(Put(small)->gpus, tenant->gpus);
  EXPECT_EQ(Put(small, {.exclusion = 1})->gpus, tenant->gpus);
  EXPECT_FALSE(Put(small, {.exclusion = 2}));
  EXPECT_FALSE(Put(kWhole));
}

TEST_F(PlacerTest, RemoteIsTakenWhenThePathIsWorthIt) {
  AddNodes(3);
  ASSERT_TRUE(cluster_.Add(kHalf, {}, {1, 1, 0b1}));
  const std::vector<RemoteNode> near = {{1, 10}}, far = {{1, 100'000}};
  const auto used = placer().ChooseRemote(kHalf, {}, 0, near);
  ASSERT_TRUE(used);
  EXPECT_EQ(used->place, (Place{1, 0, 0b1})) << "the started GPU, over a cheap path";
  EXPECT_EQ(placer().ChooseRemote(kHalf, {}, 0, far)->place.node, 0u);
  const auto share = cluster_.Add(kHalf, {}, used->place);
  ASSERT_TRUE(share);
  EXPECT_EQ(cluster_.node(0).cpu_left_milli, 92'000);
  EXPECT_EQ(cluster_.node(1).cpu_left_milli, 92'000) << "of the first share";
  EXPECT_EQ(cluster_.node(1).gpu_left_milli[0], 0);
  EXPECT_EQ(cluster_.LoseNode(0), std::vector<ShareId>{*share}) << "it ran on node 0";
}

TEST_F(PlacerTest, AGroupIsPlacedWholeOrNotAtAll) {
  AddNodes(2, {.cpu_milli = 96'000, .memory_mib = 1'000, .gpu_count = 4});
  const std::vector<Request> three(3, kFour);
  EXPECT_FALSE(placer().ChooseGroup(three));
  const std::vector<Request> two(2, kFour);
  const auto places = placer().ChooseGroup(two);
  ASSERT_TRUE(places);
  EXPECT_NE((*places)[0].node, (*places)[1].node);
  for (const Place& place : *places) EXPECT_TRUE(cluster_.Add(kFour, {}, place));
}

TEST_F(PlacerTest, AGroupPrefersOneNodeThenOneRack) {
  NodeSpec spec = {.cpu_milli = 96'000, .memory_mib = 1'000, .gpu_count = 4};
  for (const uint32_t rack : {1u, 2u, 2u, 3u}) {
    spec.rack = rack;
    cluster_.AddNode(spec);
  }
  ASSERT_TRUE(cluster_.Add(kWhole, {}, {3, 3, 0b1}));
  const auto one = placer().ChooseGroup(std::vector<Request>(4, kWhole));
  ASSERT_TRUE(one);
  for (const Place& place : *one) EXPECT_EQ(place.node, one->front().node);
  const auto rack = placer().ChooseGroup(std::vector<Request>(2, kFour));
  ASSERT_TRUE(rack);
  for (const Place& place : *rack) EXPECT_EQ(cluster_.spec(place.node).rack, 2u);
}

TEST_F(PlacerTest, ABatchPlacesMoreThanItsOrderWould) {
  AddNodes(1, {.cpu_milli = 40'000, .memory_mib = 1'000, .gpu_count = 4});
  const Request greedy = {.cpu_milli = 40'000, .memory_mib = 8, .gpu_count = 1, .gpu_milli = 100};
  const std::vector<Waiting> batch = {{greedy, {}}, {kFour, {}}};
  const auto shares = PlaceBatch(batch, &cluster_, &placer());
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_FALSE(shares[0]);
  EXPECT_TRUE(shares[1]);
  EXPECT_EQ(cluster_.node(0).TotalGpuLeftMilli(), 0);
}

}  // namespace
}  // namespace prorata::policy::placement
