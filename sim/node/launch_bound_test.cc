// Programs whose kernels end sooner than the host launches the next: most that are written in
// Python. There is always one under way, and the device idles for the most part.

#include <gtest/gtest.h>

#include <cstdio>

#include "sim/node/promises.h"

namespace prorata::simulation {
namespace {

void AddLaunchBound(Scenario& scenario, double request, int64_t kernel_ns, int64_t host_ns,
                    int per_sync) {
  ProgramSpec& program = AddProgram(scenario, request);
  program.kernel = {kernel_ns, kernel_ns, {}};
  program.host_ns = host_ns;
  program.per_sync = per_sync;
}

Promises Judged(Scenario& scenario) {
  FindDevices(&scenario);
  Promises seen = Judge(scenario, {.without = true});
  EXPECT_EQ(seen.failure, "");
  return seen;
}

// One after the other each had half of its speed alone, and the device idled for half of the time.
TEST(LaunchBound, TwoHaveNearlyWhatTheyHaveWithoutProrata) {
  struct Case {
    int64_t kernel_ns, host_ns;
    int per_sync;
    double request = 0.5;  // the other's is the rest
  };
  for (const Case& one :
       {Case{5 * kUs, 10 * kUs, 500}, Case{5 * kUs, 30 * kUs, 500}, Case{5 * kUs, 10 * kUs, 0},
        Case{100 * kUs, 200 * kUs, 20}, Case{5 * kUs, 10 * kUs, 500, 0.7}}) {
    Scenario scenario;
    scenario.duration_ns = 11 * kS;
    for (const double request : {one.request, 1 - one.request}) {
      AddLaunchBound(scenario, request, one.kernel_ns, one.host_ns, one.per_sync);
    }
    const Promises seen = Judged(scenario);
    std::printf(
        "kernels of %lld us, launched every %lld: %.3f and %.3f of their speed alone, "
        "%.3f and %.3f without prorata\n",
        static_cast<long long>(one.kernel_ns / kUs), static_cast<long long>(one.host_ns / kUs),
        seen.programs[0].speed, seen.programs[1].speed, seen.programs[0].without,
        seen.programs[1].without);
    for (const Promise& program : seen.programs) {
      EXPECT_GE(program.speed, 0.9 * program.without) << one.kernel_ns << ", " << one.host_ns;
    }
  }
}

// The device's turns cost more than the gaps are worth: without prorata each has less.
TEST(LaunchBound, WhoWouldLoseByItKeepsWhatItIsEntitledTo) {
  Scenario scenario;
  scenario.duration_ns = 11 * kS;
  const double requests[] = {0.2, 0.3, 0.5};
  for (const double request : requests) AddLaunchBound(scenario, request, 5 * kUs, 5 * kUs, 20);
  const Promises seen = Judged(scenario);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GE(seen.programs[i].speed, 0.97 * requests[i]) << i;
  }
}

// In its bursts it has no gaps: what was seen of it before says nothing then.
TEST(LaunchBound, OneThatIsBusyNowAndThenHasItsPart) {
  for (const double request : {0.3, 0.7}) {
    Scenario scenario;
    scenario.duration_ns = 21 * kS;
    AddLaunchBound(scenario, 1 - request, 5 * kUs, 10 * kUs, 500);
    AddLaunchBound(scenario, request, 500 * kUs, 0, 4);
    scenario.programs[1].burst_ns = scenario.programs[1].quiet_ns = kS;
    const Promises seen = Judged(scenario);
    EXPECT_GE(seen.programs[0].speed, 0.97 * (1 - request)) << request;
    EXPECT_GE(seen.programs[1].speed, 0.97 * request) << request;
  }
}

// Its slices begin late, for the other's kernels take 20 us, or in a hundredth 20 ms: it ran little
// in some of them, and leaves no gaps.
TEST(LaunchBound, OneThatWaitsForLateDrainsIsNotTakenForOne) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    Scenario scenario;
    scenario.duration_ns = 7 * kS;
    AddLaunchBound(scenario, 0.227, 33 * kUs, 0, 0);
    ProgramSpec& other = AddProgram(scenario, 0.772);
    other.kernel = {20 * kUs, 20 * kUs, {20 * kUs, 20 * kMs}, {0.99, 0.01}};
    other.per_sync = 4;
    FindDevices(&scenario);
    const Promises seen = RunPromises(scenario, {.seed = seed});
    EXPECT_EQ(seen.failure, "");
    EXPECT_GE(seen.programs[0].busy, 0.97 * 0.227) << "seed " << seed;
  }
}

}  // namespace
}  // namespace prorata::simulation
