#include "sim/policies/round_robin.h"
#include "base/units.h"

#include <gtest/gtest.h>

namespace prorata::policy {
namespace {

class RoundRobinTest : public ::testing::Test {
 protected:
  RoundRobinTest() {
    for (const LeasePolicy::Key key : {1, 2, 3}) policy_.Add(key, {}, {}, 0);
  }
  // Who has the lease after deciding; 0: nobody.
  LeasePolicy::Key Holder(int64_t now_ns) {
    policy_.Decide(now_ns);
    LeasePolicy::Key holder = 0;
    for (const LeasePolicy::Key key : {1, 2, 3}) {
      if (policy_.State(key).phase != LeasePolicy::Phase::kRunning) continue;
      EXPECT_EQ(holder, 0u) << "two at once";
      holder = key;
    }
    return holder;
  }
  RoundRobin policy_;
};

TEST_F(RoundRobinTest, TakesTurnsInOrderWhateverTheTermsAre) {
  policy_.SetTerms(1, {Fraction{900'000}}, 0);
  for (const LeasePolicy::Key key : {1, 2, 3}) policy_.Wanted(key, 0);
  int64_t now = 0;
  for (const LeasePolicy::Key expected : {1, 2, 3, 1, 2, 3}) {
    EXPECT_EQ(Holder(now), expected);
    EXPECT_EQ(policy_.Decide(now).next_ns, now + RoundRobin::kQuantumNs);
    EXPECT_EQ(Holder(now + RoundRobin::kQuantumNs - 1), expected);
    now += RoundRobin::kQuantumNs;
    EXPECT_EQ(Holder(now), 0u) << "it has not drained";
    EXPECT_EQ(policy_.State(expected).phase, LeasePolicy::Phase::kDraining);
    policy_.Wanted(expected, now);
    policy_.Drained(expected, now, now);
  }
}

TEST_F(RoundRobinTest, AHolderKeepsTheDeviceUntilSomebodyWantsIt) {
  policy_.Wanted(2, 0);
  EXPECT_EQ(Holder(0), 2u);
  EXPECT_EQ(Holder(500 * kMs), 2u);
  EXPECT_EQ(policy_.Decide(500 * kMs).next_ns, LeasePolicy::kNever);
  policy_.Wanted(1, 500 * kMs);
  EXPECT_EQ(Holder(500 * kMs), 0u);
  policy_.Drained(2, 501 * kMs, 501 * kMs);
  EXPECT_EQ(Holder(501 * kMs), 1u);
}

TEST_F(RoundRobinTest, AnIdleHolderGivesItsTurnAway) {
  policy_.Wanted(1, 0);
  EXPECT_EQ(Holder(0), 1u);
  policy_.Idle(1, 1 * kMs);
  EXPECT_EQ(Holder(1 * kMs), 1u);
  policy_.Wanted(3, 2 * kMs);
  EXPECT_EQ(Holder(2 * kMs), 0u);
  policy_.Drained(1, 2 * kMs, 2 * kMs);
  EXPECT_EQ(Holder(2 * kMs), 3u);
  policy_.Idle(3, 3 * kMs);
  policy_.Observe(3, {.busy_total_ns = 100, .backlog_ns = 50});
  policy_.Wanted(1, 4 * kMs);
  EXPECT_EQ(Holder(4 * kMs), 3u) << "it works again";
}

TEST_F(RoundRobinTest, WhoIsRemovedDoesNotHoldUpTheOthers) {
  policy_.Wanted(1, 0);
  policy_.Wanted(2, 0);
  EXPECT_EQ(Holder(0), 1u);
  policy_.Remove(1, 1 * kMs);
  EXPECT_EQ(Holder(1 * kMs), 2u);
}

}  // namespace
}  // namespace prorata::policy
