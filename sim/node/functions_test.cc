// Programs of many functions: a model launches hundreds, each of its own length, and one whose data
// has another size each time launches what it never launched before.

#include <gtest/gtest.h>

#include <cstdio>

#include "sim/node/promises.h"

namespace prorata::simulation {
namespace {

constexpr int kNeverTheSame = 1'000'000'000;
constexpr double kKept = 0.97;  // of the entitled speed

ProgramSpec& AddOfFunctions(Scenario& scenario, int functions, double request, double limit = 1) {
  ProgramSpec& program = AddProgram(scenario, request, limit);
  program.functions = functions;
  program.kernel = {5 * kUs, 50 * kUs, {}};
  program.per_sync = 50;
  return program;
}

Scenario Lasting(int64_t duration_ns) {
  Scenario scenario;
  scenario.duration_ns = duration_ns;
  return scenario;
}

// Of the entitled speed, beside another that is busy.
double KeptBeside(Scenario scenario) {
  ProgramSpec& other = AddProgram(scenario, 0.5);
  other.kernel = {3 * kMs, 3 * kMs, {}};
  FindDevices(&scenario);
  const Promises seen = Judge(scenario);
  EXPECT_EQ(seen.failure, "");
  EXPECT_GE(seen.programs[1].speed, kKept * 0.5);
  return seen.programs[0].speed / 0.5;
}

TEST(Functions, HoweverManyTheirSpeedIsKept) {
  for (const int functions : {1, 20, 300, 5000, kNeverTheSame}) {
    Scenario scenario = Lasting(6 * kS);
    AddOfFunctions(scenario, functions, 0.5);
    const double kept = KeptBeside(scenario);
    std::printf("%d functions: %.3f of what is promised\n", functions, kept);
    EXPECT_GE(kept, kKept) << functions << " functions";
  }
}

TEST(Functions, ALimitIsReachedAndHeld) {
  for (const int functions : {1, 20, 300, 5000, kNeverTheSame}) {
    Scenario scenario = Lasting(11 * kS);
    AddOfFunctions(scenario, functions, 0.1, 0.1);
    FindDevices(&scenario);
    const double busy = Judge(scenario).programs[0].busy;
    std::printf("%d functions: %.3f of the device by a limit of 0.1\n", functions, busy);
    EXPECT_NEAR(busy, 0.1, 0.01) << functions << " functions";
  }
}

TEST(Functions, OfSeveralThreadsAndStreamsOrGraphsTheirSpeedIsKept) {
  for (const auto& make : std::vector<void (*)(ProgramSpec&)>{
           [](ProgramSpec& p) { p.threads = 4; }, [](ProgramSpec& p) { p.streams = 4; },
           [](ProgramSpec& p) { p.stream_per_request = true; },
           [](ProgramSpec& p) { p.graph = 20; }, [](ProgramSpec& p) { p.per_sync = 0; }}) {
    Scenario scenario = Lasting(6 * kS);
    make(AddOfFunctions(scenario, kNeverTheSame, 0.5));
    EXPECT_GE(KeptBeside(scenario), kKept);
  }
}

// What worlds draw of them (scenario.h): a request is done with its last step, and grows within it.
TEST(Functions, RequestsOfSeveralStepsThatGrow) {
  Scenario scenario = Lasting(2 * kS);
  scenario.prorata = false;
  ProgramSpec& program = AddProgram(scenario, 0);
  program.kernel = {100 * kUs, 300 * kUs, {}};
  program.kernel.grows_over = 10;  // in the mean 190 us
  program.per_sync = 2;
  program.steps = 5;
  program.gap_ns = kMs;
  program.every_ns = 20 * kMs;
  FindDevices(&scenario);
  World world(scenario, {});
  world.RunUntil(scenario.duration_ns);
  const Process& process = *world.processes().front();
  EXPECT_NEAR(static_cast<double>(process.requests().size()), 100, 1);
  EXPECT_NEAR(static_cast<double>(process.launches()), 1000, 10);
  for (const Process::Request& request : process.requests()) {
    EXPECT_GE(static_cast<double>(request.latency_ns) / kMs, 10 * 0.19 + 4 * 1);
    EXPECT_LT(static_cast<double>(request.latency_ns) / kMs, 8) << "each gap may end late";
  }
  EXPECT_NEAR(static_cast<double>(world.DeviceBusyNs()) / kMs, 1000 * 0.19, 3);
}

}  // namespace
}  // namespace prorata::simulation
