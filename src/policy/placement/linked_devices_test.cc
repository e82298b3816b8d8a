#include "policy/placement/linked_devices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <tuple>

namespace prorata::policy {
namespace {

struct Machine {
  std::vector<PlacementDevice> devices;
  std::vector<uint32_t> ranks;

  explicit Machine(size_t count) : devices(count, {true, 100}), ranks(count * count, 1) {}
  void Link(size_t a, size_t b, uint32_t rank) {
    ranks[a * devices.size() + b] = ranks[b * devices.size() + a] = rank;
  }
  std::optional<std::vector<size_t>> Choose(size_t count) const {
    return ChooseLinked(devices, ranks, count);
  }
};

using Set = std::vector<size_t>;

// What linked_devices.h promises, said once more: every set is looked at.
std::optional<Set> ByBruteForce(const Machine& machine, size_t count) {
  using Worth = std::tuple<uint64_t, uint64_t, std::vector<std::pair<uint64_t, int64_t>>>;
  const size_t devices = machine.devices.size();
  std::optional<Set> best;
  Worth best_worth;
  for (uint32_t mask = 1; mask < 1u << devices; ++mask) {
    if (static_cast<size_t>(std::popcount(mask)) != count) continue;
    Set set;
    bool fits = true;
    for (size_t i = 0; i < devices; ++i) {
      if ((mask >> i & 1) == 0) continue;
      set.push_back(i);
      fits &= machine.devices[i].fits;
    }
    if (!fits) continue;
    uint64_t weakest = ~uint64_t{0}, sum = 0;
    for (size_t a = 0; a < set.size(); ++a) {
      for (size_t b = a + 1; b < set.size(); ++b) {
        const uint64_t rank = machine.ranks[set[a] * devices + set[b]];
        weakest = std::min(weakest, rank);
        sum += rank;
      }
    }
    // Most memory first; of equal ones the lower index counts more.
    std::vector<std::pair<uint64_t, int64_t>> left;
    for (const size_t i : set) {
      left.emplace_back(machine.devices[i].memory_left_bytes, -static_cast<int64_t>(i));
    }
    std::sort(left.rbegin(), left.rend());
    const Worth worth{weakest, sum, left};
    if (best && worth <= best_worth) continue;
    best = set;
    best_worth = worth;
  }
  return best;
}

TEST(ChooseLinked, OneDeviceIsTheOneWithMostMemoryLeft) {
  Machine machine(4);
  machine.devices[2].memory_left_bytes = 200;
  machine.devices[3] = {false, 300};
  EXPECT_EQ(machine.Choose(1), (Set{2}));
}

TEST(ChooseLinked, EqualDevicesGoByIndex) {
  EXPECT_EQ(Machine(4).Choose(1), (Set{0}));
  EXPECT_EQ(Machine(4).Choose(3), (Set{0, 1, 2}));
}

TEST(ChooseLinked, TwoDevicesAreTheBestLinkedThatFit) {
  Machine machine(4);
  machine.Link(0, 1, 9);
  machine.Link(2, 3, 5);
  machine.devices[2].memory_left_bytes = 500;
  EXPECT_EQ(machine.Choose(2), (Set{0, 1})) << "a link weighs more than memory";
  machine.devices[1].fits = false;
  EXPECT_EQ(machine.Choose(2), (Set{2, 3}));
}

TEST(ChooseLinked, TheWeakestLinkWeighsMoreThanAllTogether) {
  Machine machine(6);
  // 0, 1, 2: two very good links and a bad one. 3, 4, 5: three that are good enough.
  machine.Link(0, 1, 100);
  machine.Link(1, 2, 100);
  machine.Link(0, 2, 2);
  machine.Link(3, 4, 3);
  machine.Link(4, 5, 3);
  machine.Link(3, 5, 3);
  EXPECT_EQ(machine.Choose(3), (Set{3, 4, 5}));
}

TEST(ChooseLinked, TooFewThatFitIsNothing) {
  Machine machine(3);
  machine.devices[0].fits = false;
  EXPECT_EQ(machine.Choose(3), std::nullopt);
  EXPECT_EQ(machine.Choose(4), std::nullopt);
  EXPECT_EQ(machine.Choose(0), std::nullopt);
  EXPECT_EQ(ChooseLinked({}, {}, 1), std::nullopt);
}

TEST(ChooseLinked, IsWhatBruteForceFinds) {
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    std::mt19937 random(seed);
    Machine machine(1 + random() % 9);
    const size_t devices = machine.devices.size();
    const uint32_t classes = 1 + random() % 5;
    for (PlacementDevice& device : machine.devices) {
      device = {random() % 5 != 0, 1 + random() % 3};
    }
    for (size_t a = 0; a < devices; ++a) {
      for (size_t b = 0; b < a; ++b) machine.Link(a, b, random() % classes);
    }
    for (size_t count = 1; count <= devices; ++count) {
      EXPECT_EQ(machine.Choose(count), ByBruteForce(machine, count))
          << "seed " << seed << ", " << count << " of " << devices;
    }
  }
}

// Two boards of eight on an otherwise equal machine: more than a walk over all sets could do.
TEST(ChooseLinked, ManyDevicesStillGetAnAnswerAndAGoodOne) {
  Machine machine(64);
  for (size_t board = 0; board < 64; board += 8) {
    for (size_t a = board; a < board + 8; ++a) {
      for (size_t b = board; b < a; ++b) machine.Link(a, b, 10);
    }
  }
  machine.devices[3].fits = false;
  EXPECT_EQ(machine.Choose(8), (Set{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(machine.Choose(16)->size(), 16u);
}

}  // namespace
}  // namespace prorata::policy
