// Programs of every shape: a limit holds for each, none waits for what it has yet to do itself, and
// none keeps the device from its neighbour.

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <numeric>

#include "sim/node/promises.h"
#include "sim/node/unmet.h"

namespace prorata::simulation {
namespace {

Scenario For(int64_t duration_ns) {
  Scenario scenario;
  scenario.duration_ns = duration_ns;
  return scenario;
}

void Kernel(ProgramSpec& program, int64_t kernel_ns, int per_sync) {
  program.kernel = {kernel_ns, kernel_ns, {}};
  program.per_sync = per_sync;
}

struct Shape {
  const char* name;
  std::function<void(ProgramSpec&)> make;
};

std::vector<Shape> Shapes() {
  return {
      {"a stream per request, 0.4 ms",
       [](ProgramSpec& p) {
         Kernel(p, 400 * kUs, 1);
         p.stream_per_request = true;
       }},
      {"a stream per request of 20 kernels of 50 us",
       [](ProgramSpec& p) {
         Kernel(p, 50 * kUs, 20);
         p.stream_per_request = true;
       }},
      {"1,100 idle streams, work in one",
       [](ProgramSpec& p) {
         Kernel(p, 400 * kUs, 4);
         p.idle_streams = 1100;
       }},
      {"300 launches behind a wait, work in another stream",
       [](ProgramSpec& p) {
         Kernel(p, 600 * kUs, 4);
         p.blocked = 300;
       }},
      {"3 streams, 200 us",
       [](ProgramSpec& p) {
         Kernel(p, 200 * kUs, 16);
         p.streams = 3;
       }},
      {"6 streams, 2 ms, never waits",
       [](ProgramSpec& p) {
         Kernel(p, 2 * kMs, 0);
         p.streams = 6;
       }},
      {"4 threads with 2 streams each, 300 us",
       [](ProgramSpec& p) {
         Kernel(p, 300 * kUs, 4);
         p.streams = 2;
         p.threads = 4;
       }},
      {"4 streams, 20 us or 20 ms",
       [](ProgramSpec& p) {
         Kernel(p, 20 * kUs, 16);
         p.kernel.choice_ns = {20 * kUs, 20 * kMs};
         p.streams = 4;
       }},
      {"one stream, 20 us or in a hundredth 20 ms",
       [](ProgramSpec& p) {
         Kernel(p, 20 * kUs, 64);
         p.kernel.choice_ns = {20 * kUs, 20 * kMs};
         p.kernel.parts = {0.99, 0.01};
       }},
      {"2,000 launches of 20 us behind a wait that the thread releases",
       [](ProgramSpec& p) {
         Kernel(p, 20 * kUs, 2000);
         p.behind_wait = true;
       }},
      {"40 launches of 2 ms behind a wait that the thread releases",
       [](ProgramSpec& p) {
         Kernel(p, 2 * kMs, 40);
         p.behind_wait = true;
       }},
      {"a host function of 2 ms, 20 ms of kernels",
       [](ProgramSpec& p) {
         Kernel(p, 500 * kUs, 40);
         p.host_function_ns = 2 * kMs;
       }},
      {"processes of 300 ms, one after the other",
       [](ProgramSpec& p) {
         Kernel(p, 500 * kUs, 8);
         p.life_ns = 300 * kMs;
       }},
  };
}

Scenario With(const Shape& shape, double limit) {
  Scenario scenario = For(11 * kS);
  shape.make(AddProgram(scenario, 0, limit));
  FindDevices(&scenario);
  return scenario;
}

TEST(Shapes, ALimitAloneHolds) {
  for (const Shape& shape : Shapes()) {
    for (const double limit : {0.1, 0.3}) {
      Scenario scenario = With(shape, limit);
      const Promises seen = Judge(scenario);
      const Promise& one = seen.programs[0];
      std::printf("%-64s limit %.1f: busy %.3f charged %.3f\n", shape.name, limit, one.busy,
                  one.charged);
      EXPECT_EQ(seen.failure, "") << shape.name;
      EXPECT_LE(one.busy, limit + 0.01) << shape.name << ", limit " << limit;
      EXPECT_LE(one.charged, limit + 0.01) << shape.name << ", limit " << limit;
      EXPECT_GE(one.charged, 0.99 * one.busy - 0.002) << shape.name << ", limit " << limit;
      // A program with gaps is charged for them where they are not proven idle.
      const double least = one.busy / one.speed > 0.97 ? limit - 0.01 : 0.8 * limit;
      EXPECT_GE(one.busy, least) << shape.name << ", limit " << limit;
    }
  }
}

// With a limit of 0.3. The other stalls with each of its kernels, and the device slices.
Promise BesideLongKernels(const Shape& shape, int64_t long_ns, uint64_t seed) {
  Scenario scenario = For(61 * kS);
  shape.make(AddProgram(scenario, 0, 0.3));
  Kernel(AddProgram(scenario, 0), long_ns, 1);
  FindDevices(&scenario);
  const Promises seen = RunPromises(scenario, {.seed = seed});
  EXPECT_EQ(seen.failure, "") << shape.name;
  return seen.programs[0];
}

TEST(Shapes, ALimitHoldsBesideLongKernels) {
  for (const Shape& shape : Shapes()) {
    for (const int64_t long_ns : {200 * kMs, 1500 * kMs}) {
      const Promise one = BesideLongKernels(shape, long_ns, 1);
      const auto ms = static_cast<int>(long_ns / kMs);
      std::printf("%-64s %4d ms: busy %.3f charged %.3f\n", shape.name, ms, one.busy, one.charged);
      EXPECT_LE(one.busy, 0.31) << shape.name << ", beside kernels of " << ms << " ms";
      EXPECT_LE(one.charged, 0.31) << shape.name << ", beside kernels of " << ms << " ms";
    }
  }
}

// Of each batch the less of what it took and of what was expected was measured: 0.317 to 0.336.
TEST(Shapes, ALimitHoldsBesideLongKernelsForKernelsOfRandomLength) {
  const Shape shape = {"kernels of 40 to 451 us", [](ProgramSpec& p) {
                         Kernel(p, 40 * kUs, 10);
                         p.kernel.high_ns = 451 * kUs;
                       }};
  std::vector<double> busy;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    busy.push_back(BesideLongKernels(shape, 1500 * kMs, seed).busy);
    std::printf("%s, seed %d: busy %.3f\n", shape.name, static_cast<int>(seed), busy.back());
  }
  const double sum = std::accumulate(busy.begin(), busy.end(), 0.0);
  EXPECT_NEAR(sum / static_cast<double>(busy.size()), 0.3, 0.01);
  Unmet("a batch with a slice of the other's in it is measured as what was expected of it", [&] {
    for (const double one : busy) EXPECT_LE(one, 0.31);
  });
}

TEST(Shapes, AProgramAloneLosesNothing) {
  Unmet("launches behind a wait wait for the bound of the backlog",
        {"2,000 launches of 20 us behind a wait"}, [] {
          for (const Shape& shape : Shapes()) {
            Scenario scenario = With(shape, 1);
            scenario.duration_ns = scenario.programs[0].stop_ns = 4 * kS;
            const Promises seen = Judge(scenario);
            EXPECT_EQ(seen.failure, "") << shape.name;
            std::printf("%-64s alone %.3f\n", shape.name, seen.programs[0].speed);
            EXPECT_GE(seen.programs[0].speed, 0.99) << shape.name;
          }
        });
}

// Every shape with a request of 0.4, beside a busy share of 0.6.
TEST(Shapes, AShareRunsAtItsRequestOfItsSpeedAlone) {
  Unmet(
      "with many streams, data-dependent kernels, or work behind waits 0.94 to 0.965 of the "
      "request",
      {"vs 0.388\n300 launches behind a wait", "vs 0.388\n6 streams, 2 ms, never waits",
       "vs 0.388\n4 threads with 2 streams each", "vs 0.388\n4 streams, 20 us or 20 ms",
       "vs 0.388\n40 launches of 2 ms behind a wait"},
      [] {
        for (const Shape& shape : Shapes()) {
          Scenario scenario = For(7 * kS);
          Kernel(AddProgram(scenario, 0.6), kMs, 16);
          shape.make(AddProgram(scenario, 0.4));
          FindDevices(&scenario);
          const Promises seen = Judge(scenario);
          EXPECT_EQ(seen.failure, "") << shape.name;
          std::printf("%-64s %.3f of 0.4 beside %.3f of 0.6; busy %.3f, charged %.3f\n", shape.name,
                      seen.programs[1].speed, seen.programs[0].speed, seen.programs[1].busy,
                      seen.programs[1].charged);
          EXPECT_GE(seen.programs[0].speed, 0.97 * 0.6) << shape.name;
          EXPECT_GE(seen.programs[1].speed, 0.97 * 0.4) << shape.name;
          EXPECT_GE(seen.programs[1].charged, 0.99 * seen.programs[1].busy - 0.002) << shape.name;
        }
      });
}

TEST(Shapes, AHostFunctionBeforeLongWorkKeepsNobodyWaiting) {
  Scenario scenario = For(21 * kS);
  Kernel(AddProgram(scenario, 0.9), kMs, 16);
  ProgramSpec& program = AddProgram(scenario, 0.1);
  Kernel(program, 2 * kMs, 100);
  program.host_function_ns = 20 * kMs;
  FindDevices(&scenario);
  const Promises seen = Judge(scenario);
  EXPECT_EQ(seen.failure, "");
  std::printf("victim %.3f; busy %.3f, charged %.3f\n", seen.programs[0].speed,
              seen.programs[1].busy, seen.programs[1].charged);
  EXPECT_GE(seen.programs[0].speed, 0.97 * 0.9);
  EXPECT_LE(seen.programs[1].busy, 0.12);
  EXPECT_GE(seen.programs[1].busy, 0.08);
}

// A wait for three kernels of 36 us ends after a slice of the other's long ones: what it takes is
// not what they take.
TEST(Shapes, WhoWaitsForItsShortKernelsBesideOneThatStallsPaysForTheShortOnes) {
  Unmet("it is charged 1.75 times what it used: slices of the other's are in what it measures", [] {
    Scenario scenario = For(11 * kS);
    ProgramSpec& waits = AddProgram(scenario, 0);
    Kernel(waits, 36 * kUs, 3);
    waits.gap_ns = 31 * kUs;
    ProgramSpec& stalls = AddProgram(scenario, 0.3);
    Kernel(stalls, 20 * kUs, 8);
    stalls.kernel.choice_ns = {20 * kUs, 20 * kMs};
    stalls.graph = 15;
    stalls.start_ns = 500 * kMs;
    FindDevices(&scenario);
    const Promises seen = Judge(scenario);
    EXPECT_EQ(seen.failure, "");
    for (const Promise& one : seen.programs) {
      std::printf("busy %.3f charged %.3f\n", one.busy, one.charged);
    }
    EXPECT_LE(seen.programs[0].charged, 1.5 * seen.programs[0].busy);
    EXPECT_GE(seen.programs[1].charged, 0.9 * seen.programs[1].busy);
  });
}

TEST(Shapes, WithoutRequestsTwoHaveWhatTheyHaveWithoutProrata) {
  Scenario scenario = For(6 * kS);
  Kernel(AddProgram(scenario, 0), 5 * kUs, 1);
  Kernel(AddProgram(scenario, 0), 750 * kUs, 32);
  FindDevices(&scenario);
  const Promises seen = Judge(scenario, {.without = true});
  EXPECT_GE(seen.use, 0.99 * seen.use_without);
  for (const Promise& promise : seen.programs) EXPECT_GE(promise.speed, 0.97 * promise.without);
}

}  // namespace
}  // namespace prorata::simulation
