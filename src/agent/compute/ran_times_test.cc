#include "agent/compute/ran_times.h"
#include "base/units.h"

#include <gtest/gtest.h>

namespace prorata::agent {
namespace {

// Two shares, a of two processes and b of one, and a program outside.
class RanTimesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Pass(0, {{kA1, 1}});  // NVML's clock begins
    Pass(250, {{kA1, 1}});
  }

  // What NVML says of the last `ms`, in percent.
  void Pass(int64_t ms, const std::map<pid_t, uint32_t>& percents) {
    now_ns_ += ms * kMs;
    ProcessTimes::Samples samples;
    for (const auto& [pid, percent] : percents) {
      samples.push_back({pid, static_cast<uint64_t>(now_ns_ / 1'000), percent});
    }
    ran_.Take(samples, shares_, now_ns_);
  }
  double Busy(uint64_t share) { return ran_.Busy(share, now_ns_).value_or(-1); }
  double Others() { return ran_.Others(now_ns_).value_or(-1); }
  uint64_t BusyMs(uint64_t share) {
    return ran_.BusyNs(share, shares_.own_ns.at(share), now_ns_) / kMs;
  }
  void Measured(uint64_t share, uint64_t ms) { shares_.own_ns.at(share) += ms * kMs; }

  static constexpr uint64_t kA = 1, kB = 2;
  static constexpr pid_t kA1 = 101, kA2 = 102, kB1 = 201, kOutside = 300;
  RanTimes::Shares shares_{{{kA1, kA}, {kA2, kA}, {kB1, kB}}, {{kA, 0}, {kB, 0}}};
  int64_t now_ns_ = 5000 * kMs;
  RanTimes ran_;
};

TEST_F(RanTimesTest, MembersAreTheirShareAndTheRestIsOthers) {
  for (int i = 0; i < 20; ++i) {
    Measured(kA, 75);
    Measured(kB, 25);
    Pass(250, {{kA1, 10}, {kA2, 20}, {kB1, 15}, {kOutside, 40}});
  }
  EXPECT_DOUBLE_EQ(Busy(kA), 0.30);
  EXPECT_DOUBLE_EQ(Busy(kB), 0.10);
  EXPECT_DOUBLE_EQ(Others(), 0.40);
  EXPECT_EQ(Busy(77), -1);
}

// Each takes what the others run in the middle of its kernels for its own.
TEST_F(RanTimesTest, TogetherTheyHaveWhatOthersLeave) {
  for (int i = 0; i < 20; ++i) {
    Measured(kA, 250);
    Measured(kB, 250);
    // NVML's looks meet the one outside in two of five.
    Pass(250, i % 5 < 2 ? std::map<pid_t, uint32_t>{{kOutside, 100}}
                        : std::map<pid_t, uint32_t>{{kA1, 100}});
  }
  EXPECT_DOUBLE_EQ(Others(), 0.40);
  EXPECT_DOUBLE_EQ(Busy(kA), 0.30);
  EXPECT_DOUBLE_EQ(Busy(kB), 0.30);
}

// Idle before, they are not shown as more than the device now.
TEST_F(RanTimesTest, TogetherTheyHaveNoMoreThanTheDeviceInTheSecondThatIsShown) {
  for (int i = 0; i < 20; ++i) Pass(250, {{kA1, 1}});
  for (int i = 0; i < 8; ++i) {
    Measured(kA, 250);
    Measured(kB, 125);
    Pass(250, {{kA1, 100}});
    EXPECT_LE(Busy(kA) + Busy(kB), 1.001) << "after answer " << i;
  }
  EXPECT_NEAR(Busy(kA), 0.667, 0.001);
  EXPECT_NEAR(Busy(kB), 0.333, 0.001);
}

// A member alone is looked at ten times a second: an answer has two or three of its looks.
TEST_F(RanTimesTest, WhatIsMeasuredInLumpsIsAllCounted) {
  for (int i = 0; i < 20; ++i) {
    Measured(kA, i % 2 == 0 ? 200 : 300);
    Pass(250, {{kA1, 100}});
  }
  EXPECT_DOUBLE_EQ(Busy(kA), 1);
  EXPECT_NEAR(static_cast<double>(BusyMs(kA)), 20 * 250, 50);
  Measured(kA, 300);
  Pass(250, {{kA1, 100}});
  for (int i = 0; i < 20; ++i) Pass(250, {});
  EXPECT_EQ(Busy(kA), 0);
  EXPECT_EQ(BusyMs(kA), 20u * 250 + 300);
}

// NVML's driver looks five times a second, and is asked about four times: an answer is of 0.2 or
// 0.4 s. What members measured is of the time between answers.
TEST_F(RanTimesTest, WhatIsMeasuredIsOfTheTimeBetweenAnswers) {
  constexpr int64_t kLookMs = 200;
  for (int i = 0; i < 40; ++i) {
    Measured(kA, 120);
    now_ns_ += 240 * kMs;
    const int64_t look_ms = now_ns_ / kMs / kLookMs * kLookMs;
    ran_.Take({{kA1, static_cast<uint64_t>(look_ms) * 1'000, 50}}, shares_, now_ns_);
    if (i < 4) continue;
    EXPECT_NEAR(Busy(kA), 0.50, 0.001) << "after answer " << i;
  }
  EXPECT_EQ(BusyMs(kA), 40u * 120);
}

TEST_F(RanTimesTest, FiguresAreOfTheLastSecondAndOfOthersOfFive) {
  for (int i = 0; i < 40; ++i) Measured(kA, 200), Pass(250, {{kOutside, 10}});
  for (int i = 0; i < 2; ++i) Measured(kA, 50), Pass(250, {{kOutside, 10}});
  EXPECT_DOUBLE_EQ(Busy(kA), 0.50);
  for (int i = 0; i < 10; ++i) Measured(kA, 50), Pass(250, {{kOutside, 20}});
  EXPECT_DOUBLE_EQ(Others(), 0.15);
  for (int i = 0; i < 10; ++i) Measured(kA, 50), Pass(250, {{kOutside, 20}});
  EXPECT_DOUBLE_EQ(Busy(kA), 0.20);
  EXPECT_DOUBLE_EQ(Others(), 0.20);
}

TEST_F(RanTimesTest, AMemberThatEndedIsNobodyElseUntilNvmlForgetsIt) {
  Pass(250, {{kB1, 40}});
  shares_.members.erase(kB1);
  Pass(250, {{kB1, 40}});
  Pass(250, {{kB1, 40}});
  EXPECT_DOUBLE_EQ(Others(), 0);
  Pass(250, {{kA1, 1}});
  // Another program has its process id now.
  for (int i = 0; i < 20; ++i) Pass(250, {{kB1, 40}});
  EXPECT_DOUBLE_EQ(Others(), 0.40);
}

TEST_F(RanTimesTest, AShareThatIsGoneIsForgotten) {
  Pass(250, {{kB1, 40}});
  shares_.own_ns.erase(kB);
  for (int i = 0; i < 20; ++i) Pass(250, {{kB1, 40}});
  EXPECT_EQ(Busy(kB), -1);
  EXPECT_DOUBLE_EQ(Others(), 0.40);
  for (const RanTimes::Look& look : ran_.TakeLooks()) EXPECT_NE(look.share, kB);
}

TEST_F(RanTimesTest, BusyTimeIsMeasuredAndNeverGoesBack) {
  Measured(kA, 100);
  Pass(250, {{kA1, 100}});
  EXPECT_EQ(BusyMs(kA), 100u);
  // Half of what it measures is another's.
  const auto halves = [this] {
    for (int i = 0; i < 20; ++i) {
      Measured(kA, 250);
      Pass(250, i % 2 == 0 ? std::map<pid_t, uint32_t>{{kOutside, 100}}
                           : std::map<pid_t, uint32_t>{{kA1, 100}});
    }
  };
  halves();
  const uint64_t half = BusyMs(kA);
  halves();
  EXPECT_NEAR(static_cast<double>(BusyMs(kA) - half), 2500, 10);
  // NVML says nothing for three seconds, in which the members measured two.
  const uint64_t begin = BusyMs(kA);
  uint64_t before = begin;
  for (int i = 0; i < 12; ++i) {
    Measured(kA, 2000 / 12 + 1);
    Pass(250, {});
    EXPECT_GE(BusyMs(kA), before);
    before = BusyMs(kA);
  }
  EXPECT_EQ(Busy(kA), -1);
  EXPECT_NEAR(static_cast<double>(before - begin), 2000, 20);
  for (int i = 0; i < 4; ++i) {
    Measured(kA, 50);
    Pass(250, {{kA1, 20}});
    EXPECT_GE(BusyMs(kA), before);
    before = BusyMs(kA);
  }
  EXPECT_NEAR(static_cast<double>(before - begin), 2000 + 200, 20);
}

TEST_F(RanTimesTest, NoSamplesAreAnIdleDeviceIfItsMembersSayTheSame) {
  for (int i = 0; i < 4; ++i) Measured(kA, 125), Pass(250, {{kA1, 50}, {kOutside, 50}});
  for (int i = 0; i < 20; ++i) Pass(250, {});
  EXPECT_EQ(Busy(kA), 0);
  EXPECT_EQ(Others(), 0);
  for (int i = 0; i < 20; ++i) {
    Measured(kA, 200);
    Pass(250, {});
  }
  EXPECT_EQ(Busy(kA), -1);
  EXPECT_EQ(Others(), -1);
}

TEST_F(RanTimesTest, EachLookAtAShareIsGivenOnce) {
  int64_t a_ns = 0;
  for (int i = 0; i < 40; ++i) {
    Pass(250, {{kA1, 60}, {kOutside, 40}});
    const auto looks = ran_.TakeLooks();
    ASSERT_EQ(looks.size(), 1u);
    EXPECT_EQ(looks[0].share, kA);
    EXPECT_EQ(looks[0].at_us, static_cast<uint64_t>(now_ns_ / 1'000));
    a_ns += looks[0].ran_ns;
    EXPECT_TRUE(ran_.TakeLooks().empty());
  }
  EXPECT_EQ(a_ns, 6000 * kMs);
}

}  // namespace
}  // namespace prorata::agent
