// Programs that copy between the host and the device: loaders of data, servers, swapping. A copy of
// 16 MiB or more makes its stream wait (client/compute/device_work.h); what comes out from behind
// it may run beside others.

#include <gtest/gtest.h>

#include <cstdio>

#include "base/bytes.h"
#include "sim/node/promises.h"
#include "sim/node/unmet.h"

namespace prorata::simulation {
namespace {

struct Copying {
  const char* name;
  uint64_t bytes;
  int64_t kernel_ns;
  int per_sync;
};

ProgramSpec& AddCopying(Scenario& scenario, const Copying& copying, double request) {
  ProgramSpec& program = AddProgram(scenario, request);
  program.kernel = {copying.kernel_ns, copying.kernel_ns, {}};
  program.per_sync = copying.per_sync;
  program.copy_in_bytes = copying.bytes;
  program.copy_every = 1;
  return program;
}

// Beside one that is busy, which must have its part, too.
Promise BesideBusy(Scenario scenario, double request, const char* name) {
  ProgramSpec& busy = AddProgram(scenario, request);
  busy.kernel = {kMs, kMs, {}};
  busy.per_sync = 8;
  FindDevices(&scenario);
  const Promises seen = Judge(scenario);
  EXPECT_EQ(seen.failure, "") << name;
  EXPECT_GE(seen.programs[1].speed, 0.97 * request) << name;
  return seen.programs[0];
}

// What waited for slices of the other's paid for them, and had 0.20 to 0.26.
TEST(Copies, BetweenKernelsTheirSpeedIsKept) {
  Unmet(
      "one that never waits queues hundreds of launches behind its copies, and runs beside others",
      {"vs 0.679\n32 MiB, 1 ms, never waits", "vs 0.679\n32 MiB, 300 us, never waits"}, [] {
        for (const Copying& copying :
             {Copying{"8 MiB, 100 us", 8 * kMiB, 100 * kUs, 16},
              Copying{"8 MiB, 100 us, waits for each", 8 * kMiB, 100 * kUs, 1},
              Copying{"32 MiB, 300 us, never waits", 32 * kMiB, 300 * kUs, 0},
              Copying{"32 MiB, 300 us", 32 * kMiB, 300 * kUs, 16},
              Copying{"32 MiB, 300 us, waits for each", 32 * kMiB, 300 * kUs, 1},
              Copying{"32 MiB, 1 ms, never waits", 32 * kMiB, kMs, 0},
              Copying{"32 MiB, 1 ms", 32 * kMiB, kMs, 16},
              Copying{"32 MiB, 1 ms, waits for each", 32 * kMiB, kMs, 1},
              Copying{"128 MiB, 1 ms, never waits", 128 * kMiB, kMs, 0},
              Copying{"128 MiB, 1 ms, waits for each", 128 * kMiB, kMs, 1}}) {
          Scenario scenario;
          scenario.duration_ns = 11 * kS;
          // It comes when the other is there: nobody can take back what it queues before.
          AddCopying(scenario, copying, 0.3).start_ns = 500 * kMs;
          const double speed = BesideBusy(scenario, 0.7, copying.name).speed;
          std::printf("%-32s %.3f of its speed alone\n", copying.name, speed);
          EXPECT_GE(speed, 0.97 * 0.3) << copying.name;
        }
      });
}

TEST(Copies, ALimitHolds) {
  for (const int per_sync : {1, 16}) {
    Scenario scenario;
    scenario.duration_ns = 11 * kS;
    AddCopying(scenario, {"", 32 * kMiB, 2 * kMs, per_sync}, 0.1);
    const double without = BesideBusy(scenario, 0.5, "without a limit").busy;
    scenario.shares[0].compute.limit = {100'000};
    const Promise limited = BesideBusy(scenario, 0.5, "with one");
    std::printf("%d a sync: busy %.3f by a limit of 0.1, %.3f without\n", per_sync, limited.busy,
                without);
    EXPECT_LE(limited.busy, 0.105);
    EXPECT_GE(limited.speed, 0.97 * 0.1);
    EXPECT_GT(without, 0.15) << "the limit is what holds it";
  }
}

// What is copied for the next request while this one runs takes no time of the device's.
TEST(Copies, MadeAheadTheyKeepNobodyWaiting) {
  Scenario scenario;
  scenario.duration_ns = 11 * kS;
  for (int i = 0; i < 2; ++i) {
    ProgramSpec& program = AddProgram(scenario, 0.5);
    program.kernel = {kMs, kMs, {}};
    program.per_sync = 10;
    program.copy_in_bytes = 64 * kMiB;
    program.copy_ahead = true;
  }
  FindDevices(&scenario);
  const Promises seen = Judge(scenario);
  EXPECT_EQ(seen.failure, "");
  for (const Promise& one : seen.programs) EXPECT_GE(one.speed, 0.97 * 0.5);
}

// The device's own account of what a program of copies and kernels takes.
TEST(Copies, TakeTheirTimeOnTheirEngines) {
  Scenario scenario;
  scenario.duration_ns = 2 * kS;
  scenario.prorata = false;
  ProgramSpec& program = AddProgram(scenario, 0);
  program.kernel = {kMs, kMs, {}};
  program.per_sync = 1;
  program.copy_in_bytes = program.copy_out_bytes = 50'000'000;  // a millisecond each
  FindDevices(&scenario);
  const auto launches = [](const Scenario& of) {
    World world(of, {});
    world.RunUntil(of.duration_ns);
    return static_cast<double>(world.processes().front()->launches());
  };
  EXPECT_NEAR(launches(scenario), 2000 / 3.0, 15) << "in, kernel, out";
  scenario.programs[0].copy_out_bytes = 0;
  EXPECT_NEAR(launches(scenario), 2000 / 2.0, 25);
  scenario.programs[0].copy_ahead = true;
  EXPECT_NEAR(launches(scenario), 2000 / 1.0, 60) << "as long as the longer of the two";
}

}  // namespace
}  // namespace prorata::simulation
