#include "policy/compute/gangs.h"
#include "base/units.h"

#include <gtest/gtest.h>

#include <map>

namespace prorata::policy {
namespace {

// A share on two devices: it stalls on the first while it waits for its lease on the second, again
// and again.
class GangsTest : public ::testing::Test {
 protected:
  GangsTest() { gangs_.Add(1, {0, 1}, /*requested=*/false); }

  // What is left of it becomes less by `by_ns` each time.
  void StallAgainAndAgain(bool blocked, int64_t by_ns = 0) {
    int64_t now_ns = 0;
    for (int stall = 0; stall < 10; ++stall) {
      seen_[0] = {.stalled = true, .blocked = blocked, .backlog_ns = 20 * kMs};
      seen_[1].runnable = true;
      for (int i = 0; i < 20; ++i) {
        gangs_.Decide(now_ns += kMs / 5,
                      [this](Gangs::Key, size_t device) { return seen_[device]; });
        seen_[0].backlog_ns -= by_ns;
      }
      seen_[0] = {};
      gangs_.Decide(now_ns += 10 * kMs,
                    [this](Gangs::Key, size_t device) { return seen_[device]; });
    }
  }

  Gangs gangs_;
  std::map<size_t, LeasePolicy::GangSeen> seen_;
};

TEST_F(GangsTest, AShareWhoseKernelsWaitForEachOtherBecomesOne) {
  StallAgainAndAgain(false);
  EXPECT_TRUE(gangs_.IsGang(1));
}

TEST_F(GangsTest, OneLongStallMakesOneToo) {
  seen_[0] = {.stalled = true, .backlog_ns = kMs};
  seen_[1].runnable = true;
  const auto see = [this](Gangs::Key, size_t device) { return seen_[device]; };
  for (int64_t now_ns = 0; now_ns < 250 * kMs;) now_ns = gangs_.Decide(now_ns, see).next_ns;
  EXPECT_TRUE(gangs_.IsGang(1));
}

TEST_F(GangsTest, WorkBehindAStreamWaitIsNoKernelThatWaitsForItsPeer) {
  StallAgainAndAgain(true);
  EXPECT_FALSE(gangs_.IsGang(1));
}

TEST_F(GangsTest, NorIsLongWorkThatGoesOn) {
  StallAgainAndAgain(false, kMs / 5);
  EXPECT_FALSE(gangs_.IsGang(1));
}

// All of it was stalled, and the launch that it waits for waits for a lease.
TEST_F(GangsTest, OneThatIsStalledOnAllItsDevicesHasATurn) {
  gangs_.SetRequested(1, true);
  for (const size_t device : {0, 1}) {
    seen_[device].stalled = true;
    seen_[device].runnable = seen_[device].ready = seen_[device].may = device == 1;
  }
  bool on = false;
  for (int64_t now_ns = 0; now_ns < 200 * kMs; now_ns += kMs) {
    const auto see = [this](Gangs::Key, size_t device) { return seen_[device]; };
    for (const Gangs::Order& order : gangs_.Decide(now_ns, see).orders) {
      on = on || order.slice == Gangs::Slice::kOn;
    }
  }
  EXPECT_TRUE(on);
}

}  // namespace
}  // namespace prorata::policy
