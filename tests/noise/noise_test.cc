#include "noise/noise.h"

#include <gtest/gtest.h>

namespace prorata::noise {
namespace {

constexpr Need kNeed{.span_us = 10'000,
                     .window_us = 1e6,
                     .wakes = 4,
                     .work_us = 100,
                     .load = 0.1,
                     .cpus = 1,
                     .points = 1,
                     .least_dilation = 1,
                     .most_dilation = 50};

Noise Late(double mean_us, double max_us = 0) {
  return {.wakes = 1000, .late_mean_us = mean_us, .late_max_us = max_us};
}

TEST(NoiseTest, SumsUpSamplesInAnyOrder) {
  Samples samples;
  for (int64_t i = 200; i > 0; --i) samples.late_ns.push_back(i * 1000);
  samples.gap_ns = {5'000'000, 15'000'000};
  samples.spun_ns = 100'000'000;
  const Noise noise = Summarize(samples);
  EXPECT_EQ(noise.wakes, 200u);
  EXPECT_DOUBLE_EQ(noise.late_mean_us, 100.5);
  EXPECT_DOUBLE_EQ(noise.late_median_us, 101);
  EXPECT_DOUBLE_EQ(noise.late_p99_us, 199);
  EXPECT_DOUBLE_EQ(noise.late_max_us, 200);
  EXPECT_DOUBLE_EQ(noise.stolen, 0.2);
  EXPECT_DOUBLE_EQ(noise.gap_max_us, 15'000);
}

TEST(NoiseTest, NothingMeasuredIsNotQuiet) {
  EXPECT_FALSE(ChooseDilation(Summarize({}), kNeed));
  EXPECT_FALSE(JudgeRun(Summarize({}), 0, kNeed, 10));
}

TEST(NoiseTest, SlowsDownUntilLateWakeUpsCostWhatTheyMay) {
  // 4 * 75 + 100 = 400 us of each 10 ms: 4 points.
  const Noise noise = Late(75);
  EXPECT_DOUBLE_EQ(ExpectedPoints(noise, kNeed, 1), 4);
  ASSERT_EQ(ChooseDilation(noise, kNeed).value_or(0), 4);
  EXPECT_DOUBLE_EQ(ExpectedPoints(noise, kNeed, 4), 1);
  EXPECT_EQ(ChooseDilation(Late(76), kNeed).value_or(0), 5);
}

TEST(NoiseTest, AShorterSpanNeedsMore) {
  Need need = kNeed;
  need.span_us = 1'000;
  EXPECT_EQ(ChooseDilation(Late(75), need).value_or(0), 40);
}

TEST(NoiseTest, NeverFasterThanRealTime) {
  EXPECT_EQ(ChooseDilation(Late(0), kNeed).value_or(0), 1);
  Need need = kNeed;
  need.least_dilation = 4;
  EXPECT_EQ(ChooseDilation(Late(0), need).value_or(0), 4);
}

TEST(NoiseTest, OneStallMustNotMoveTheWindow) {
  // 80 ms of a window of a second: 8 points.
  EXPECT_EQ(ChooseDilation(Late(1, 80'000), kNeed).value_or(0), 8);
  Noise gap = Late(1);
  gap.gap_max_us = 80'000;
  EXPECT_EQ(ChooseDilation(gap, kNeed).value_or(0), 8);
}

TEST(NoiseTest, StolenCpuMakesTheProgramsOwnWorkLonger) {
  Need need = kNeed;
  need.wakes = 0;
  need.work_us = 800;
  Noise noise = Late(0);
  EXPECT_EQ(ChooseDilation(noise, need).value_or(0), 8);
  noise.stolen = 0.2;
  EXPECT_EQ(ChooseDilation(noise, need).value_or(0), 10);
}

TEST(NoiseTest, AllProgramsCallsMustLeaveTheCpusHalfIdle) {
  Need need = kNeed;
  need.load = 6;
  need.cpus = 2;
  EXPECT_EQ(ChooseDilation(Late(0), need).value_or(0), 6);
  Noise noise = Late(0);
  noise.stolen = 0.2;
  EXPECT_EQ(ChooseDilation(noise, need).value_or(0), 8);
}

TEST(NoiseTest, RefusesWhatNoDilationMends) {
  const auto late = ChooseDilation(Late(2'000), kNeed);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, "noisy");
  EXPECT_NE(late.error().message.find("slowed down 81 times, more than 50"), std::string::npos)
      << late.error().message;
  EXPECT_NE(late.error().message.find("late by 2000 us"), std::string::npos);
  Noise stolen = Late(10);
  stolen.stolen = 0.36;
  const auto refused = ChooseDilation(stolen, kNeed);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("take 36 % of its CPUs"), std::string::npos)
      << refused.error().message;
}

TEST(NoiseTest, ARunIsTrustedWithinTwiceWhatWasAskedFor) {
  EXPECT_TRUE(JudgeRun(Late(75), 0, kNeed, 4));
  EXPECT_TRUE(JudgeRun(Late(75), 0, kNeed, 2));
  const Status late = JudgeRun(Late(76), 0, kNeed, 2);
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().message.find("the run was disturbed: late wake-ups may have cost 2.0"),
            std::string::npos)
      << late.error().message;
}

TEST(NoiseTest, ARunBesideOthersIsNotTrusted) {
  EXPECT_TRUE(JudgeRun(Late(10), 0.59, kNeed, 4));
  const Status others = JudgeRun(Late(10), 0.65, kNeed, 4);
  ASSERT_FALSE(others);
  EXPECT_NE(others.error().message.find("used 65 % of the CPUs"), std::string::npos);
}

}  // namespace
}  // namespace prorata::noise
