// Programs that pause shortly between their kernels: they compute on the host, or wait for a host
// function. Beside a program whose work they have to wait for after each pause, their speed is what
// their request says.

#include <gtest/gtest.h>

#include <cstdio>

#include "sim/node/promises.h"

namespace prorata::simulation {
namespace {

struct Pausing {
  const char* name;
  int64_t kernel_ns;
  int64_t gap_ns;
  int64_t host_function_ns;
};
constexpr Pausing kPausing[] = {
    {"300 us, pauses of 300 us", 300 * kUs, 300 * kUs, 0},
    {"300 us, pauses of 670 us", 300 * kUs, 670 * kUs, 0},
    {"100 us, pauses of 500 us", 100 * kUs, 500 * kUs, 0},
    {"1 ms, pauses of 900 us", kMs, 900 * kUs, 0},
    {"300 us, host functions of 670 us", 300 * kUs, 0, 670 * kUs},
};

Scenario NewScenario() {
  Scenario scenario;
  scenario.duration_ns = 6 * kS;
  return scenario;
}

ProgramSpec& AddPausing(Scenario& scenario, const Pausing& pausing, double request,
                        double limit = 1) {
  ProgramSpec& program = AddProgram(scenario, request, limit);
  program.kernel = {pausing.kernel_ns, pausing.kernel_ns, {}};
  program.per_sync = 1;
  program.gap_ns = pausing.gap_ns;
  program.host_function_ns = pausing.host_function_ns;
  return program;
}

ProgramSpec& AddBusy(Scenario& scenario, double request, int64_t kernel_ns = kMs) {
  ProgramSpec& program = AddProgram(scenario, request);
  program.kernel = {kernel_ns, kernel_ns, {}};
  program.per_sync = 0;
  return program;
}

Promises JudgeAs(Scenario scenario, const char* name) {
  FindDevices(&scenario);
  Promises seen = Judge(scenario);
  EXPECT_EQ(seen.failure, "") << name;
  std::printf("%-36s", name);
  for (const Promise& program : seen.programs) std::printf(" %.3f", program.speed);
  std::printf(" of its speed alone\n");
  return seen;
}

// They lost their lease in each pause, and had 0.25 and 0.36 of requests of 0.3 and 0.7.
TEST(ShortPauses, TheirSpeedIsKept) {
  for (const double request : {0.3, 0.5, 0.7, 0.9}) {
    SCOPED_TRACE(request);
    for (const Pausing& pausing : kPausing) {
      Scenario scenario = NewScenario();
      AddPausing(scenario, pausing, request);
      AddBusy(scenario, 1 - request);
      const Promises seen = JudgeAs(scenario, pausing.name);
      EXPECT_GE(seen.programs[0].speed, 0.97 * request) << pausing.name;
      EXPECT_GE(seen.programs[1].speed, 0.97 * (1 - request)) << pausing.name;
    }
  }
}

// It had 0.18, for after each pause it waited for a kernel of 5 ms.
TEST(ShortPauses, BesideLongerAndShorterKernels) {
  for (const int64_t kernel_ns : {20 * kUs, 200 * kUs, 5 * kMs}) {
    SCOPED_TRACE(kernel_ns);
    Scenario scenario = NewScenario();
    AddPausing(scenario, kPausing[1], 0.7);
    AddBusy(scenario, 0.3, kernel_ns);
    const Promises seen = JudgeAs(scenario, kPausing[1].name);
    EXPECT_GE(seen.programs[0].speed, 0.97 * 0.7);
    EXPECT_GE(seen.programs[1].speed, 0.97 * 0.3);
  }
}

TEST(ShortPauses, WithALimit) {
  for (const double limit : {0.3, 0.5}) {
    SCOPED_TRACE(limit);
    Scenario scenario = NewScenario();
    AddPausing(scenario, kPausing[1], limit, limit);
    AddBusy(scenario, 1 - limit);
    const Promises seen = JudgeAs(scenario, kPausing[1].name);
    EXPECT_GE(seen.programs[0].speed, 0.97 * limit);
    EXPECT_GE(seen.programs[1].speed, 0.97 * (1 - limit));
  }
}

TEST(ShortPauses, SeveralOfThem) {
  Scenario scenario = NewScenario();
  AddPausing(scenario, kPausing[1], 0.4);
  AddPausing(scenario, kPausing[1], 0.4);
  AddBusy(scenario, 0.2);
  const Promises seen = JudgeAs(scenario, "two with pauses of 670 us");
  EXPECT_GE(seen.programs[0].speed, 0.97 * 0.4);
  EXPECT_GE(seen.programs[1].speed, 0.97 * 0.4);
  EXPECT_GE(seen.programs[2].speed, 0.97 * 0.2);
}

// In pauses that are longer, and in those of a program that has its speed anyway, others run.
TEST(ShortPauses, AreUsedByOthersWhereTheyMay) {
  for (const Pausing& pausing : {Pausing{"pauses of 2 ms", 300 * kUs, 2 * kMs, 0},
                                 Pausing{"host functions of 2 ms", 300 * kUs, 0, 2 * kMs}}) {
    Scenario scenario = NewScenario();
    AddPausing(scenario, pausing, 0.7);
    AddBusy(scenario, 0.3);
    EXPECT_GE(JudgeAs(scenario, pausing.name).programs[1].speed, 0.68) << pausing.name;
  }
  Scenario scenario = NewScenario();
  AddPausing(scenario, kPausing[1], 0.2);
  AddBusy(scenario, 0.8);
  const Promises seen = JudgeAs(scenario, "pauses of 670 us, request 0.2");
  EXPECT_GE(seen.programs[0].speed, 0.25);
  EXPECT_GE(seen.programs[1].speed, 0.97 * 0.8);
}

}  // namespace
}  // namespace prorata::simulation
