#include "bench/memory_waiting/experiment.h"

#include <gtest/gtest.h>

#include <map>

namespace prorata::bench {
namespace {

TEST(MemoryWaiting, TheSameSeedGivesTheSameOutcome) {
  policy::MemoryAdmission::Options options;
  for (const auto order : {policy::WaitOrder::kFifo, policy::WaitOrder::kRandom}) {
    options.order = order;
    const Outcome one = RunExperiment(options, 24, 5), other = RunExperiment(options, 24, 5);
    EXPECT_EQ(one.makespan_s, other.makespan_s);
    EXPECT_EQ(one.longest_wait_s, other.longest_wait_s);
  }
}

// The bar for the default: at every number of containers its median makespan is within 5 % of the
// best policy's, and nobody's longest wait is shorter.
TEST(MemoryWaiting, TheDefaultIsFairAndLosesNothing) {
  std::map<int, Row> fifo, best;
  for (const Row& row : RunAll({4, 8, 12, 16, 20, 24, 28, 32, 38}, 200)) {
    Row& least = best.try_emplace(row.containers, row).first->second;
    least.makespan_s = std::min(least.makespan_s, row.makespan_s);
    least.longest_wait_s = std::min(least.longest_wait_s, row.longest_wait_s);
    if (row.policy == "fifo") fifo[row.containers] = row;
  }
  for (const auto& [containers, row] : fifo) {
    EXPECT_LE(row.makespan_s, 1.05 * best[containers].makespan_s) << containers;
    EXPECT_LE(row.longest_wait_s, best[containers].longest_wait_s) << containers;
  }
}

}  // namespace
}  // namespace prorata::bench
