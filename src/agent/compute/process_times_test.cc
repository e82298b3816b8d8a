#include "agent/compute/process_times.h"
#include "base/units.h"

#include <gtest/gtest.h>

namespace prorata::agent {
namespace {

constexpr pid_t kOne = 11;
constexpr pid_t kTwo = 22;

// NVML's clock is another than ours: a day apart.
constexpr uint64_t kDayUs = 86'400'000'000;
uint64_t At(int64_t ms) { return kDayUs + static_cast<uint64_t>(ms) * 1'000; }

class ProcessTimesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    now_ns_ = 1000 * kMs;
    EXPECT_FALSE(Take({{kOne, At(1000), 100}})) << "of an unknown span";
  }
  // The answer `ms` after the one before.
  std::optional<ProcessTimes::Figures> Take(const ProcessTimes::Samples& samples, int64_t ms = 0,
                                            bool idle = false) {
    now_ns_ += ms * kMs;
    return times_.Take(samples, idle, now_ns_);
  }
  using Ran = std::map<pid_t, int64_t>;
  static Ran RanOf(const ProcessTimes::Figures& figures) {
    Ran ran;
    for (const auto& [pid, of] : figures.ran) ran[pid] = of.ran_ns;
    return ran;
  }

  ProcessTimes times_;
  int64_t now_ns_ = 0;
};

TEST_F(ProcessTimesTest, ASampleIsThatPartOfTheSpanSinceTheOneBefore) {
  EXPECT_EQ(times_.since_us(), At(1000));
  const auto figures = Take({{kOne, At(1250), 60}, {kTwo, At(1250), 40}}, 250);
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->span_ns, 250 * kMs);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 150 * kMs}, {kTwo, 100 * kMs}}));
  EXPECT_EQ(times_.since_us(), At(1250));
}

TEST_F(ProcessTimesTest, SeveralSamplesOfAProcessAreTheirMean) {
  const auto figures =
      Take({{kOne, At(1200), 20}, {kTwo, At(1100), 10}, {kOne, At(1100), 40}, {kTwo, At(1200), 30}},
           200);
  ASSERT_TRUE(figures);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 60 * kMs}, {kTwo, 40 * kMs}}));
}

TEST_F(ProcessTimesTest, SamplesOfBeforeAreNotCountedAgain) {
  const auto figures =
      Take({{kOne, At(900), 100}, {kOne, At(1000), 100}, {kOne, At(1200), 10}}, 200);
  ASSERT_TRUE(figures);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 20 * kMs}}));
}

TEST_F(ProcessTimesTest, AProcessWithoutASampleRanNothingAndTheRestIsToldOfTheWholeTime) {
  auto figures = Take({{kTwo, At(1200), 50}}, 200);
  ASSERT_TRUE(figures);
  EXPECT_EQ(RanOf(*figures), (Ran{{kTwo, 100 * kMs}}));
  // Two looks at the H100, 200 ms apart, each with another process.
  figures = Take({{kOne, At(1400), 50}, {kTwo, At(1600), 50}}, 400);
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->span_ns, 400 * kMs);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 200 * kMs}, {kTwo, 200 * kMs}}));
  EXPECT_EQ(figures->ran.at(kOne).at_us, At(1400));
  EXPECT_EQ(figures->ran.at(kTwo).at_us, At(1600));
}

TEST_F(ProcessTimesTest, WholePercentsEvenOut) {
  // 33.3 %, as NVML rounds it.
  int64_t ran_ns = 0;
  const uint32_t rounded[] = {33, 34, 33, 33, 34, 33};
  for (int i = 0; i < 6; ++i) {
    ran_ns += Take({{kOne, At(1250 + 250 * i), rounded[i]}}, 250)->ran.at(kOne).ran_ns;
  }
  EXPECT_NEAR(static_cast<double>(ran_ns), 1500e6 / 3, 1e6);
}

TEST_F(ProcessTimesTest, PartsOfADeviceAreAddedUp) {
  const auto figures = Take({{kOne, At(1200), 30}, {kOne, At(1200), 20}}, 200);
  ASSERT_TRUE(figures);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 100 * kMs}}));
}

TEST_F(ProcessTimesTest, NoProcessAndNotAllTogetherRanMoreThanTheTimeThereWas) {
  auto figures = Take({{kOne, At(1200), 4'000'000'000}}, 200);
  ASSERT_TRUE(figures);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 200 * kMs}}));
  figures = Take({{kOne, At(1400), 100}, {kTwo, At(1400), 60}}, 200);
  ASSERT_TRUE(figures);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 125 * kMs}, {kTwo, 75 * kMs}}));
}

TEST_F(ProcessTimesTest, AClockThatStandsStillSaysNothingAndALaterAnswerCoversIt) {
  EXPECT_FALSE(Take({{kOne, At(1000), 90}}, 250));
  EXPECT_FALSE(Take({}, 250));
  const auto figures = Take({{kOne, At(1750), 50}}, 250);
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->span_ns, 750 * kMs);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 375 * kMs}}));
}

TEST_F(ProcessTimesTest, AClockThatGoesBackIsFollowed) {
  EXPECT_FALSE(Take({{kOne, At(-50'000), 90}}, 250));
  const auto figures = Take({{kOne, At(-49'750), 20}}, 250);
  ASSERT_TRUE(figures);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 50 * kMs}}));
}

TEST_F(ProcessTimesTest, NvmlIsAskedForEverythingNowAndThenInCaseItsClockWentBack) {
  int all = 0;
  for (int i = 0; i < 24; ++i) {
    all += times_.since_us() == 0;
    EXPECT_FALSE(Take({}, 50));
  }
  EXPECT_EQ(all, 3);
}

TEST_F(ProcessTimesTest, AClockThatJumpsAheadIsNoDeviceTime) {
  EXPECT_FALSE(Take({{kOne, At(3'600'000), 100}}, 250));
  EXPECT_FALSE(Take({{kOne, ~uint64_t{0}, 100}}, 250));
  EXPECT_FALSE(Take({{kOne, At(1000), 100}}, 250));
  EXPECT_TRUE(Take({{kOne, At(1250), 100}}, 250));
}

TEST_F(ProcessTimesTest, AfterALongOutageCountingStartsAgain) {
  EXPECT_FALSE(Take({{kOne, At(11'000), 100}}, 10'000));
  EXPECT_TRUE(Take({{kOne, At(11'250), 100}}, 250));
}

TEST_F(ProcessTimesTest, NoSamplesOfAnIdleDeviceAreAFigure) {
  for (int i = 0; i < 10; ++i) {
    const auto figures = Take({}, 1000, true);
    ASSERT_TRUE(figures);
    EXPECT_EQ(figures->span_ns, 1000 * kMs);
    EXPECT_TRUE(figures->ran.empty());
  }
  // Only what came after it is of the next samples' span.
  const auto figures = Take({{kOne, At(11'400), 50}}, 400);
  ASSERT_TRUE(figures);
  EXPECT_EQ(RanOf(*figures), (Ran{{kOne, 200 * kMs}}));
}

TEST(ProcessTimesOfNothingTest, WhatNeverGaveASampleHasNoFigures) {
  ProcessTimes times;
  for (int i = 1; i < 20; ++i) EXPECT_FALSE(times.Take({}, true, i * 250 * kMs));
}

}  // namespace
}  // namespace prorata::agent
