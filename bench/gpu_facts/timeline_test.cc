#include "bench/gpu_facts/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/gpu_facts/figure.h"

namespace prorata::gpufacts {
namespace {

constexpr uint64_t kSlice = 2'000'000;
constexpr uint64_t kSwitch = 100'000;

// Kernels of `length` back to back in two processes that alternate in slices, the way a device does
// it that cuts a kernel at the end of the slice and goes on with it in the next.
struct Alternation {
  std::vector<Stamp> stamps[2];
  Alternation(uint64_t length, int slices) {
    uint64_t now = 5'000'000'000;
    uint64_t left[2] = {length, length};
    uint64_t start[2] = {0, 0};
    for (int i = 0; i < slices; ++i, now += kSwitch) {
      const int who = i % 2;
      for (uint64_t budget = kSlice; budget > 0;) {
        if (left[who] == length) start[who] = now;
        const uint64_t piece = std::min(left[who], budget);
        now += piece;
        budget -= piece;
        left[who] -= piece;
        if (left[who] > 0) continue;
        stamps[who].push_back({start[who], now});
        left[who] = length;
      }
    }
  }
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 0.5);
}

TEST(Timeline, FindsSliceAndSwitchThoughKernelsAreCut) {
  const Alternation made(53'000, 40);
  const Slices turns = ReadSlices(made.stamps[0], made.stamps[1]);
  ASSERT_GT(turns.run_us.size(), 30u);
  EXPECT_NEAR(Median(turns.run_us), 2000, 106);
  EXPECT_NEAR(Median(turns.slice_us), 2100, 53);
  EXPECT_GE(*std::min_element(turns.gap_us.begin(), turns.gap_us.end()), 100);
  EXPECT_LE(*std::max_element(turns.gap_us.begin(), turns.gap_us.end()), 100 + 106);
  EXPECT_NEAR(turns.first_share, 0.5, 0.05);
}

TEST(Timeline, IsExactWhenSlicesEndBetweenKernels) {
  const Alternation made(50'000, 20);
  const Slices turns = ReadSlices(made.stamps[0], made.stamps[1]);
  ASSERT_FALSE(turns.run_us.empty());
  EXPECT_EQ(Median(turns.run_us), 2000);
  EXPECT_EQ(Median(turns.gap_us), 100);
}

TEST(Timeline, SaysNothingWhenOneWasAlone) {
  const std::vector<Stamp> kernels = {{100, 200}, {210, 300}};
  EXPECT_TRUE(ReadSlices(kernels, {}).run_us.empty());
  EXPECT_TRUE(ReadSlices(kernels, {{1000, 1100}, {1100, 1200}}).run_us.empty());
}

TEST(Timeline, GapsLeaveOutOverlapsAndTheStepIsTheLeastDifference) {
  const std::vector<Stamp> kernels = {{1000, 2024}, {2056, 3000}, {2900, 4000}, {4000, 4500}};
  EXPECT_EQ(Gaps(kernels), (std::vector<double>{32, 0}));
  EXPECT_EQ(ClockStep(kernels), 32u);
  EXPECT_EQ(ClockStep({}), 0u);
}

TEST(Figure, GivesMedianAndSpreadAndNoFigureWithoutSamples) {
  std::vector<double> samples;
  for (int i = 100; i >= 0; --i) samples.push_back(i);
  const nlohmann::json figure = Figure("us", samples);
  EXPECT_EQ(figure["samples"], 101);
  EXPECT_EQ(figure["median"], 50);
  EXPECT_EQ(figure["p10"], 10);
  EXPECT_EQ(figure["p90"], 90);
  EXPECT_EQ(figure["min"], 0);
  EXPECT_FALSE(Figure("us", {}).contains("median"));
}

}  // namespace
}  // namespace prorata::gpufacts
