#include "policy/slowness.h"

#include <gtest/gtest.h>

namespace prorata::policy {
namespace {

using enum Slowness;
using Reasons = std::vector<Slowness>;

SlownessFigures Running(double busy) {
  SlownessFigures figures;
  figures.programs = 1;
  figures.busy = busy;
  return figures;
}

TEST(SlownessTest, NothingSlowsWhoHasTheDevice) {
  EXPECT_EQ(WhySlow(Running(0.97)), Reasons{});
  EXPECT_EQ(WhySlow(Running(kMostIdleBusy)), Reasons{});
}

TEST(SlownessTest, WhoAsksForLittleIsIdle) {
  EXPECT_EQ(WhySlow(Running(0)), Reasons{kIdle});
  EXPECT_EQ(WhySlow(Running(0.49)), Reasons{kIdle});
}

TEST(SlownessTest, AKernelOfSecondsIsNotIdleness) {
  SlownessFigures figures = Running(0);
  figures.backlog_ns = 3'000'000'000;
  EXPECT_EQ(WhySlow(figures), Reasons{});
}

// Two busy neighbours: it mostly waits for its turn, and would be at its limit at once without
// them.
TEST(SlownessTest, WhoReachedItsLimitIsSlowByIt) {
  SlownessFigures figures = Running(0.19);
  figures.limit = 0.2;
  figures.at_limit = 0.3;
  figures.waiting = 0.5;
  EXPECT_EQ(WhySlow(figures), (Reasons{kAtLimit, kWaitsForTurn}));
  figures.busy = 0.17;
  EXPECT_EQ(WhySlow(figures), (Reasons{kWaitsForTurn, kAtLimit}));
}

TEST(SlownessTest, MemoryThatIsWaitedForComesBeforeTurns) {
  SlownessFigures figures = Running(0.1);
  figures.memory_waits = 2;
  EXPECT_EQ(WhySlow(figures), Reasons{kWaitsForMemory});
  figures.waiting = 0.5;
  EXPECT_EQ(WhySlow(figures), (Reasons{kWaitsForMemory, kWaitsForTurn}));
}

TEST(SlownessTest, WhatDoesNotEndWhenCalledBackComesFirst) {
  SlownessFigures figures = Running(0);
  figures.memory_waits = 1;
  figures.undrained = 0.49;
  EXPECT_EQ(WhySlow(figures), Reasons{kWaitsForMemory});
  figures.undrained = 0.5;
  EXPECT_EQ(WhySlow(figures), (Reasons{kCannotBeHeld, kWaitsForMemory}));
}

TEST(SlownessTest, APersistentKernelCannotBeHeldWhetherAnybodyWaitsOrNot) {
  SlownessFigures figures = Running(0);
  figures.persistent_kernels = 1;
  EXPECT_EQ(WhySlow(figures), Reasons{kCannotBeHeld}) << "and is not idle";
}

TEST(SlownessTest, TooMuchMemoryIsSaidBesideTheRest) {
  SlownessFigures figures = Running(0.9);
  figures.over_memory_limit = true;
  EXPECT_EQ(WhySlow(figures), Reasons{kOverMemoryLimit});
  figures.at_limit = 0.2;
  EXPECT_EQ(WhySlow(figures), (Reasons{kAtLimit, kOverMemoryLimit}));
}

TEST(SlownessTest, WithoutAProgramNothingElseMatters) {
  SlownessFigures figures;
  figures.waiting = 1;  // of one that has just died
  EXPECT_EQ(WhySlow(figures), Reasons{kNoProgram});
}

}  // namespace
}  // namespace prorata::policy
