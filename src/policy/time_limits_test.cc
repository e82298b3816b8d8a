// The elastic ceiling, and high limits; more of limits is in time_sharing_test.cc.

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

Program Busy(double request, double limit = 1) {
  Program program;
  program.terms.request = {static_cast<uint32_t>(request * 1e6 + 0.5)};
  program.terms.limit = {static_cast<uint32_t>(limit * 1e6 + 0.5)};
  return program;
}

TimeSharingOptions Ceiling(double ceiling) {
  TimeSharingOptions options;
  options.elastic_ceiling = {static_cast<uint32_t>(ceiling * 1e6 + 0.5)};
  return options;
}

double Part(int64_t used_ns) { return static_cast<double>(used_ns) / (10.0 * kS); }

TEST(ElasticCeiling, AShareAloneGrowsToItAndNotFurther) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    Machine machine({Busy(0.3)}, seed, 100 * kUs, Ceiling(0.9));
    machine.RunUntil(10 * kS);
    EXPECT_NEAR(Part(machine.Used(0)), 0.9, 0.01) << seed;
  }
}

// The elastic experiment of GaiaGPU: a second arrives, gets its request and a part of the rest, and
// leaves; the first grows again.
TEST(ElasticCeiling, AllTogetherStayBelowItWhoeverComesAndGoes) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    Program second = Busy(0.3);
    second.start_ns = 10 * kS;
    second.stop_ns = 20 * kS;
    Machine machine({Busy(0.3), second}, seed, 100 * kUs, Ceiling(0.8));
    machine.RunUntil(10 * kS);
    const int64_t alone = machine.Used(0);
    EXPECT_NEAR(Part(alone), 0.8, 0.01) << seed;
    machine.RunUntil(20 * kS);
    const int64_t beside = machine.Used(0) - alone;
    EXPECT_NEAR(Part(beside), 0.4, 0.02) << seed;
    EXPECT_NEAR(Part(machine.Used(1)), 0.4, 0.02) << seed;
    EXPECT_LE(Part(beside + machine.Used(1)), 0.81) << seed;
    machine.RunUntil(30 * kS);
    EXPECT_NEAR(Part(machine.Used(0) - alone - beside), 0.8, 0.02) << seed;
  }
}

TEST(ElasticCeiling, DoesNotTouchWhatWasRequested) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    Machine machine({Busy(0.6), Busy(0.3)}, seed, 100 * kUs, Ceiling(0.5));
    machine.RunUntil(10 * kS);
    EXPECT_NEAR(Part(machine.Used(0)), 0.6, 0.02) << seed;
    EXPECT_NEAR(Part(machine.Used(1)), 0.3, 0.02) << seed;
  }
}

// What it gets of the elastic part depends on when both its limit and the ceiling leave room.
TEST(ElasticCeiling, ALimitBelowItHolds) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    Machine machine({Busy(0.1, 0.2), Busy(0.1)}, seed, 100 * kUs, Ceiling(0.7));
    machine.RunUntil(10 * kS);
    EXPECT_GE(Part(machine.Used(0)), 0.1) << seed;
    EXPECT_LE(Part(machine.Used(0)), 0.21) << seed;
    EXPECT_NEAR(Part(machine.UsedByAll()), 0.7, 0.02) << seed;
  }
}

TEST(Limit, AHighOneIsReachedToo) {
  for (const double limit : {0.5, 0.8, 0.95}) {
    Machine machine({Busy(0, limit)}, 1, 100 * kUs);
    machine.RunUntil(10 * kS);
    EXPECT_NEAR(Part(machine.Used(0)), limit, 0.01);
  }
}

TEST(ElasticCeiling, IsToldAsALimit) {
  TimeSharing sharing(Ceiling(0.5));
  sharing.Add(1, Busy(0.1).terms, 0, 0);
  sharing.Decide(0);
  EXPECT_FALSE(sharing.State(1).open) << "nothing is saved yet";
  EXPECT_TRUE(sharing.AtLimit(1));
  sharing.Decide(20 * kMs);
  EXPECT_TRUE(sharing.State(1).open);
  EXPECT_FALSE(sharing.AtLimit(1));
}

}  // namespace
}  // namespace prorata::policy
