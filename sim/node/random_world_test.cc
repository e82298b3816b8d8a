// Random worlds with seeds of this run: what fails is to be seen again with the seed that it names.

#include "sim/node/random_world.h"
#include "sim/node/unmet.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace prorata::simulation {
namespace {

// Whether nothing is wrong but what a share was charged. Where several hold leases at once nobody
// knows how they divided the device, NVML neither (docs/design/decisions/audits.md).
bool IsOfChargesAlone(const std::string& wrong) {
  return wrong.starts_with("charge: ") && wrong.find("; ") == std::string::npos;
}

struct Broken {
  uint64_t promises = 0, charges = 0;
};

// Worlds of this run's seeds. PRORATA_TEST_SEED repeats a run; PRORATA_SIMULATION_RUNS: more of
// them, or fewer. Each that breaks a promise is named.
Broken CheckWorlds(uint64_t runs, WorldKind kind) {
  const char* const option = kind == WorldKind::kCrowd    ? "--crowds "
                             : kind == WorldKind::kRanks  ? "--ranks "
                             : kind == WorldKind::kModels ? "--models "
                                                          : "";
  const uint64_t first = FreshSeed();
  Broken broken;
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    const std::string wrong = CheckRandomWorld(seed, kind);
    if (wrong.empty()) continue;
    ++(IsOfChargesAlone(wrong) ? broken.charges : broken.promises);
    std::printf(
        "seed %llu: %s\nto see it again: build/bin/simulation --random %s--from %llu --trace "
        "FILE\n%s",
        static_cast<unsigned long long>(seed), wrong.c_str(), option,
        static_cast<unsigned long long>(seed), Describe(RandomScenario(seed, kind)).c_str());
  }
  return broken;
}

uint64_t Runs(uint64_t otherwise) {
  const char* const text = std::getenv("PRORATA_SIMULATION_RUNS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// The target is none. Seen is one in seventy that breaks a promise to programs, so more than one in
// twenty is new; and one in thirty in which charges alone are wrong, so more than one in ten is
// new.
TEST(RandomWorlds, NearlyAllKeepWhatIsPromised) {
  const uint64_t runs = Runs(300);
  const Broken broken = CheckWorlds(runs, WorldKind::kFew);
  EXPECT_LE(broken.promises, runs / 20);
  EXPECT_LE(broken.charges, runs / 10);
}

// The target is none. Seen is one crowd in sixteen, most in shares that are entitled to a
// hundredth: more than one in four is new.
TEST(RandomWorlds, MostCrowdsAreServedAsPromised) {
  const uint64_t runs = Runs(60);
  EXPECT_LE(CheckWorlds(runs, WorldKind::kCrowd).promises, runs / 4);
}

// The target is none. Seen is one in nine that breaks a promise (131 of 1,200): more than one in
// four is new.
TEST(RandomWorlds, MostJobsWhoseRanksDifferAreServedAsPromised) {
  const uint64_t runs = Runs(60);
  EXPECT_LE(CheckWorlds(runs, WorldKind::kRanks).promises, runs / 4);
}

// The target is none. Seen is one in sixty that breaks a promise (20 of 1,200): more than one in
// ten is new.
TEST(RandomWorlds, NearlyAllThatLaunchAsModelsDoAreServedAsPromised) {
  const uint64_t runs = Runs(100);
  EXPECT_LE(CheckWorlds(runs, WorldKind::kModels).promises, runs / 10);
}

// Each for a fault of its own: an agent that looked in circles, charges that were paid back, gangs
// that were none, requests of which what was beyond them was forgiven, gaps beside work behind a
// wait that were charged to a limit, slices that were claimed in a gap, drains that ended late,
// limits that forgot what others owed, audits that took back what a rounded figure hides, a ceiling
// of which the time of switches was not counted, processes that ended in the middle of a request,
// gangs that began where one device was free, and were revoked between two launches; gangs that
// left their devices idle, behind a wait of their own or because each was next on one of them; what
// stands behind a host function, that was charged for half of that time.
TEST(RandomWorlds, ThoseThatWereMendedStayMended) {
  for (const uint64_t seed :
       {100430, 100869, 101115, 101348, 101395, 101821, 100944, 101459, 100641, 102011, 102577,
        101247, 101553, 102833, 500318, 500947, 100046, 101230}) {
    EXPECT_EQ(CheckRandomWorld(seed), "") << seed;
  }
}

// Three more of those. What they were mended for is not what is wrong now.
TEST(RandomWorlds, GangsThatWereMendedHaveTheirRequests) {
  std::vector<std::string> wrong;
  for (const uint64_t seed : {100437, 102155, 102754}) {
    wrong.push_back(CheckRandomWorld(seed));
    EXPECT_EQ(wrong.back().find("while the device idles"), std::string::npos) << seed;
  }
  Unmet("since a gang pays for each of its drains, they have 0.71 to 0.92 of their requests", [&] {
    for (const std::string& one : wrong) EXPECT_EQ(one, "");
  });
}

// One more of those: what it was mended for is not what is wrong now.
TEST(RandomWorlds, AllChargeWhatIsUsed) {
  const std::string mended = CheckRandomWorld(100164);
  EXPECT_TRUE(mended.empty() || IsOfChargesAlone(mended)) << mended;
  Unmet("one in thirty charges a share 1 % less than it used (docs/reports/promises.md); these do",
        [&mended] {
          EXPECT_EQ(mended, "");
          EXPECT_EQ(CheckRandomWorld(100001), "");
        });
}

// Until NVML was known to give no exact figures of time, this was asked of 300 worlds of any seeds.
TEST(RandomWorlds, NearlyAllKeepWhatIsPromisedAndChargeWhatIsUsed) {
  constexpr uint64_t kFirst = 100'000, kRuns = 100;
  uint64_t broken = 0;
  for (uint64_t seed = kFirst; seed < kFirst + kRuns; ++seed) {
    broken += !CheckRandomWorld(seed).empty();
  }
  EXPECT_LE(broken, kRuns / 20);
}

TEST(RandomWorlds, AllKeepWhatIsPromised) {
  Unmet("one random world in seventy breaks a promise (docs/reports/promises.md); these do", [] {
    for (const uint64_t seed : {100016, 100020, 100316, 102195}) {
      EXPECT_EQ(CheckRandomWorld(seed), "") << seed;
    }
    EXPECT_EQ(CheckRandomWorld(100131, WorldKind::kCrowd), "");
  });
}

}  // namespace
}  // namespace prorata::simulation
