// A machine with more threads that want to run than it has processors, and a program's container
// full of them: one thread in four that is woken waits for milliseconds, the helper thread, too
// (measured so on Linux 6.18, docs/reports/promises.md). The agent, in a container of its own, has
// a processor when it wants one.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "sim/node/bars.h"
#include "sim/node/unmet.h"

namespace prorata::simulation {
namespace {

constexpr int64_t kFromNs = 2 * kS, kToNs = 9 * kS;

// What each program had of the device.
std::vector<double> PartsOf(const Scenario& scenario, double late, uint64_t seed) {
  WorldOptions options = WithSeed(seed);
  options.delays.wake_late = late;
  options.delays.wake_late_ns = 4 * kMs;
  options.delays.preempted = 0.002;
  options.delays.preempted_ns = 4 * kMs;
  World world(scenario, options);
  world.RunUntil(kFromNs);
  std::vector<int64_t> before_ns;
  for (size_t i = 0; i < scenario.programs.size(); ++i) before_ns.push_back(world.ProgramBusyNs(i));
  world.RunUntil(kToNs);
  std::vector<double> parts;
  for (size_t i = 0; i < scenario.programs.size(); ++i) {
    parts.push_back(static_cast<double>(world.ProgramBusyNs(i) - before_ns[i]) / (kToNs - kFromNs));
  }
  world.Finish();
  EXPECT_EQ(world.failure(), "");
  return parts;
}

void Add(Scenario& scenario, double request, int64_t kernel_ns, uint32_t per_sync) {
  ProgramSpec& program = AddProgram(scenario, request);
  program.kernel = {kernel_ns, kernel_ns, {}};
  program.per_sync = per_sync;
}

void CheckRequests(int64_t kernel_ns, uint32_t per_sync, double request, double late) {
  Scenario scenario;
  scenario.duration_ns = kToNs;
  Add(scenario, request, kernel_ns, per_sync);
  for (uint64_t seed = 1; seed <= SeedsToTry(2); ++seed) {
    const double alone = PartsOf(scenario, late, seed)[0];
    Scenario both = scenario;
    Add(both, 1 - request, kernel_ns, per_sync);
    const std::vector<double> had = PartsOf(both, late, seed);
    const std::string what = "kernels of " + std::to_string(kernel_ns / kUs) + " us, " +
                             std::to_string(per_sync) + " at a time, late " +
                             std::to_string(static_cast<int>(100 * late)) + " %";
    std::printf("%s, request %.1f: alone %.3f; %.3f and %.3f, of what is promised %.2f and %.2f\n",
                what.c_str(), request, alone, had[0], had[1], had[0] / request / alone,
                had[1] / (1 - request) / alone);
    EXPECT_GE(had[0], 0.97 * request * alone) << what;
    EXPECT_GE(had[1], 0.97 * (1 - request) * alone) << what;
  }
}

// At each handover two threads may be late: the helper that sees the drain, and the next program's.
TEST(StarvedProcessors, RequestsAreKept) {
  Unmet("programs that never wait have 0.91 to 0.96 of it, kernels of 5 ms 0.96",
        {"0 at a time", "kernels of 5000 us, 4 at a time"}, [] {
          for (const double late : {0.05, 0.25}) {
            for (const int64_t kernel_ns : {200 * kUs, 1 * kMs, 5 * kMs}) {
              for (const uint32_t per_sync : {0u, 4u}) {
                for (const double request : {0.1, 0.5}) {
                  CheckRequests(kernel_ns, per_sync, request, late);
                }
              }
            }
          }
        });
}

// Less than what is promised above, and what was reached: 0.73 before, with kernels of 200 us.
TEST(StarvedProcessors, TheDeviceIsInUse) {
  for (const int64_t kernel_ns : {200 * kUs, 1 * kMs, 5 * kMs}) {
    Scenario scenario;
    scenario.duration_ns = kToNs;
    for (int i = 0; i < 2; ++i) Add(scenario, 0.5, kernel_ns, 0);
    const std::vector<double> had = PartsOf(scenario, 0.25, 1);
    EXPECT_GE(had[0] + had[1], 0.9) << kernel_ns / kUs << " us";
  }
}

}  // namespace
}  // namespace prorata::simulation
