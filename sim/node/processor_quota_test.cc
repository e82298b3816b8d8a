// A program whose container has a processor quota: when that is used up none of its threads runs
// for the rest of the period (100 ms), the client library's among them. Alone on its device with a
// limit of device time, and beside others.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "sim/node/bars.h"
#include "sim/node/unmet.h"

namespace prorata::simulation {
namespace {

constexpr int64_t kPeriodNs = 100 * kMs;

struct InQuota {
  double used = 0, charged = 0, other = 0;  // parts of the device's time; the second program's
};

// The first program runs for `on_ns` of each period.
InQuota RunInQuota(const Scenario& scenario, int64_t on_ns, uint64_t seed) {
  WorldOptions options;
  options.seed = seed;
  World world(scenario, options);
  const std::string& share = scenario.programs[0].share;
  InQuota seen;
  const int64_t from_ns = 2 * kS, to_ns = scenario.duration_ns;
  int64_t used_ns = 0, charged_ns = 0, other_ns = 0;
  const bool two = scenario.programs.size() > 1;
  for (int64_t at_ns = 0; at_ns < to_ns; at_ns += kPeriodNs) {
    if (at_ns == from_ns) {
      used_ns = world.ProgramBusyNs(0);
      charged_ns = world.agent()->ChargedNs(share, 0);
      if (two) other_ns = world.ProgramBusyNs(1);
    }
    world.RunUntil(at_ns + on_ns);
    for (const auto& process : world.processes()) {
      if (&process->spec() == &scenario.programs[0]) process->Stop(at_ns + kPeriodNs);
    }
    world.RunUntil(at_ns + kPeriodNs);
  }
  const auto passed_ns = static_cast<double>(to_ns - from_ns);
  seen.used = static_cast<double>(world.ProgramBusyNs(0) - used_ns) / passed_ns;
  seen.charged = static_cast<double>(world.agent()->ChargedNs(share, 0) - charged_ns) / passed_ns;
  if (two) seen.other = static_cast<double>(world.ProgramBusyNs(1) - other_ns) / passed_ns;
  world.Finish();
  EXPECT_EQ(world.failure(), "");
  return seen;
}

Scenario WithLimit(int64_t kernel_ns, uint32_t limit_ppm) {
  Scenario scenario;
  scenario.duration_ns = 9 * kS;
  AddProgram(scenario, 0);
  scenario.shares[0].compute.limit = {limit_ppm};
  scenario.programs[0].kernel = {kernel_ns, kernel_ns, {}};
  scenario.programs[0].per_sync = 4;
  return scenario;
}

void CheckLimitsInQuota(int64_t kernel_ns, int64_t on_ns, uint64_t seed) {
  const InQuota alone = RunInQuota(WithLimit(kernel_ns, 1'000'000), on_ns, seed);
  std::printf("without a limit: used %.3f, charged %.3f\n", alone.used, alone.charged);
  EXPECT_LE(alone.charged, alone.used + 0.015);
  for (const double limit : {0.1, 0.2, 0.3}) {
    const auto ppm = static_cast<uint32_t>(limit * 1e6);
    const InQuota seen = RunInQuota(WithLimit(kernel_ns, ppm), on_ns, seed);
    std::printf("limit %.1f: used %.3f, charged %.3f\n", limit, seen.used, seen.charged);
    EXPECT_LE(seen.used, limit + 0.01);
    EXPECT_GE(seen.used, std::min(limit, alone.used) - 0.01)
        << kernel_ns / kUs << " us, on for " << on_ns / kMs << " ms, limit " << ppm << " ppm";
  }
}

// What it cannot use without a limit it cannot use with one.
TEST(ProcessorQuota, TheTimeInWhichNothingOfItRunsIsNotCharged) {
  Unmet("in a quarter of each period, near to what it can use: 0.26 of 0.28, and 0.26 of 0.3",
        {"1000 us, on for 25 ms, limit 300000 ppm", "5000 us, on for 25 ms, limit 300000 ppm"}, [] {
          for (const int64_t kernel_ns : {200 * kUs, 1 * kMs, 5 * kMs}) {
            for (const int64_t on_ns : {25 * kMs, 50 * kMs}) {
              for (uint64_t seed = 1; seed <= SeedsToTry(3); ++seed) {
                CheckLimitsInQuota(kernel_ns, on_ns, seed);
              }
            }
          }
        });
}

// A kernel that goes on while its program does not is charged for all of it.
TEST(ProcessorQuota, KernelsThatRunMeanwhileAreCharged) {
  for (const int64_t kernel_ns : {40 * kMs, 150 * kMs}) {
    for (uint64_t seed = 1; seed <= SeedsToTry(3); ++seed) {
      SCOPED_TRACE("kernels of " + std::to_string(kernel_ns / kMs) + " ms, seed " +
                   std::to_string(seed));
      Scenario scenario = WithLimit(kernel_ns, 1'000'000);
      scenario.programs[0].per_sync = 1;
      const InQuota alone = RunInQuota(scenario, 25 * kMs, seed);
      std::printf("without a limit: used %.3f, charged %.3f\n", alone.used, alone.charged);
      EXPECT_GE(alone.charged, 0.99 * alone.used);
      scenario.shares[0].compute.limit = {200'000};
      const InQuota seen = RunInQuota(scenario, 25 * kMs, seed);
      std::printf("limit 0.2: used %.3f, charged %.3f\n", seen.used, seen.charged);
      const double of_a_kernel = static_cast<double>(kernel_ns) / 7e9;
      EXPECT_LE(seen.used, 0.205 + of_a_kernel);
      EXPECT_GE(seen.charged, 0.99 * (seen.used - of_a_kernel));
    }
  }
}

// Work of which nothing is known but an estimate may take longer.
TEST(ProcessorQuota, TheLimitIsKeptByProgramsOfAllShapes) {
  const auto change = [](size_t shape, ProgramSpec& program) {
    switch (shape) {
      case 0:
        program.kernel = {0, 0, {20 * kUs, 20 * kMs}, {0.9, 0.1}};
        program.per_sync = 1;
        break;
      case 1:
        program.streams = 8;
        program.per_sync = 16;
        break;
      case 2:
        program.kernel = {20 * kUs, 20 * kUs, {}};
        program.per_sync = 0;
        break;
      default:
        program.kernel = {400 * kUs, 400 * kUs, {}};
        program.per_sync = 1;
        program.stream_per_request = true;
    }
  };
  for (size_t shape = 0; shape < 4; ++shape) {
    for (const int64_t on_ns : {25 * kMs, 50 * kMs, 90 * kMs}) {
      Scenario scenario = WithLimit(200 * kUs, 200'000);
      change(shape, scenario.programs[0]);
      const InQuota seen = RunInQuota(scenario, on_ns, 1);
      std::printf("shape %zu, on for %d ms: used %.3f, charged %.3f\n", shape,
                  static_cast<int>(on_ns / kMs), seen.used, seen.charged);
      EXPECT_LE(seen.used, 0.21);
      EXPECT_GE(seen.used, 0.19) << "shape " << shape << ", on for " << on_ns / kMs;
    }
  }
}

void CheckRequestsInQuota(int64_t kernel_ns, int64_t on_ns, double request, uint64_t seed) {
  SCOPED_TRACE("kernels of " + std::to_string(kernel_ns / kUs) + " us, on for " +
               std::to_string(on_ns / kMs) + " ms, seed " + std::to_string(seed));
  Scenario scenario = WithLimit(kernel_ns, 1'000'000);
  scenario.shares[0].compute.request = {static_cast<uint32_t>(request * 1e6)};
  const InQuota alone = RunInQuota(scenario, on_ns, seed);
  AddProgram(scenario, 1 - request);
  const InQuota seen = RunInQuota(scenario, on_ns, seed);
  std::printf("request %.1f: used %.3f of %.3f; the other %.3f\n", request, seen.used, alone.used,
              seen.other);
  EXPECT_GE(seen.used, 0.97 * request * alone.used);
  EXPECT_GE(seen.other, 0.97 * (1 - request));
  // 0.98 of what a busy program alone uses of it.
  EXPECT_GE(seen.used + seen.other, 0.96) << "idle while the other waits";
}

// It has its part of its own speed, and its neighbour has its part of the device.
TEST(ProcessorQuota, BesideOthersBothHaveTheirRequests) {
  Unmet(
      "kernels of 5 ms in a quarter of each period: 0.9 of its request; up to 14 % of the device "
      "idle",
      {"kernels of 5000 us, on for 25 ms", "idle while the other waits"}, [] {
        for (const int64_t kernel_ns : {200 * kUs, 1 * kMs, 5 * kMs}) {
          for (const int64_t on_ns : {25 * kMs, 50 * kMs}) {
            for (const double request : {0.1, 0.5}) {
              for (uint64_t seed = 1; seed <= SeedsToTry(3); ++seed) {
                CheckRequestsInQuota(kernel_ns, on_ns, request, seed);
              }
            }
          }
        }
      });
}

}  // namespace
}  // namespace prorata::simulation
