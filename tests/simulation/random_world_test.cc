// Random worlds with seeds of this run: what fails is to be seen again with the seed that it names.

#include "simulation/random_world.h"
#include "simulation/unmet.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace prorata::simulation {
namespace {

// PRORATA_TEST_SEED repeats a run; PRORATA_SIMULATION_RUNS: more of them, or fewer.
TEST(RandomWorlds, KeepWhatIsPromised) {
  Unmet("about one random world in seven breaks a promise (docs/SIMULATION.md)", [] {
    const char* const text = std::getenv("PRORATA_SIMULATION_RUNS");
    const uint64_t runs = text != nullptr ? std::strtoull(text, nullptr, 10) : 300;
    const uint64_t first = FreshSeed();
    int failures = 0;
    for (uint64_t seed = first; seed < first + runs && failures < 5; ++seed) {
      const std::string wrong = CheckRandomWorld(seed);
      failures += !wrong.empty();
      EXPECT_EQ(wrong, "") << "seed " << seed << "; to see it again: build/bin/simulation --random "
                           << "--from " << seed << " --trace FILE\n"
                           << Describe(RandomScenario(seed));
    }
  });
}

}  // namespace
}  // namespace prorata::simulation
