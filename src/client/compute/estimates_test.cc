#include "client/compute/estimates.h"

#include <gtest/gtest.h>

#include "client/compute/testing_world.h"

#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace prorata::client {
namespace {

TEST(Estimates, UnknownUntilLearnedThenFollowsSlowly) {
  auto estimates = std::make_unique<Estimates>();
  const uint64_t key = LaunchKey(&key, 1, 2, 3);
  EXPECT_EQ(estimates->Lookup(key), 0u);
  estimates->Learn(key, 8000, 8000);
  EXPECT_EQ(estimates->Lookup(key), 8000u);
  estimates->Learn(key, 16000, 16000);
  EXPECT_EQ(estimates->Lookup(key), 10000u);
}

// A function that takes 20 us or 20 ms had a second of work queued where one launch was measured.
TEST(Estimates, WhatIsSeenFirstIsBelievedStepByStep) {
  auto estimates = std::make_unique<Estimates>();
  const auto learn = [&] { estimates->Learn(7, 20'000, 20'000, RanBeside::kNone, 100'000); };
  for (const uint32_t expected : {100'000u, 50'000u, 25'000u, 20'000u}) {
    learn();
    EXPECT_EQ(estimates->Lookup(7), expected);
  }
  estimates->Learn(8, 1000, 40'000, RanBeside::kInSlices, 100'000);
  EXPECT_EQ(estimates->Lookup(8), 40'000u) << "it may be too long as it is";
  estimates->Learn(8, 9000, 9000, RanBeside::kNone, 100'000);
  EXPECT_EQ(estimates->Lookup(8), 100'000u);
}

// Beside members of its own share a launch is measured too long, as a rule, and never too short.
TEST(Estimates, WhatOthersRanBesideMakesLongerBySlowSteps) {
  auto estimates = std::make_unique<Estimates>();
  estimates->Learn(7, 9000, 9000, RanBeside::kOwnShare);
  EXPECT_EQ(estimates->Lookup(7), 9000u) << "there is nothing better to go by";
  estimates->Learn(7, 9000 + 32'000, 9000 + 32'000, RanBeside::kOwnShare);
  EXPECT_EQ(estimates->Lookup(7), 10'000u);
  estimates->Learn(7, 6000, 6000, RanBeside::kOwnShare);
  EXPECT_EQ(estimates->Lookup(7), 9000u) << "shorter is nearer to the truth";
}

TEST(Estimates, WhatIsKnownWithinBoundsMovesNoneThatIsBetweenThem) {
  auto estimates = std::make_unique<Estimates>();
  estimates->Learn(7, 2000, 8000);
  EXPECT_EQ(estimates->Lookup(7), 8000u) << "too long is harmless";
  estimates->Learn(7, 4000, 4000);
  EXPECT_EQ(estimates->Lookup(7), 7000u);
  estimates->Learn(7, 2000, 8000);
  EXPECT_EQ(estimates->Lookup(7), 7000u);
  estimates->Learn(7, 8000, 16'000);
  EXPECT_EQ(estimates->Lookup(7), 7250u) << "towards the nearer of them";
  estimates->Learn(7, 1000, 3250);
  EXPECT_EQ(estimates->Lookup(7), 6250u);
}

// Of kernels that take now this and now that only the shortest end before what is expected of them;
// longer ones may have waited for the slices of others.
TEST(Estimates, WhatWasSeenBetweenTheSlicesOfOthersCountsUntilThereIsBetter) {
  auto estimates = std::make_unique<Estimates>();
  estimates->Learn(7, 1000, 40'000, RanBeside::kInSlices);
  EXPECT_EQ(estimates->Lookup(7), 40'000u);
  estimates->Learn(7, 1000, 8000, RanBeside::kInSlices);
  EXPECT_EQ(estimates->Lookup(7), 32'000u);
  estimates->Learn(7, 12'000, 12'000);
  EXPECT_EQ(estimates->Lookup(7), 12'000u);
  estimates->Learn(7, 1000, 2000, RanBeside::kInSlices);
  EXPECT_EQ(estimates->Lookup(7), 12'000u);
  estimates->Learn(7, 8000, 8000);
  EXPECT_EQ(estimates->Lookup(7), 11'000u);
}

TEST(Estimates, NothingTakesNothingAndNothingOverflows) {
  auto estimates = std::make_unique<Estimates>();
  estimates->Learn(3, 1, 1);
  EXPECT_EQ(estimates->Lookup(3), Estimates::kMinNs);
  estimates->Learn(5, ~uint64_t{0}, ~uint64_t{0});
  EXPECT_EQ(estimates->Lookup(5), 4'000'000'000u);
}

TEST(Estimates, FunctionsAreTheSameWithAsManyBlocks) {
  int f = 0, g = 0;
  EXPECT_NE(LaunchKey(&f, 1), LaunchKey(&g, 1));
  EXPECT_NE(LaunchKey(&f, 1), LaunchKey(&f, 2));
  EXPECT_EQ(LaunchKey(&f, 6, 5, 4), LaunchKey(&f, 4, 6, 5)) << "they take the same";
  EXPECT_NE(LaunchKey(nullptr, 0, 0, 0), 0u);
}

// The data of some programs has another size each time, and each launch another grid.
TEST(Estimates, AFunctionHasFewKeysHoweverManyGrids) {
  int f = 0;
  std::set<uint64_t> keys;
  for (uint64_t blocks = 1; blocks <= 1'000'000; ++blocks) keys.insert(LaunchKey(&f, blocks));
  EXPECT_LE(keys.size(), 8u * 20);
  for (uint64_t blocks = 8; blocks <= uint64_t{1} << 62; blocks *= 2) {
    EXPECT_NE(LaunchKey(&f, blocks), LaunchKey(&f, blocks + blocks / 8)) << blocks;
  }
}

// All of one function's lay in the same few places, and drove each other out.
TEST(Estimates, GridsThatDifferInOneDimensionAreAllRemembered) {
  int f = 0;
  for (const int dimension : {0, 1, 2}) {
    auto estimates = std::make_unique<Estimates>();
    const auto key = [&](uint64_t n) {
      return LaunchKey(&f, dimension == 0 ? n : 1, dimension == 1 ? n : 1, dimension == 2 ? n : 1);
    };
    for (uint64_t n = 1; n <= 65'535; n += 1 + n / 8) estimates->Learn(key(n), 5000, 5000);
    for (uint64_t n = 1; n <= 65'535; n += 1 + n / 8) {
      EXPECT_EQ(estimates->Lookup(key(n)), 5000u) << dimension << ": " << n;
    }
  }
}

// A program that never launches the same again was taken for one whose launches take 2 ms each.
TEST(Estimates, WhatNobodyKnowsCountsAsWhatNobodyKnewBefore) {
  auto estimates = std::make_unique<Estimates>();
  EXPECT_EQ(estimates->ForUnknown(100'000), 100'000u);
  const auto learn = [&](uint64_t ns) {
    estimates->LearnUnknown(ns, ns, RanBeside::kNone, 100'000);
    return estimates->ForUnknown(100'000);
  };
  for (const uint32_t expected : {100'000u, 50'000u, 25'000u, 20'000u}) {
    EXPECT_EQ(learn(20'000), expected);
  }
  EXPECT_EQ(learn(400'000), 115'000u);
}

TEST(Estimates, MoreFunctionsThanRoomAndManyThreadsDoNoHarm) {
  auto estimates = std::make_unique<Estimates>();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 1; i < 20'000; ++i) {
        const uint64_t key = LaunchKey(&threads, i, t % 2, 0);
        estimates->Learn(key, 5000, 5000);
        const uint32_t ns = estimates->Lookup(key);
        EXPECT_TRUE(ns == 0 || ns == 5000) << ns;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class UnknownTest : public WorkTrackerTest {};

TEST_F(UnknownTest, UnknownFunctionsAreMeasuredAlone) {
  Context context(world_);
  Launch(context, 0, 1, world_.now_ns + 300'000);
  EXPECT_EQ(context.streams[0].pending, 1u);
  EXPECT_EQ(world_.compute.backlog.ns(), kUnknownNs);
  world_.now_ns += 400'000;
  Poll();
  EXPECT_EQ(world_.estimates().Lookup(1), kFirstNs) << "the next may take longer";
  EXPECT_EQ(Measured(), 300'000u);
}

// A program that launches something new each time had the device for a tenth of what it should.
TEST_F(UnknownTest, UnknownFunctionsCountAsThoseBefore) {
  Context context(world_);
  for (uint64_t key = 1; key <= 8; ++key) {
    Launch(context, 0, key, world_.now_ns + 30'000);
    world_.now_ns += 40'000;
    Poll();
  }
  Launch(context, 0, 9, world_.now_ns + 30'000);
  EXPECT_EQ(world_.compute.backlog.ns(), 30'000u);
  world_.now_ns += 40'000;
  Poll();
  EXPECT_EQ(world_.estimates().Lookup(9), 30'000u) << "as nothing of this program takes longer";
}

// Its first launch of a slice waits until the device has turned to its process: 5 us counted as 30.
TEST_F(UnknownTest, WhatTheFirstOfASliceWaitsForIsNotLearned) {
  Context context(world_);
  Teach(1, 5'000);
  Teach(2, 5'000'000);
  const auto measured = [&](uint64_t key, int64_t ns) {
    context.streams[0].probe.store(1);
    Launch(context, 0, key, world_.now_ns + ns);
    world_.now_ns += ns;
    Poll();
    return world_.estimates().Lookup(key);
  };
  EXPECT_EQ(measured(1, 105'000), 5'000u);
  EXPECT_EQ(Measured(), 5'000u);
  EXPECT_EQ(measured(1, 105'000), 30'000u) << "in the same slice it took longer";
  world_.limits.lease.store(Word(3, kOpen));
  EXPECT_EQ(measured(2, 9'250'000), 6'000'000u) << "that is no turn";
}

}  // namespace
}  // namespace prorata::client
