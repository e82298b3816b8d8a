#include "policy/compute/gangs.h"
#include "base/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace prorata::policy {
namespace {

// A share on two devices: it stalls on the first while it waits for its lease on the second, again
// and again.
class GangsTest : public ::testing::Test {
 protected:
  GangsTest() { gangs_.Add(1, {0, 1}, /*requested=*/false); }

  // What is left of it becomes less by `by_ns` each time, and `launches` are made on the second.
  void StallAgainAndAgain(bool blocked, int64_t by_ns = 0, uint64_t launches = 0) {
    int64_t now_ns = 0;
    for (int stall = 0; stall < 10; ++stall) {
      seen_[0] = {.stalled = true, .blocked = blocked, .backlog_ns = 20 * kMs};
      seen_[1].runnable = true;
      for (int i = 0; i < 20; ++i) {
        gangs_.Decide(now_ns += kMs / 5, See());
        seen_[0].backlog_ns -= by_ns;
        seen_[1].launches += launches;
      }
      seen_[0] = {};
      gangs_.Decide(now_ns += 10 * kMs, See());
    }
  }

  // Within 200 ms, where each device that it gathers is its own at once.
  bool IsLetIn() {
    bool on = false;
    for (int64_t now_ns = 0; now_ns < 200 * kMs; now_ns += kMs) {
      for (const Gangs::Order& order : gangs_.Decide(now_ns, See()).orders) {
        if (order.slice == Gangs::Slice::kGather) seen_[order.device].open = true;
        on = on || order.slice == Gangs::Slice::kOn;
      }
    }
    return on;
  }

  Gangs::See See() {
    return [this](Gangs::Key, size_t device) { return seen_[device]; };
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
  for (int64_t now_ns = 0; now_ns < 250 * kMs;) now_ns = gangs_.Decide(now_ns, See()).next_ns;
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

// Two programs of one share, on a device each: one of them takes longer than was expected.
TEST_F(GangsTest, NorIsAShareWhoseDevicesAreNotLaunchedOnAlike) {
  StallAgainAndAgain(false, 0, /*launches=*/20);
  EXPECT_FALSE(gangs_.IsGang(1));
}

// All of it was stalled, and the launch that it waits for waits for a lease.
TEST_F(GangsTest, OneThatIsStalledOnAllItsDevicesHasATurn) {
  gangs_.SetRequested(1, true);
  for (const size_t device : {0, 1}) {
    seen_[device].stalled = true;
    seen_[device].runnable = seen_[device].ready = seen_[device].may = device == 1;
  }
  EXPECT_TRUE(IsLetIn());
}

// At its limit on one of them, too, where it pays for waiting: that never ends by itself.
TEST_F(GangsTest, OneThatIsStalledAndAtItsLimitThereLaunchesWhereItMay) {
  gangs_.SetRequested(1, true);
  seen_[0] = {.runnable = true, .stalled = true, .limited_ns = kS};
  seen_[1] = {.runnable = true, .stalled = true, .ready = true, .may = true};
  EXPECT_TRUE(IsLetIn());
}

// A gang that wants both devices, and what it is told there: what each device was last.
class RequestedGangTest : public GangsTest {
 protected:
  RequestedGangTest() {
    gangs_.SetRequested(1, true);
    Decide(0);  // its next slice is the first one as a gang
    for (const size_t device : {0, 1}) Wants(device);
    Decide(0);
  }

  void Wants(size_t device) {
    seen_[device] = {};
    seen_[device].runnable = seen_[device].ready = seen_[device].may = true;
  }
  int64_t Decide(int64_t now_ns) {
    told_.clear();
    launches_.clear();
    for (;;) {
      const Gangs::Decisions decisions = gangs_.Decide(now_ns, See());
      for (const Gangs::Order& order : decisions.orders) {
        if (order.what == Gangs::Order::What::kEndDrain) continue;
        told_[order.device] = order.slice;
        launches_[order.device] = order.launches;
      }
      if (decisions.orders.empty()) return decisions.next_ns;
    }
  }
  // Let in on both, and revoked there: it has drained on device 0 alone.
  void StopUnevenly(int64_t now_ns) {
    for (const size_t device : {0, 1}) seen_[device] = {.open = true};
    Decide(now_ns);
    for (const size_t device : {0, 1}) seen_[device] = {.draining = true, .backlog_ns = kMs};
    Decide(now_ns);
    Stop(0, 1);
  }
  void Stop(size_t drained, size_t stuck) {
    seen_[drained] = {.runnable = true, .draining = true, .drained = true};
    seen_[stuck] = {.draining = true, .backlog_ns = kMs};
  }
  // Until it is told something.
  int64_t Await(int64_t now_ns) {
    const int64_t until_ns = now_ns + 100 * kMs;
    while (now_ns < until_ns) {
      const int64_t next_ns = Decide(now_ns);
      if (!told_.empty()) return now_ns;
      now_ns = std::min(next_ns, now_ns + kMs);
    }
    ADD_FAILURE() << "it is told nothing";
    return now_ns;
  }
  // The time for the launches on `behind` is over, and it has drained once more.
  int64_t CatchUp(int64_t now_ns, size_t behind, size_t stuck) {
    seen_[behind] = {.open = true};
    now_ns = Await(now_ns);
    EXPECT_EQ(told_[behind], Gangs::Slice::kAway);
    Stop(behind, stuck);
    return now_ns;
  }

  std::map<size_t, Gangs::Slice> told_;
  std::map<size_t, uint32_t> launches_;
};

TEST_F(RequestedGangTest, IsLetInWhenAllItsDevicesAreItsOwn) {
  EXPECT_EQ(told_[0], Gangs::Slice::kGather);
  EXPECT_EQ(told_[1], Gangs::Slice::kGather);
  seen_[0].open = true;
  Decide(kMs);
  EXPECT_TRUE(told_.empty()) << "its kernels on device 0 would wait for those on device 1";
  seen_[1].open = true;
  Decide(2 * kMs);
  EXPECT_EQ(told_[0], Gangs::Slice::kOn);
  EXPECT_EQ(told_[1], Gangs::Slice::kOn);
}

TEST_F(RequestedGangTest, OthersGoOnUntilTheLastOfItsDevicesIsNearlyFree) {
  for (const size_t device : {0, 1}) seen_[device] = {.draining = true, .drained = true};
  Decide(kMs);  // its turn is over
  for (const size_t device : {0, 1}) Wants(device);
  seen_[1].free_in_ns = 10 * kMs;
  const int64_t next_ns = Decide(2 * kMs);
  EXPECT_EQ(told_, (std::map<size_t, Gangs::Slice>{{1, Gangs::Slice::kGather}}));
  EXPECT_LE(next_ns, 3 * kMs);
  seen_[1].free_in_ns = kMs / 10;
  Decide(11 * kMs);
  EXPECT_EQ(told_, (std::map<size_t, Gangs::Slice>{{0, Gangs::Slice::kGather}}));
}

// What it owes there would be taken from its turn at once, and its drain is at the other's cost.
TEST_F(RequestedGangTest, WhereItOwesTimeItIsPutFirstLater) {
  for (const bool owes : {false, true}) {
    for (const size_t device : {0, 1}) seen_[device] = {.draining = true, .drained = true};
    Decide(0);
    for (const size_t device : {0, 1}) Wants(device);
    seen_[1].ready = false;
    seen_[1].owes = owes;
    int64_t now_ns = 0;
    while (Decide(now_ns) < LeasePolicy::kNever && told_.empty()) now_ns += kMs;
    EXPECT_EQ(told_[1], Gangs::Slice::kOn);
    EXPECT_EQ(now_ns, (owes ? 156 : 52) * kMs);
    Decide(now_ns += kMs);
    for (const size_t device : {0, 1}) seen_[device] = {};
    Decide(now_ns);
  }
}

// It is not next there: that would be taken from it at once, and its turn would end with that.
TEST_F(RequestedGangTest, WhereItIsBlockedAndOwesItIsLetInWhenThatHasRun) {
  for (const size_t device : {0, 1}) seen_[device] = {.draining = true, .drained = true};
  Decide(0);
  Wants(0);
  seen_[1] = {.runnable = true, .stalled = true, .blocked = true, .owes = true, .backlog_ns = kMs};
  Decide(kMs);
  EXPECT_EQ(told_, (std::map<size_t, Gangs::Slice>{{0, Gangs::Slice::kGather}}));
  seen_[0] = {.open = true};
  Decide(2 * kMs);
  EXPECT_EQ(told_, (std::map<size_t, Gangs::Slice>{{0, Gangs::Slice::kOn}}));
  Decide(3 * kMs);
  EXPECT_TRUE(told_.empty());
  seen_[1] = {.runnable = true, .owes = true};
  Decide(4 * kMs);
  EXPECT_EQ(told_, (std::map<size_t, Gangs::Slice>{{1, Gangs::Slice::kOn}}));
}

TEST_F(RequestedGangTest, AtItsLimitOnOneDeviceItBeginsOnNone) {
  for (const size_t device : {0, 1}) seen_[device] = {.draining = true, .drained = true};
  Decide(kMs);
  Wants(0);
  seen_[1] = {.limited_ns = 7 * kMs};  // it wants nothing there yet
  EXPECT_EQ(Decide(2 * kMs), 9 * kMs);
  EXPECT_TRUE(told_.empty());
}

TEST_F(RequestedGangTest, WhoIsBehindMayLaunchAFewAndMoreEachTime) {
  StopUnevenly(kMs);
  int64_t now_ns = kMs;
  for (const uint32_t launches : {1, 2, 4}) {
    now_ns = Await(now_ns);
    EXPECT_EQ(told_[0], Gangs::Slice::kCatchUp);
    EXPECT_EQ(launches_[0], launches);
    EXPECT_EQ(told_[1], Gangs::Slice::kCatchUp);
    EXPECT_EQ(launches_[1], 0U) << "it is ahead";
    now_ns = CatchUp(now_ns, 0, 1);
  }
  Stop(1, 0);  // it has launched too much: now the other is behind
  now_ns = Await(now_ns);
  EXPECT_EQ(launches_[1], 1U);
  EXPECT_EQ(launches_[0], 0U);
  now_ns = CatchUp(now_ns, 1, 0);
  for (const size_t device : {0, 1}) seen_[device] = {.draining = true, .drained = true};
  Decide(now_ns);
  for (const size_t device : {0, 1}) Wants(device);
  Decide(now_ns + kMs);
  EXPECT_EQ(told_[0], Gangs::Slice::kGather) << "it has drained, and has another turn";
}

// All that it has on device 0 stands behind a wait, which its own thread ends after its next
// launch.
TEST_F(RequestedGangTest, WhoseWorkIsBlockedUntilItsNextLaunchIsBehind) {
  StopUnevenly(kMs);
  seen_[0] = {.draining = true, .blocked = true, .backlog_ns = 1};
  for (int64_t now_ns = kMs; now_ns < 20 * kMs; now_ns += kMs) {
    Decide(now_ns);
    EXPECT_TRUE(told_.empty()) << "no launch waits there";
  }
  seen_[0].runnable = true;
  EXPECT_LT(Await(20 * kMs), 21 * kMs);
  EXPECT_EQ(told_[0], Gangs::Slice::kCatchUp);
  EXPECT_EQ(launches_[0], 1U);
}

// Its own threads end those waits, and launch nothing before.
TEST_F(RequestedGangTest, WhoseWorkIsBlockedOnAllItsDevicesIsInNobodysWay) {
  StopUnevenly(kMs);
  int ended = 0;
  seen_[1] = {.draining = true, .blocked = true, .backlog_ns = 1};
  for (const Gangs::Order& order : gangs_.Decide(kMs, See()).orders) {
    ended += order.what == Gangs::Order::What::kEndDrain;
  }
  EXPECT_EQ(ended, 2);
}

// Each is first on one of the two devices, and nobody else wants them.
TEST_F(RequestedGangTest, OfTwoThatDisagreeTheLargerLagGoesFirst) {
  for (const size_t device : {0, 1}) seen_[device] = {.draining = true, .drained = true};
  Decide(kMs);
  gangs_.Add(2, {0, 1}, /*requested=*/true);
  std::map<Gangs::Key, std::map<size_t, LeasePolicy::GangSeen>> seen;
  for (const Gangs::Key key : {1, 2}) {
    for (const size_t device : {0, 1}) {
      seen[key][device] = {
          .runnable = true, .ready = device == key - 1, .ahead = device == key - 1, .may = true};
    }
    seen[key][key - 1].lag_ns = static_cast<double>(key * kMs);
  }
  std::map<Gangs::Key, Gangs::Slice> told;
  const auto see = [&](Gangs::Key key, size_t device) { return seen[key][device]; };
  const auto decide = [&](int64_t now_ns) {
    told.clear();
    for (const Gangs::Order& order : gangs_.Decide(now_ns, see).orders) {
      if (order.what == Gangs::Order::What::kSlice) told[order.share] = order.slice;
    }
  };
  for (const int64_t now_ns : {2 * kMs, 3 * kMs, 4 * kMs}) decide(now_ns);
  EXPECT_TRUE(told.empty()) << "another share is before each on one device";
  seen[1][1].ahead = seen[2][0].ahead = true;
  decide(5 * kMs);
  EXPECT_EQ(told, (std::map<Gangs::Key, Gangs::Slice>{{2, Gangs::Slice::kGather}}));
}

TEST_F(RequestedGangTest, LongWorkThatWaitsForNobodyIsNotCaughtUpWithForEver) {
  StopUnevenly(kMs);
  int64_t now_ns = kMs;
  int times = 0;
  while (now_ns < kS) {
    Decide(now_ns);
    if (told_.contains(0) && told_[0] == Gangs::Slice::kCatchUp) {
      ++times;
      now_ns = CatchUp(now_ns, 0, 1);
    } else {
      now_ns += kMs / 10;
    }
  }
  EXPECT_EQ(times, 7) << "one launch to 64 at once";
}

TEST_F(RequestedGangTest, WhatGoesOnIsNotBehind) {
  StopUnevenly(kMs);
  for (int64_t now_ns = kMs; now_ns < 20 * kMs; now_ns += kMs / 5) {
    seen_[1].backlog_ns -= kMs / 100;
    Decide(now_ns);
    ASSERT_TRUE(told_.empty()) << "its backlog becomes less";
  }
}

}  // namespace
}  // namespace prorata::policy
