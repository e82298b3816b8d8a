// The bars of GPU time (docs/reports/promises.md has what was seen), on layer V: every one is a
// scenario made here, run on the virtual clock, and compared with the same programs without prorata
// or with one of them alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "sim/node/bars.h"
#include "sim/node/report.h"

namespace prorata::simulation {
namespace {

struct BarKind {
  const char* name;
  void (*make)(ProgramSpec& program, size_t number);
};

void Kernels(ProgramSpec& program, int64_t low_ns, int64_t high_ns) {
  program.kernel = {low_ns, high_ns, {}};
}

const BarKind kBarKinds[] = {
    {"20 us", [](ProgramSpec& p, size_t) { Kernels(p, 20 * kUs, 20 * kUs), p.per_sync = 200; }},
    {"200 us", [](ProgramSpec& p, size_t) { Kernels(p, 200 * kUs, 200 * kUs); }},
    {"5 ms", [](ProgramSpec& p, size_t) { Kernels(p, 5 * kMs, 5 * kMs); }},
    {"graphs", [](ProgramSpec& p, size_t) { Kernels(p, 50 * kUs, 50 * kUs), p.graph = 20; }},
    {"mixed",
     [](ProgramSpec& p, size_t i) {
       if (i % 3 == 0) Kernels(p, 20 * kUs, 20 * kUs), p.per_sync = 200;
       if (i % 3 == 1) Kernels(p, 5 * kMs, 5 * kMs);
       if (i % 3 == 2) Kernels(p, 50 * kUs, 50 * kUs), p.graph = 20;
     }},
};

struct Terms {
  const char* name;
  std::vector<std::pair<double, double>> request_limit;
  std::vector<double> entitled;
};

const Terms kTerms[] = {
    {"0.5 0.3 0.2", {{0.5, 1}, {0.3, 1}, {0.2, 1}}, {0.5, 0.3, 0.2}},
    {"0.9 0.1", {{0.9, 1}, {0.1, 1}}, {0.9, 0.1}},
    {"8 x 0.125", std::vector<std::pair<double, double>>(8, {0.125, 1}),
     std::vector<double>(8, 0.125)},
    {"0.4=0.4, two elastic", {{0.4, 0.4}, {0, 1}, {0, 1}}, {0.4, 0.3, 0.3}},
};

// Seen over all of kTerms x kBarKinds x seeds; printed, for the table.
TEST(Bars, EntitlementsAndDeviceUse) {
  for (const BarKind& kind : kBarKinds) {
    for (const Terms& terms : kTerms) {
      Scenario scenario;
      scenario.duration_ns = 6 * kS;
      for (size_t i = 0; i < terms.entitled.size(); ++i) {
        const auto& [request, limit] = terms.request_limit[i];
        kind.make(AddProgram(scenario, request, limit), i);
      }
      // One program alone, the best of them, without prorata.
      double alone = 0;
      for (size_t i = 0; i < scenario.programs.size(); ++i) {
        alone = std::max(alone, UseAlone(scenario, i));
      }
      for (uint64_t seed = 1; seed <= SeedsToTry(3); ++seed) {
        const Windows seen = RunWindows(scenario, seed, 1 * kS, 6);
        double worst_5s = 0, worst_1s = 0;
        for (size_t i = 0; i < terms.entitled.size(); ++i) {
          const double entitled = terms.entitled[i];
          worst_5s = std::max(worst_5s, std::abs(seen.Achieved(i, 1, 6) - entitled));
          for (size_t w = 1; w + 1 <= 6; ++w) {
            worst_1s = std::max(worst_1s, std::abs(seen.Achieved(i, w, w + 1) - entitled));
          }
        }
        const double use = seen.Use(1, 6) / alone;
        std::printf(
            "%-22s %-8s 5 s %5.2f points, 1 s %5.2f points, use %6.2f %%, charged %.3f to %.3f\n",
            terms.name, kind.name, worst_5s * 100, worst_1s * 100, use * 100, seen.least_charge,
            seen.most_charge);
        const std::string which =
            std::string(terms.name) + ", " + kind.name + ", seed " + std::to_string(seed);
        EXPECT_GE(seen.least_charge, 0.99) << which;
        EXPECT_LE(worst_5s, 0.01) << which;
        EXPECT_LE(worst_1s, 0.03) << which;
        EXPECT_GE(use, 0.98) << which;
        EXPECT_LE(seen.most_charge, 1.03) << which;
      }
    }
  }
}

// One millisecond of work every twenty, beside two best-effort programs with kernels of 2 ms.
TEST(Bars, ALatencyCriticalProgramIsServedBeforeBestEffort) {
  Scenario scenario;
  scenario.duration_ns = 11 * kS;
  scenario.warmup_ns = 1 * kS;
  ProgramSpec& critical = AddProgram(scenario, 0);
  critical.kernel = {100 * kUs, 100 * kUs, {}};
  critical.per_sync = 10;
  critical.every_ns = 20 * kMs;
  scenario.shares[0].compute.priority = 10;
  Scenario alone = scenario;
  for (int i = 0; i < 2; ++i) AddProgram(scenario, 0).kernel = {2 * kMs, 2 * kMs, {}};

  const Report by_itself = RunScenario(alone, {});
  const Report report = RunScenario(scenario, {});
  EXPECT_EQ(report.failure, "");
  const int64_t p99_ns = report.programs[0].latency.p99_ns;
  const int64_t alone_ns = by_itself.programs[0].latency.p99_ns;
  const double critical_use = report.programs[0].gpu_time * report.device_use;
  const double left = 1 - critical_use;
  const double best_effort = (report.device_use - critical_use) / left;
  std::printf(
      "latency-critical: p99 %.2f ms, alone %.2f ms; best effort gets %.1f %% of the rest\n",
      static_cast<double>(p99_ns) / 1e6, static_cast<double>(alone_ns) / 1e6, best_effort * 100);
  EXPECT_GT(report.programs[0].latency.count, 400u);
  EXPECT_LE(p99_ns, alone_ns * 3 / 2 + 2 * kMs);
  EXPECT_GE(best_effort, 0.95);
  EXPECT_NEAR(report.programs[1].gpu_time, report.programs[2].gpu_time, 0.01);
}

// Two programs that launch so many kernels, wait for them and sleep, over and over.
Scenario PairWithGaps(int64_t switch_ns, int64_t kernel_ns, int per_sync, int64_t gap_ns) {
  Scenario scenario;
  scenario.duration_ns = 6 * kS;
  scenario.machine.devices[0].switch_cost_ns = switch_ns;
  for (int i = 0; i < 2; ++i) {
    ProgramSpec& program = AddProgram(scenario, 0);
    Kernels(program, kernel_ns, kernel_ns);
    program.per_sync = per_sync;
    program.gap_ns = gap_ns;
  }
  return scenario;
}

// 6 ms of work, then 4 ms of none: two of them fit into each other's gaps, where a switch of the
// device costs nothing as well as where the device's own slices lose to it.
TEST(Bars, APairWithGapsKeepsUpWithNoProrata) {
  for (const int64_t switch_ns : {100 * kUs, 10 * kUs}) {
    const Scenario scenario = PairWithGaps(switch_ns, 500 * kUs, 12, 4 * kMs);
    Scenario without = scenario;
    without.prorata = false;
    for (uint64_t seed = 1; seed <= SeedsToTry(3); ++seed) {
      const double use = RunWindows(scenario, seed, 1 * kS, 6).Use(1, 6);
      const double throughput = use / RunWindows(without, seed, 1 * kS, 6).Use(1, 6);
      std::printf("a pair with gaps, a switch of %3lld us: %.1f %% in use, %.1f %% of no prorata\n",
                  static_cast<long long>(switch_ns / kUs), use * 100, throughput * 100);
      EXPECT_GE(throughput, 0.99) << switch_ns << ", seed " << seed;
    }
  }
}

// Each waits for a kernel of 50 us and sleeps as long: by turns the pair has what one alone can
// use.
TEST(Bars, TwoProgramsWithShortBurstsAndGapsRunTogether) {
  for (const int64_t switch_ns : {100 * kUs, 10 * kUs}) {
    const Scenario scenario = PairWithGaps(switch_ns, 50 * kUs, 1, 50 * kUs);
    Scenario without = scenario;
    without.prorata = false;
    const Windows seen = RunWindows(scenario, 1, 1 * kS, 6);
    const double throughput = seen.Use(1, 6) / RunWindows(without, 1, 1 * kS, 6).Use(1, 6);
    std::printf("bursts of 50 us, a switch of %3lld us: %.1f %% of no prorata\n",
                static_cast<long long>(switch_ns / kUs), throughput * 100);
    EXPECT_GE(throughput, 0.99) << switch_ns;
    EXPECT_NEAR(seen.Achieved(0, 1, 6), 0.5, 0.03) << switch_ns;
    EXPECT_GE(seen.least_charge, 0.99) << switch_ns;
  }
}

// Beside one of higher priority that always wants the device nobody hangs for ever.
TEST(Bars, ALowerPriorityIsServedNowAndThen) {
  Scenario scenario;
  scenario.duration_ns = 10 * kS;
  AddProgram(scenario, 0.5);
  AddProgram(scenario, 0.5);
  scenario.shares[0].compute.priority = 1;
  const Windows seen = RunWindows(scenario, 1, 5 * kS, 2);
  for (const size_t w : {0, 1}) {
    EXPECT_GT(seen.Busy(1, w, w + 1), 5 * kMs);
    EXPECT_LT(seen.Achieved(1, w, w + 1), 0.02);
  }
}

// Seen: a program that waits for the device with a batch under way, which no fence is behind, told
// of work left for ever, and kept the device from the others until it launched again.
TEST(Bars, AHolderThatIdlesBehindAnOpenBatchIsIdle) {
  Scenario scenario;
  scenario.duration_ns = 3 * kS;
  scenario.warmup_ns = 500 * kMs;
  ProgramSpec& sleepy = AddProgram(scenario, 0);
  sleepy.kernel = {100 * kUs, 100 * kUs, {}};
  sleepy.per_sync = 3;  // 0.3 ms: no fence
  sleepy.gap_ns = 30 * kMs;
  AddProgram(scenario, 0);
  EXPECT_GE(RunScenario(scenario, {}).device_use, 0.96);
}

}  // namespace
}  // namespace prorata::simulation
