#include "policy/placement/workload.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

namespace prorata::policy::placement {
namespace {

// FGD's definition, kind by kind.
int64_t ByDefinition(const Workload& workload, const NodeState& node) {
  int64_t total = 0;
  const int32_t left = node.TotalGpuLeftMilli();
  int64_t rest = kWeightOne;
  for (const Workload::Kind& kind : workload.kinds()) {
    int fits = 0, below = 0;
    for (int i = 0; i < node.gpu_count; ++i) {
      const bool enough = node.gpu_left_milli[i] >= kind.gpu_milli;
      fits += enough;
      below += enough ? 0 : node.gpu_left_milli[i];
    }
    const bool can = kind.gpu_count > 0 && (kind.models >> node.model & 1) != 0 &&
                     node.cpu_left_milli >= kind.cpu_milli && fits >= kind.gpu_count;
    total += kind.weight * (can ? below : left);
    rest -= kind.weight;
  }
  return total + rest * left;  // what rounding of the weights left
}

NodeState RandomNode(std::mt19937* random) {
  NodeState node;
  node.gpu_count = static_cast<uint8_t>(1 + (*random)() % 8);
  node.model = static_cast<uint8_t>((*random)() % 3);
  node.cpu_left_milli = static_cast<int32_t>((*random)() % 30) * 1'000;
  for (int i = 0; i < node.gpu_count; ++i) {
    node.gpu_left_milli[i] = static_cast<int16_t>((*random)() % 21 * 50);
  }
  return node;
}

TEST(Workload, FragmentationIsFgds) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<WorkloadEntry> entries;
    for (int i = 0; i < 20; ++i) {
      Request request = {.cpu_milli = static_cast<int32_t>(random() % 20) * 1'000};
      if (random() % 5 != 0) {
        request.gpu_count = random() % 4 == 0 ? 2 : 1;
        request.gpu_milli = random() % 2 == 0 ? 1000 : static_cast<int32_t>(1 + random() % 19) * 50;
        if (random() % 4 == 0) request.models = 0b101;
      }
      entries.push_back({request, static_cast<double>(1 + random() % 9)});
    }
    const Workload workload(entries);
    for (int i = 0; i < 50; ++i) {
      const NodeState node = RandomNode(&random);
      ASSERT_EQ(workload.Fragmentation(node), ByDefinition(workload, node));
      // After taking from a GPU it is what it would be had there been less.
      const NodeView view(workload, node);
      for (int gpu = 0; gpu < node.gpu_count; ++gpu) {
        if (node.gpu_left_milli[gpu] < 50) continue;
        NodeState after = node;
        after.gpu_left_milli[gpu] = static_cast<int16_t>(after.gpu_left_milli[gpu] - 50);
        after.cpu_left_milli /= 2;
        ASSERT_EQ(view.AfterAll(after.cpu_left_milli, static_cast<GpuMask>(1u << gpu), 50),
                  ByDefinition(workload, after));
      }
    }
  }
}

TEST(Workload, TheRarestKindsAreLeftOut) {
  const std::vector<WorkloadEntry> entries = {{{.gpu_count = 1, .gpu_milli = 500}, 95},
                                              {{.gpu_count = 1, .gpu_milli = 700}, 5}};
  EXPECT_EQ(Workload(entries).kinds().size(), 1u);
  EXPECT_EQ(Workload(entries, 1.0).kinds().size(), 2u);
}

TEST(Workload, GpusWithoutCpuAreStranded) {
  // 10 cores a GPU.
  const Workload workload(
      std::vector<WorkloadEntry>{{{.cpu_milli = 10'000, .gpu_count = 1, .gpu_milli = 1000}, 1}});
  EXPECT_EQ(workload.Stranded(80'000, 8'000) >> kWeightBits, 0);
  EXPECT_NEAR(static_cast<double>(workload.Stranded(20'000, 8'000) >> kWeightBits), 6'000, 2);
  EXPECT_EQ(workload.Stranded(0, 8'000), int64_t{8'000} << kWeightBits);
}

TEST(Workload, NoneFindsNothingFragmented) {
  NodeState node;
  node.gpu_count = 1;
  node.gpu_left_milli[0] = 300;
  EXPECT_EQ(Workload().Fragmentation(node), 0);
  EXPECT_EQ(Workload().Stranded(0, 300), 0);
}

}  // namespace
}  // namespace prorata::policy::placement
