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

// Three launches on device 0, and eight on device 1, whose last wait for their peers.
TEST_F(RequestedGangTest, WhoIsBehindByItsCountMayLaunchWhatItLacks) {
  StopUnevenly(kMs);
  seen_[0].launches = 3;
  seen_[1].launches = 8;
  int64_t now_ns = Await(kMs);
  EXPECT_EQ(told_[0], Gangs::Slice::kCatchUp);
  EXPECT_EQ(launches_[0], 5U);
  EXPECT_EQ(launches_[1], 0U);
  seen_[0] = {.open = true, .launches = 7};
  Decide(now_ns += kMs);
  EXPECT_TRUE(told_.empty()) << "it still lacks one";
  seen_[1].launches = 9;  // that was under way when its lease was revoked
  Decide(now_ns += kMs);
  EXPECT_EQ(told_[0], Gangs::Slice::kCatchUp);
  EXPECT_EQ(launches_[0], 2U);
  seen_[0].launches = 9;
  Decide(now_ns += kMs);
  EXPECT_EQ(told_[0], Gangs::Slice::kAway);
  EXPECT_EQ(told_[1], Gangs::Slice::kAway);
}

// All that it has on device 0 stands behind a wait, which its own thread ends after its next
// launch.
TEST_F(RequestedGangTest, WhoseWorkIsBlockedUntilItsNextLaunchIsBehind) {
  StopUnevenly(kMs);
  seen_[0] = {.draining = true, .blocked = true, .backlog_ns = 1, .launches = 3};
  seen_[1].launches = 8;
  for (int64_t now_ns = kMs; now_ns < 20 * kMs; now_ns += kMs) {
    Decide(now_ns);
    EXPECT_TRUE(told_.empty()) << "no launch waits there";
  }
  seen_[0].runnable = true;
  EXPECT_LT(Await(20 * kMs), 21 * kMs);
  EXPECT_EQ(told_[0], Gangs::Slice::kCatchUp);
  EXPECT_EQ(launches_[0], 5U);
}

// Once it was seen that its kernels wait for each other.
TEST_F(RequestedGangTest, ADeviceThatHasNotDrainedMayThenLaunchWhatItLacksToo) {
  StopUnevenly(kMs);
  seen_[1].launches = 1;
  int64_t now_ns = Await(kMs);
  EXPECT_GE(now_ns, kMs + kMs / 3);
  for (const size_t device : {0, 1}) {
    seen_[device] = {.draining = true, .drained = true, .launches = 1};
  }
  Decide(now_ns += kMs);
  for (const size_t device : {0, 1}) Wants(device);
  for (const size_t device : {0, 1}) seen_[device].launches = 1;
  Decide(now_ns += kMs);
  for (const size_t device : {0, 1}) seen_[device] = {.open = true, .launches = 1};
  Decide(now_ns += kMs);
  for (const size_t device : {0, 1}) {
    seen_[device] = {.draining = true, .backlog_ns = kMs, .launches = 1 + device};
  }
  Decide(now_ns += kMs);
  EXPECT_LT(Await(now_ns), now_ns + kMs / 3);
  EXPECT_EQ(told_[0], Gangs::Slice::kCatchUp);
  EXPECT_EQ(launches_[0], 1U);
}

TEST_F(RequestedGangTest, OneThatLaunchesNothingOfWhatItLacksIsLeftToSteps) {
  StopUnevenly(kMs);
  seen_[1].launches = 2;
  int64_t now_ns = Await(kMs);
  seen_[0] = {.open = true};
  now_ns = Await(now_ns);
  EXPECT_EQ(told_[0], Gangs::Slice::kAway);
  Stop(0, 1);
  seen_[1].launches = 2;
  Await(now_ns);
  EXPECT_EQ(told_[0], Gangs::Slice::kCatchUp);
  EXPECT_EQ(launches_[0], 1U) << "who lacks nothing may be missing";
}

// A slice at whose end device 0 has drained, after so many launches, and 1 has not.
class CountedGangTest : public RequestedGangTest {
 protected:
  void EndSlice(uint64_t first, uint64_t second) {
    Say({.open = true, .launches = first}, {.open = true, .launches = second});
    Say({.runnable = true, .draining = true, .drained = true, .launches = first},
        {.draining = true, .backlog_ns = kMs, .launches = second});
    now_ns_ = Await(now_ns_);
  }
  // It launches nothing of what it may, until it is told to take a step.
  void LaunchNothing(uint64_t first, uint64_t second) {
    while (launches_[0] != 1) {
      seen_[0] = {.open = true, .launches = first};
      now_ns_ = Await(now_ns_);
      ASSERT_EQ(told_[0], Gangs::Slice::kAway);
      seen_[0] = {.runnable = true, .draining = true, .drained = true, .launches = first};
      now_ns_ = Await(now_ns_);
    }
    EXPECT_EQ(seen_[1].launches, second);
  }
  // It has drained, or stalls on device 1, and is to have another slice.
  void Turn(uint64_t first, uint64_t second, bool stalled = false) {
    for (int i = 0; i < 10; ++i) {
      Say({.draining = true, .drained = true, .launches = first},
          {.draining = !stalled, .drained = !stalled, .stalled = stalled, .launches = second});
    }
    Say({.runnable = true, .ready = true, .may = true, .launches = first},
        {.runnable = true, .ready = true, .may = true, .launches = second});
  }

 private:
  void Say(const LeasePolicy::GangSeen& first, const LeasePolicy::GangSeen& second) {
    seen_[0] = first;
    seen_[1] = second;
    Decide(now_ns_ += kMs);
  }
  int64_t now_ns_ = 0;
};

// What is launched on its devices is not alike: even, they are at 5 and 15.
TEST_F(CountedGangTest, CountsThatWereNotEnoughAreTakenAnew) {
  for (int slice = 0; slice < 3; ++slice) {
    EndSlice(5, 15);
    EXPECT_EQ(launches_[0], 10U) << "in slice " << slice;
    LaunchNothing(5, 15);
    Turn(5, 15);
  }
  EndSlice(7, 20);
  EXPECT_EQ(launches_[0], 3U);
}

// Whatever is stalled is ahead, and will be for as long as the other lacks what it waits for: its
// rank saves what was learned, say, and launches nothing meanwhile.
TEST_F(CountedGangTest, CountsAreNotTakenAnewWhileOneIsAhead) {
  for (int slice = 0; slice < 4; ++slice) {
    EndSlice(5, 15);
    EXPECT_EQ(launches_[0], 10U) << "in slice " << slice;
    LaunchNothing(5, 15);
    Turn(5, 15, /*stalled=*/true);
  }
}

TEST_F(CountedGangTest, RanksThatWereStartedAnewAreCountedAnew) {
  for (int slice = 0; slice < 3; ++slice) {
    EndSlice(50, 60);
    LaunchNothing(50, 60);
    Turn(50, 60);
  }
  EndSlice(3, 8);
  EXPECT_EQ(launches_[0], 5U);
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

// A rank is dead or stopped, and what the others have out waits for it.
TEST_F(RequestedGangTest, OneThatOnlyStallsIsNoneUntilItLaunches) {
  int64_t now_ns = 0;
  const auto turn = [&] {
    for (const size_t device : {0, 1}) Wants(device);
    Decide(now_ns += kMs);
    for (const size_t device : {0, 1}) seen_[device] = {.open = true};
    Decide(now_ns += kMs);
    seen_[0] = {.runnable = true, .stalled = true, .backlog_ns = kMs};
    seen_[1] = {.draining = true, .drained = true};
    Decide(now_ns += kMs);
  };
  for (int turns = 0; turns < 8; ++turns) {
    ASSERT_TRUE(gangs_.IsGang(1)) << turns;
    turn();
  }
  EXPECT_FALSE(gangs_.IsGang(1));
  turn();
  EXPECT_FALSE(gangs_.IsGang(1));
  seen_[0].launches = 1;
  Decide(now_ns += kMs);
  EXPECT_TRUE(gangs_.IsGang(1));
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
  EXPECT_GE(times, 3);
  EXPECT_LE(times, 5);
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
