// A program that is stopped while it wants its GPU: by Ctrl-Z, a debugger, `docker pause`, or for
// its container's processor quota. Nobody knows that it will go on, and nothing of it runs.

#include <gtest/gtest.h>

#include <cstdio>

#include "sim/node/bars.h"

namespace prorata::simulation {
namespace {

constexpr int64_t kStopped = 2 * kS, kContinued = 6 * kS, kStoppedTestEnd = 9 * kS;

struct Parts {
  double beside = 0;         // what the other one had while the first was stopped, of the device
  double soon = 0;           // that, in the first quarter of a second
  double first = 0;          // after it went on, ...
  double first_at_once = 0;  // ... and in the first tenth of a second of that
  double charged = 0;        // the first while it was stopped
  std::string failure;
};

// Program 0 is stopped at whatever moment `seed` makes of it.
Parts StopFirst(const Scenario& scenario, uint64_t seed) {
  WorldOptions options;
  options.seed = seed;
  World world(scenario, options);
  const int64_t stopped_ns = kStopped + static_cast<int64_t>(seed) * 1'300 * kUs;
  world.RunUntil(stopped_ns);
  for (const auto& process : world.processes()) {
    if (&process->spec() == &scenario.programs[0]) process->Stop(kContinued);
  }
  const auto part = [&](size_t program, int64_t to_ns) {
    const int64_t from_ns = world.now_ns(), before_ns = world.ProgramBusyNs(program);
    world.RunUntil(to_ns);
    return static_cast<double>(world.ProgramBusyNs(program) - before_ns) /
           static_cast<double>(to_ns - from_ns);
  };
  const std::string& name = scenario.programs[0].share;
  Parts seen;
  seen.soon = part(1, stopped_ns + 250 * kMs);
  const int64_t charged_ns = world.agent()->ChargedNs(name, 0);
  seen.beside = part(1, kContinued);
  seen.charged = static_cast<double>(world.agent()->ChargedNs(name, 0) - charged_ns) /
                 static_cast<double>(kContinued - stopped_ns - 250 * kMs);
  const int64_t before_ns = world.ProgramBusyNs(0);
  seen.first_at_once = part(0, kContinued + 100 * kMs);
  world.RunUntil(kStoppedTestEnd);
  seen.first = static_cast<double>(world.ProgramBusyNs(0) - before_ns) /
               static_cast<double>(kStoppedTestEnd - kContinued);
  world.Finish();
  seen.failure = world.failure();
  return seen;
}

Scenario TwoShares(double first, double second) {
  Scenario scenario;
  scenario.duration_ns = kStoppedTestEnd;
  AddProgram(scenario, first);
  AddProgram(scenario, second);
  return scenario;
}

void CheckStopped(const char* what, const Scenario& scenario, double entitled) {
  for (uint64_t seed = 1; seed <= SeedsToTry(5); ++seed) {
    SCOPED_TRACE(std::string(what) + ", seed " + std::to_string(seed));
    const Parts seen = StopFirst(scenario, seed);
    std::printf(
        "%s: beside it %.3f, in the first quarter of a second %.3f; it was charged %.3f; "
        "then it had %.3f, in the first tenth of a second %.3f\n",
        what, seen.beside, seen.soon, seen.charged, seen.first, seen.first_at_once);
    EXPECT_EQ(seen.failure, "");
    EXPECT_GE(seen.soon, 0.6);
    EXPECT_GE(seen.beside, 0.95);
    EXPECT_LE(seen.charged, 0.02);
    EXPECT_GE(seen.first, 0.97 * entitled) << "it owes nothing";
    EXPECT_GE(seen.first_at_once, 0.5 * entitled);
  }
}

TEST(Stopped, WhatItDoesNotUseIsForOthers) { CheckStopped("requests", TwoShares(0.9, 0.1), 0.9); }

TEST(Stopped, OfItsHighPriority) {
  Scenario scenario = TwoShares(0, 0);
  scenario.shares[0].compute.priority = 5;
  CheckStopped("priority", scenario, 1);
}

TEST(Stopped, OfItsLimit) {
  Scenario scenario = TwoShares(0.3, 0.3);
  scenario.shares[0].compute.limit = {400'000};
  CheckStopped("limit", scenario, 0.4);
}

TEST(Stopped, OfItsLimitBesideWhoNeedsNothing) {
  Scenario scenario = TwoShares(0.3, 0);
  scenario.shares[0].compute.limit = {300'000};
  CheckStopped("limit, beside one without terms", scenario, 0.3);
}

// The other member of its share goes on, within the limit of both.
TEST(Stopped, OneOfTwoMembers) {
  for (const int64_t kernel_ns : {1 * kMs, 2 * kS}) {
    Scenario scenario = TwoShares(0.5, 0);
    scenario.shares.pop_back();
    scenario.shares[0].compute.limit = {500'000};
    scenario.programs[0].kernel = {kernel_ns, kernel_ns, {}};
    scenario.programs[1].share = scenario.programs[0].share;
    AddProgram(scenario, 0.5);
    for (uint64_t seed = 1; seed <= SeedsToTry(5); ++seed) {
      SCOPED_TRACE("kernels of " + std::to_string(kernel_ns) + ", seed " + std::to_string(seed));
      const Parts seen = StopFirst(scenario, seed);
      std::printf("one of two members: the other had %.3f of the device\n", seen.beside);
      EXPECT_EQ(seen.failure, "");
      EXPECT_GE(seen.beside, kernel_ns > kS ? 0.1 : 0.485);
      EXPECT_LE(seen.beside, 0.515);
    }
  }
}

TEST(Stopped, WithKernelsThatItWaitsFor) {
  Scenario scenario = TwoShares(0.7, 0);
  scenario.programs[0].kernel = {20 * kUs, 20 * kUs, {}};
  scenario.programs[0].per_sync = 1;
  CheckStopped("tiny kernels", scenario, 0.4);
}

TEST(Stopped, WithLongKernels) {
  Scenario scenario = TwoShares(0.5, 0.3);
  scenario.programs[0].kernel = {40 * kMs, 40 * kMs, {}};
  CheckStopped("long kernels", scenario, 0.55);
}

}  // namespace
}  // namespace prorata::simulation
