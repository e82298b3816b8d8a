// Shares that run together in each other's gaps, in virtual time.

#include <gtest/gtest.h>

#include "policy/testing_device.h"
#include "policy/time_sharing.h"

namespace prorata::policy {
namespace {

using testing::kMs;
using testing::kS;
using testing::kUs;
using testing::Machine;
using testing::Program;

// Gaps too short to be told of.
Program Sparse(double request = 0) {
  Program program;
  program.terms.request.ppm = static_cast<uint32_t>(request * 1e6);
  program.kernel_min_ns = program.kernel_max_ns = program.burst_ns = program.gap_ns = 50 * kUs;
  return program;
}

bool Together(const Machine& machine, size_t programs) {
  int open = 0, together = 0;
  for (size_t i = 0; i < programs; ++i) {
    open += machine.sharing().State(i).open;
    together += machine.sharing().State(i).together;
  }
  EXPECT_TRUE(open <= 1 || together == open) << open << " open, " << together << " together";
  return open > 1;
}

// In how many of the looks, one each millisecond from `from_ns` to `to_ns`, several were open.
int Looks(Machine& machine, size_t programs, int64_t from_ns, int64_t to_ns) {
  int together = 0;
  for (int64_t now = from_ns; now < to_ns; now += 1 * kMs) {
    machine.RunUntil(now);
    together += Together(machine, programs);
  }
  return together;
}

TEST(TimeCompany, TwoThatLeaveGapsRunInEachOthers) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Machine machine({Sparse(), Sparse()}, seed, 100 * kUs);
    EXPECT_GE(Looks(machine, 2, 0, 3 * kS), 2'400) << seed;
    EXPECT_GE(machine.UsedByAll(), 3 * kS * 80 / 100) << seed;  // by turns: at most a half
    EXPECT_NEAR(static_cast<double>(machine.Used(0)) / static_cast<double>(machine.UsedByAll()),
                0.5, 0.03)
        << seed;
  }
}

TEST(TimeCompany, WhoIsBusyHasNone) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Machine machine({Sparse(), Program{}}, seed, 100 * kUs);
    EXPECT_EQ(Looks(machine, 2, 0, 2 * kS), 0) << seed;
  }
}

TEST(TimeCompany, EndsWhenABusyOneComes) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Program busy;
    busy.start_ns = 1 * kS;
    Machine machine({Sparse(), Sparse(), busy}, seed, 100 * kUs);
    EXPECT_GT(Looks(machine, 3, 0, 1 * kS), 500) << seed;
    const int64_t before_ns = machine.UsedByAll();
    EXPECT_EQ(Looks(machine, 3, 1 * kS + 5 * kMs, 3 * kS), 0) << seed;
    const auto used_ns = static_cast<double>(machine.UsedByAll() - before_ns);
    EXPECT_NEAR(static_cast<double>(machine.Used(2)) / used_ns, 1 / 3.0, 0.03) << seed;
  }
}

TEST(TimeCompany, PrioritiesAndLimitsHaveNone) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Program above = Sparse();
    above.terms.priority = 1;
    Machine ranks({above, Sparse()}, seed, 100 * kUs);
    EXPECT_EQ(Looks(ranks, 2, 0, 1 * kS), 0) << seed;
    Program limited = Sparse();
    limited.terms.limit.ppm = 200'000;
    Machine limits({limited, Sparse()}, seed, 100 * kUs);
    EXPECT_EQ(Looks(limits, 2, 0, 2 * kS), 0) << seed;
    EXPECT_LE(limits.Used(0), 2 * kS * 21 / 100) << seed;
  }
}

// Company is for those who are not short: what is entitled to more than it gets goes alone.
TEST(TimeCompany, NobodyIsShortForIt) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Machine machine({Sparse(0.9), Sparse(0.1)}, seed, 100 * kUs);
    for (int64_t now = 0; now < 3 * kS; now += 1 * kMs) {
      machine.RunUntil(now);
      if (!Together(machine, 2)) continue;
      EXPECT_LE(machine.sharing().State(0).lag_ns, 24.0 * kMs) << seed;
    }
    EXPECT_GT(machine.Used(0), machine.Used(1)) << seed;
  }
}

// Two in company measure each other's work, too: what both are charged is no more than has passed.
TEST(TimeCompany, IsChargedOnce) {
  std::vector<Program> programs = {Sparse(), Sparse()};
  for (Program& program : programs) program.members = 2;  // each reports twice what it used
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Machine machine(programs, seed, 100 * kUs);
    machine.RunUntil(3 * kS);
    EXPECT_NEAR(static_cast<double>(machine.Used(0)) / static_cast<double>(machine.UsedByAll()),
                0.5, 0.03)
        << seed;
  }
}

}  // namespace
}  // namespace prorata::policy
