#include "policy/compute/throttle_reasons.h"

#include <gtest/gtest.h>

namespace prorata::policy {
namespace {

using enum ThrottleReason;
using Reasons = std::vector<ThrottleReason>;

ThrottleFigures Running(double busy) {
  ThrottleFigures figures;
  figures.programs = 1;
  figures.busy = busy;
  return figures;
}

TEST(ThrottleReasonsTest, NothingSlowsWhoHasTheDevice) {
  EXPECT_EQ(ThrottleReasons(Running(0.97)), Reasons{});
  EXPECT_EQ(ThrottleReasons(Running(kMaxIdleBusy)), Reasons{});
}

TEST(ThrottleReasonsTest, WhoAsksForLittleIsIdle) {
  EXPECT_EQ(ThrottleReasons(Running(0)), Reasons{kIdle});
  EXPECT_EQ(ThrottleReasons(Running(0.49)), Reasons{kIdle});
}

TEST(ThrottleReasonsTest, AKernelOfSecondsIsNotIdleness) {
  ThrottleFigures figures = Running(0);
  figures.backlog_ns = 3'000'000'000;
  EXPECT_EQ(ThrottleReasons(figures), Reasons{});
}

// Two busy neighbours: it mostly waits for other shares, and would be at its limit at once without
// them.
TEST(ThrottleReasonsTest, WhoReachedItsLimitIsSlowByIt) {
  ThrottleFigures figures = Running(0.19);
  figures.limit = 0.2;
  figures.at_limit = 0.3;
  figures.waiting = 0.5;
  EXPECT_EQ(ThrottleReasons(figures), (Reasons{kAtLimit, kWaitsForOthers}));
  figures.busy = 0.17;
  EXPECT_EQ(ThrottleReasons(figures), (Reasons{kWaitsForOthers, kAtLimit}));
}

TEST(ThrottleReasonsTest, MemoryThatIsWaitedForComesBeforeTurns) {
  ThrottleFigures figures = Running(0.1);
  figures.memory_waits = 2;
  EXPECT_EQ(ThrottleReasons(figures), Reasons{kWaitsForMemory});
  figures.waiting = 0.5;
  EXPECT_EQ(ThrottleReasons(figures), (Reasons{kWaitsForMemory, kWaitsForOthers}));
}

TEST(ThrottleReasonsTest, WhatDoesNotEndWhenRevokedComesFirst) {
  ThrottleFigures figures = Running(0);
  figures.memory_waits = 1;
  figures.undrained = 0.49;
  EXPECT_EQ(ThrottleReasons(figures), Reasons{kWaitsForMemory});
  figures.undrained = 0.5;
  EXPECT_EQ(ThrottleReasons(figures), (Reasons{kNonPreemptible, kWaitsForMemory}));
}

TEST(ThrottleReasonsTest, APersistentKernelIsNonPreemptibleWhetherAnybodyWaitsOrNot) {
  ThrottleFigures figures = Running(0);
  figures.persistent_kernels = 1;
  EXPECT_EQ(ThrottleReasons(figures), Reasons{kNonPreemptible}) << "and is not idle";
}

TEST(ThrottleReasonsTest, OfAProgramThatIsStoppedNothingElseIsKnown) {
  ThrottleFigures figures = Running(0);
  figures.stopped = true;
  figures.waiting = figures.undrained = 1;
  EXPECT_EQ(ThrottleReasons(figures), Reasons{kDoesNotAnswer});
}

TEST(ThrottleReasonsTest, TooMuchMemoryIsSaidBesideTheRest) {
  ThrottleFigures figures = Running(0.9);
  figures.over_memory_limit = true;
  EXPECT_EQ(ThrottleReasons(figures), Reasons{kOverMemoryLimit});
  figures.at_limit = 0.2;
  EXPECT_EQ(ThrottleReasons(figures), (Reasons{kAtLimit, kOverMemoryLimit}));
}

TEST(ThrottleReasonsTest, WithoutAProgramNothingElseMatters) {
  ThrottleFigures figures;
  figures.waiting = 1;  // of one that has just died
  EXPECT_EQ(ThrottleReasons(figures), Reasons{kNoProgram});
}

}  // namespace
}  // namespace prorata::policy
