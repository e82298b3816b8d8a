// What holds of the device as a whole: its use by up to 64 programs, its elastic ceiling, and its
// time around one very long kernel. Bars of issue 5.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "sim/node/report.h"
#include "sim/node/series.h"

namespace prorata::simulation {
namespace {

Scenario BusyPrograms(size_t count) {
  Scenario scenario;
  scenario.duration_ns = 4 * kS;
  scenario.warmup_ns = 1 * kS;
  for (size_t i = 0; i < count; ++i) AddProgram(scenario, 0).kernel = {500 * kUs, 500 * kUs, {}};
  return scenario;
}

TEST(Totals, OneTo64ProgramsAreNoSlowerThanWithoutProrata) {
  for (const size_t count : {1, 2, 4, 8, 16, 32, 64}) {
    for (uint64_t seed = 1; seed <= SeedsToTry(2); ++seed) {
      Scenario scenario = BusyPrograms(count);
      scenario.machine.devices[0].memory_bytes = 64 * kGiB;
      const Report with = RunScenario(scenario, WithSeed(seed));
      scenario.prorata = false;
      const Report without = RunScenario(scenario, WithSeed(seed));
      EXPECT_EQ(with.failure, "");
      EXPECT_EQ(without.failure, "");
      const double part = with.device_use / without.device_use;
      std::printf("%2zu programs: %.2f %% in use, without prorata %.2f %%\n", count,
                  with.device_use * 100, without.device_use * 100);
      EXPECT_GE(part, 0.97) << count << " programs, seed " << seed;
    }
  }
}

// Seen: the simulation ended by an exception. A context takes half a GiB, and the device has 16.
TEST(Totals, AProgramWithoutRoomForItsContextIsNamed) {
  for (const bool prorata : {false, true}) {
    Scenario scenario = BusyPrograms(33);
    scenario.prorata = prorata;
    const Report report = RunScenario(scenario, {});
    EXPECT_NE(report.failure.find("the device's memory is full"), std::string::npos);
  }
}

// GaiaGPU's elastic experiment: alone a share of 0.3 grows to the ceiling; a second comes and gets
// its request; it leaves, and the first grows again. Whether it keeps the queue full, or waits for
// every 16 ms of its work.
TEST(Totals, AShareGrowsToTheElasticCeilingAndGivesWay) {
  auto scenario = ParseScenario(R"(
name = "elastic"
duration_ms = 7000
elastic_ceiling = "0.9"
[[programs]]
name = "first"
compute = "0.3"
[[programs]]
name = "second"
compute = "0.6"
start_ms = 2000
stop_ms = 5000
)",
                                "elastic");
  ASSERT_TRUE(scenario) << scenario.error().message;
  for (const bool waits : {false, true}) {
    scenario->programs[0].per_sync = waits ? 16 : 0;
    for (uint64_t seed = 1; seed <= SeedsToTry(4); ++seed) {
      const Series seen = RunSeries(*scenario, WithSeed(seed), 100 * kMs);
      EXPECT_EQ(seen.failure, "");
      const double alone = seen.Part(0, 5, 20), again = seen.Part(0, 52, 70);
      const double first = seen.Part(0, 22, 50), second = seen.Part(1, 22, 50);
      std::printf("elastic: %.3f alone, %.3f and %.3f together, %.3f again\n", alone, first, second,
                  again);
      EXPECT_LE(alone, 0.91) << seed;
      EXPECT_LE(again, 0.91) << seed;
      EXPECT_GE(alone, 0.89) << seed;
      EXPECT_GE(again, 0.89) << seed;
      EXPECT_NEAR(first, 0.3, 0.01) << seed;
      EXPECT_NEAR(second, 0.6, 0.01) << seed;
    }
  }
}

// One kernel of 3 s, of a program alone on its share or beside a busy member of it, where nobody
// was promised anything: nobody waits for it, nothing is owed for it, and over the 30 s after it
// each has its part again.
TEST(Totals, OnAFreeDeviceAKernelOf3SecondsIsNotWaitedForAndNotRepaid) {
  for (const bool own_share : {true, false}) {
    for (uint64_t seed = 1; seed <= SeedsToTry(3); ++seed) {
      Scenario scenario;
      scenario.duration_ns = 50 * kS;
      for (int i = 0; i < 3; ++i) AddProgram(scenario, 0);
      ProgramSpec& once = AddProgram(scenario, 0);
      once.kernel = {3 * kS, 3 * kS, {}};
      once.per_sync = 1;
      once.start_ns = 2 * kS;
      once.stop_ns = 2'100 * kMs;
      if (!own_share) once.share = scenario.programs[0].share;
      const Series seen = RunSeries(scenario, WithSeed(seed), 10 * kMs);
      EXPECT_EQ(seen.failure, "");
      const std::vector<int64_t>& long_one = seen.busy[3];
      ASSERT_GE(long_one.back(), 3 * kS - kMs);
      size_t began = 0, ended = 0;
      while (long_one[began + 1] == 0) ++began;
      while (long_one[ended] < long_one.back()) ++ended;
      double worst = 0;
      size_t longest = 0;
      for (size_t i = 0; i < 3; ++i) {
        worst = std::max(worst, std::abs(seen.Achieved(i, ended, ended + 3000) - 1.0 / 3));
        for (size_t at = 50, since = 50; at <= seen.steps(); ++at) {
          if (seen.busy[i][at] != seen.busy[i][since]) since = at;
          longest = std::max(longest, at - since);
        }
      }
      std::printf("3 s kernel, %s: ran %.2f s, waited at most %.2f s, then %.2f points\n",
                  own_share ? "own share" : "a member", static_cast<double>(ended - began) / 100,
                  static_cast<double>(longest) / 100, worst * 100);
      EXPECT_LE(longest, 5u) << "hundredths of a second";
      EXPECT_LE(worst, 0.01);
    }
  }
}

}  // namespace
}  // namespace prorata::simulation
