#include "policy/placement/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <tuple>
#include <vector>

namespace prorata::policy::placement {
namespace {

constexpr std::array<int64_t, 5> kWeights = {60, 20, 12, 8, 0};
constexpr std::array<int, 4> kSizes = {1, 2, 4, 8};

struct Machine {
  const char* name;
  int gpus;
  std::vector<int32_t> links;

  int32_t Link(int a, int b) const { return links[static_cast<size_t>(a * gpus + b)]; }
};

// NVLinks of a DGX-1 with V100s, times 25 GB/s; PCIe where there are none.
Machine Dgx1() {
  const std::vector<int32_t> nvlinks = {0, 1, 1, 2, 2, 0, 0, 0, 1, 0, 2, 1, 0, 2, 0, 0,
                                        1, 2, 0, 2, 0, 0, 1, 0, 2, 1, 2, 0, 0, 0, 0, 1,
                                        2, 0, 0, 0, 0, 1, 1, 2, 0, 2, 0, 0, 1, 0, 2, 1,
                                        0, 0, 1, 0, 1, 2, 0, 2, 0, 0, 0, 1, 2, 1, 2, 0};
  Machine machine{"DGX-1", 8, nvlinks};
  for (int32_t& link : machine.links) link = link > 0 ? 25 * link : 12;
  return machine;
}

Machine Even(const char* name, int gpus, int32_t link) {
  return {name, gpus, std::vector<int32_t>(static_cast<size_t>(gpus * gpus), link)};
}

Machine TwoSwitches() {
  Machine machine = Even("2 x 4 PCIe", 8, 8);
  for (int a = 0; a < 8; ++a) {
    for (int b = 0; b < 8; ++b) {
      if (a / 4 == b / 4) machine.links[static_cast<size_t>(a * 8 + b)] = 12;
    }
  }
  return machine;
}

std::vector<Machine> Machines() {
  return {Dgx1(), Even("8 NVSwitch", 8, 300), TwoSwitches(), Even("4 PCIe", 4, 12)};
}

std::vector<int> Members(uint32_t mask) {
  std::vector<int> members;
  for (; mask != 0; mask &= mask - 1) members.push_back(std::countr_zero(mask));
  return members;
}

// What topology.h promises, said once more from the links alone.
int32_t Bottleneck(const Machine& machine, uint32_t mask) {
  int32_t slowest = *std::ranges::max_element(machine.links);
  const auto members = Members(mask);
  for (const int a : members) {
    for (const int b : members) {
      if (a != b) slowest = std::min(slowest, machine.Link(a, b));
    }
  }
  return slowest;
}

int32_t Best(const Machine& machine, uint32_t free, int count) {
  int32_t best = 0;
  for (uint32_t mask = 1; mask < 1u << machine.gpus; ++mask) {
    if ((mask & ~free) != 0 || std::popcount(mask) != count) continue;
    best = std::max(best, Bottleneck(machine, mask));
  }
  return best;
}

// Best of all masks and sizes, found once.
class BruteForce {
 public:
  explicit BruteForce(const Machine& machine) : machine_(machine) {
    for (uint32_t mask = 0; mask < 1u << machine.gpus; ++mask) {
      auto& row = best_.emplace_back();
      for (size_t i = 0; i < kSizes.size(); ++i) row[i] = Best(machine, mask, kSizes[i]);
    }
  }

  uint32_t Choose(uint32_t free, int count) const {
    uint32_t best = 0;
    std::tuple<int32_t, int64_t, int64_t> best_worth;
    for (uint32_t mask = 1; mask < 1u << machine_.gpus; ++mask) {
      if ((mask & ~free) != 0 || std::popcount(mask) != count) continue;
      int64_t damage = 0, sum = 0;
      for (size_t i = 0; i < kSizes.size(); ++i) {
        damage += kWeights[i] * (best_[free][i] - best_[free & ~mask][i]);
      }
      for (const int a : Members(mask)) {
        for (const int b : Members(mask)) sum += a < b ? machine_.Link(a, b) : 0;
      }
      const std::tuple worth{Bottleneck(machine_, mask), -damage, sum};
      if (best != 0 && worth <= best_worth) continue;
      best = mask;
      best_worth = worth;
    }
    return best;
  }

 private:
  const Machine& machine_;
  std::vector<std::array<int32_t, 4>> best_;
};

TEST(Topology, EveryMaskIsWhatBruteForceFinds) {
  for (const Machine& machine : Machines()) {
    const Shape shape(machine.gpus, machine.links, kWeights);
    const BruteForce expected(machine);
    for (uint32_t free = 0; free < 1u << machine.gpus; ++free) {
      for (int count = 1; count <= machine.gpus; ++count) {
        ASSERT_EQ(shape.Choose(static_cast<GpuMask>(free), count), expected.Choose(free, count))
            << machine.name << ", " << count << " of " << free;
      }
    }
  }
}

TEST(Topology, OneGpuLeavesTheBestPairsWhole) {
  const Shape shape(8, TwoSwitches().links, kWeights);
  EXPECT_EQ(shape.Choose(0b1111'0001, 1), 0b0000'0001) << "the four of the other switch stay";
}

TEST(Topology, APairOfADgx1HasTwoLinks) {
  const Machine machine = Dgx1();
  const Shape shape(8, machine.links, kWeights);
  EXPECT_EQ(shape.Bottleneck(shape.Choose(0xff, 2)), 50);
  EXPECT_EQ(shape.Bottleneck(shape.Choose(0xff, 4)), 25);
}

TEST(Topology, TooFewIsNone) {
  const Shape shape = Shape::Even(4, kWeights);
  EXPECT_EQ(shape.Choose(0b0101, 3), 0);
  EXPECT_EQ(shape.Choose(0, 1), 0);
}

TEST(Topology, SixteenGpus) {
  Machine machine = Even("16", 16, 8);
  for (const int gpu : {3, 7, 11, 15}) {
    for (const int other : {3, 7, 11, 15}) {
      if (gpu != other) machine.links[static_cast<size_t>(gpu * 16 + other)] = 50;
    }
  }
  const Shape shape(16, machine.links, kWeights);
  EXPECT_EQ(shape.Choose(0xffff, 4), 1u << 3 | 1u << 7 | 1u << 11 | 1u << 15);
}

}  // namespace
}  // namespace prorata::policy::placement
