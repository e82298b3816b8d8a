// What a share's members are counted as for failsafe mode, and what they publish of their work.

#include "agent/share/share_time.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace prorata::agent {
namespace {

// A share with so many members, in the slots from 0 on.
struct Members {
  explicit Members(uint32_t count) {
    for (uint32_t slot = 0; slot < count; ++slot) {
      time.Admit(slot);
      time.SetUsage(slot, &usage[slot]);
    }
  }
  shm::DeviceLimits limits = {};
  shm::DeviceUsage usage[3] = {};
  ShareTime time{&limits};
};

TEST(ShareTime, MembersThatUseTheDeviceAreCountedAsActive) {
  Members members(3);
  auto& [limits, usage, time] = members;
  time.CountActive();
  EXPECT_EQ(limits.active_members, 0u) << "nobody has done anything";
  usage[0].launches = 5;
  usage[1].waiting = 1;
  time.CountActive();
  EXPECT_EQ(limits.active_members, 2u);
  usage[1].waiting = 0;
  for (int i = 0; i < 9; ++i) time.CountActive();
  EXPECT_EQ(limits.active_members, 2u) << "for a second they stay so";
  usage[1].launches = 1;
  time.CountActive();
  EXPECT_EQ(limits.active_members, 1u);
  time.Depart(1);
  time.CountActive();
  EXPECT_EQ(limits.active_members, 0u) << "the dead do nothing";
}

TEST(ShareTime, AMemberWithWorkQueuedIsActiveHoweverLongItTakes) {
  shm::DeviceLimits limits = {};
  ShareTime time(&limits);
  shm::DeviceUsage usage = {};
  time.Admit(7);
  time.SetUsage(7, &usage);
  usage.backlog_ns = 3'000'000'000;
  for (int i = 0; i < 30; ++i) time.CountActive();
  EXPECT_EQ(limits.active_members, 1u);
}

TEST(ShareTime, SinceWhenItHasDrained) {
  constexpr int64_t kNow = 5'000'000'000;
  Members members(3);
  auto& [limits, usage, time] = members;
  EXPECT_EQ(time.DrainedSince(kNow), kNow) << "none has launched";
  usage[0].launches = usage[1].launches = 1;
  usage[0].expected_end_ns = kNow - 4 * kMs;
  usage[1].expected_end_ns = kNow - 3 * kMs;
  EXPECT_EQ(time.DrainedSince(kNow), kNow - 3 * kMs)
      << "the last of them; one has launched nothing";
  usage[0].expected_end_ns = kNow + kMs;
  EXPECT_EQ(time.DrainedSince(kNow), kNow) << "that is no time at which it had drained";
  usage[0].expected_end_ns = kNow - 3'600'000'000'000;
  EXPECT_EQ(time.DrainedSince(kNow), kNow) << "nor is that of another time namespace";
}

// Members that are connected and have launched something.
struct AtWork : Members {
  explicit AtWork(uint32_t count) : Members(count) {
    for (uint32_t slot = 0; slot < count; ++slot) {
      time.SetConnected(slot, true);
      usage[slot].launches = 1;
    }
    time.Poll(0);
  }
  // Looks now and then, so long.
  bool StoppedAfter(int64_t ns) {
    const int64_t until_ns = now_ns + ns;
    while (now_ns < until_ns) stopped = time.Poll(now_ns += 1'000'000).stopped;
    return stopped;
  }
  int64_t now_ns = 0;
  bool stopped = false;
};

TEST(ShareTime, WhoHasWorkAndChangesNothingIsTakenToBeStopped) {
  AtWork members(1);
  auto& usage = members.usage[0];
  members.time.WriteLease(true, true);
  usage.backlog_ns = 700'000;
  EXPECT_FALSE(members.StoppedAfter(50 * kMs));
  EXPECT_TRUE(members.StoppedAfter(5 * kMs));
  const auto work = members.time.Poll(members.now_ns);
  EXPECT_TRUE(work.blocked) << "and others have the device";
  EXPECT_EQ(work.backlog_ns, 1);
  members.time.WriteLease(false, false);
  EXPECT_TRUE(members.StoppedAfter(kMs)) << "whatever becomes of its lease";
  members.time.WriteLease(true, true);
  EXPECT_TRUE(members.StoppedAfter(kMs));
  usage.occupied_ns = 1;
  EXPECT_FALSE(members.StoppedAfter(kMs)) << "its helper has looked";
}

TEST(ShareTime, LeasesThatComeAndGoDoNotHideThatItIsStopped) {
  AtWork members(1);
  members.usage[0].waiting = 1;
  members.usage[0].backlog_ns = 700'000;
  for (int i = 0; i < 5; ++i) {
    members.time.WriteLease(i % 2 == 0, i % 2 == 0);
    EXPECT_EQ(members.StoppedAfter(13 * kMs), i == 4) << i;
  }
}

// A container whose processor quota is used up says nothing either, and its graph of a second runs.
TEST(ShareTime, WhatShouldStillRunIsNotTakenToHaveEnded) {
  AtWork members(1);
  members.time.WriteLease(true, true);
  members.usage[0].backlog_ns = kS;
  members.usage[0].expected_end_ns = kS;
  EXPECT_FALSE(members.StoppedAfter(kS + 50 * kMs));
  EXPECT_TRUE(members.StoppedAfter(5 * kMs));
}

// Its next launch, in another stream, may be what that waits for.
TEST(ShareTime, WhoWaitsWithWorkBehindAWaitIsNotStopped) {
  AtWork members(1);
  auto& usage = members.usage[0];
  usage.backlog_ns = 700'000;
  usage.blocked = 1;
  usage.waiting = 1;
  members.time.WriteLease(false, false);
  EXPECT_FALSE(members.StoppedAfter(500 * kMs)) << "for its turn";
  members.time.WriteLease(true, true);
  usage.waiting = 0;
  EXPECT_FALSE(members.StoppedAfter(500 * kMs));
  usage.waiting = 1;
  EXPECT_TRUE(members.StoppedAfter(55 * kMs)) << "it may launch, and does not";
}

TEST(ShareTime, WhoHasNothingToSayIsNotStopped) {
  AtWork members(1);
  auto& usage = members.usage[0];
  members.time.WriteLease(true, false);
  usage.backlog_ns = 700'000;
  EXPECT_FALSE(members.StoppedAfter(kMs * 500)) << "nobody asks for more than what it does";
  usage.backlog_ns = 0;
  const uint32_t open = members.time.WriteLease(true, true);
  members.time.SaidIdle(0, open);
  EXPECT_FALSE(members.StoppedAfter(kMs * 500)) << "it was idle, and is";
  const uint32_t closed = members.time.WriteLease(false, false);
  usage.drained_sequence = closed;
  usage.waiting = 1;
  EXPECT_FALSE(members.StoppedAfter(kMs * 500)) << "it waits for its lease";
  members.time.WriteLease(true, true);
  EXPECT_FALSE(members.StoppedAfter(kMs * 50)) << "and has just got it";
  EXPECT_TRUE(members.StoppedAfter(kMs * 5));
  members.time.Said(0);
  EXPECT_FALSE(members.StoppedAfter(kMs)) << "it has sent something";
}

// Who is away is not given its lease, so it is not asked by that.
TEST(ShareTime, WhoWaitsForItsLeaseAndDoesNotLookIsStopped) {
  AtWork members(1);
  auto& usage = members.usage[0];
  usage.drained_sequence = members.time.WriteLease(false, false);
  usage.backlog_ns = 0;
  usage.waiting = 1;
  usage.looks_by_ns = members.now_ns + 20 * kMs;
  EXPECT_FALSE(members.StoppedAfter(70 * kMs));
  EXPECT_TRUE(members.StoppedAfter(10 * kMs));
}

TEST(ShareTime, OneThatIsStoppedDoesNotSilenceTheOthers) {
  AtWork members(3);
  members.time.WriteLease(true, true);
  for (auto& usage : members.usage) usage.backlog_ns = 700'000;
  for (int i = 0; i < 100; ++i) {
    members.usage[1].occupied_ns += 1'000;
    EXPECT_FALSE(members.StoppedAfter(kMs));
  }
  EXPECT_EQ(members.time.Poll(members.now_ns).backlog_ns, 700'000) << "theirs has ended";
  const uint32_t closed = members.time.WriteLease(false, false);
  EXPECT_FALSE(members.time.AllDrained());
  members.usage[1].drained_sequence = closed;
  EXPECT_TRUE(members.time.AllDrained()) << "nobody waits for them";
  members.time.WriteLease(true, true);
  EXPECT_TRUE(members.StoppedAfter(55 * kMs)) << "all of them are";
  members.time.Depart(0);
  members.time.Depart(1);
  EXPECT_TRUE(members.StoppedAfter(kMs));
  members.time.Depart(2);
  EXPECT_FALSE(members.StoppedAfter(kMs)) << "the dead are not stopped";
}

TEST(ShareTime, WhatIsUnfinishedIsTheSumOfItsMembers) {
  constexpr int64_t kNow = 5'000'000'000;
  constexpr int64_t kNever = policy::LeasePolicy::kNever;
  Members members(2);
  auto& [limits, usage, time] = members;
  EXPECT_EQ(time.Poll(kNow).backlog_ns, 0);
  EXPECT_EQ(time.Poll(kNow).end_ns, kNever) << "nothing is unfinished";
  EXPECT_EQ(time.Poll(kNow).contexts, 1u);
  usage[0].backlog_ns = 2 * kMs;
  usage[0].expected_end_ns = kNow + kMs;
  usage[1].backlog_ns = 3 * kMs;
  usage[1].expected_end_ns = kNow + 2 * kMs;
  EXPECT_EQ(time.Poll(kNow).backlog_ns, 5 * kMs);
  EXPECT_EQ(time.Poll(kNow).end_ns, kNow + 2 * kMs);
  EXPECT_EQ(time.Poll(kNow).contexts, 2u);
  usage[0].blocked = 1;
  EXPECT_EQ(time.Poll(kNow).contexts, 1u) << "nothing of that one runs";
  EXPECT_FALSE(time.Poll(kNow).blocked);
  usage[1].blocked = 1;
  EXPECT_TRUE(time.Poll(kNow).blocked);
  usage[1].expected_end_ns = kNow + 3'600'000'000'000;
  EXPECT_EQ(time.Poll(kNow).end_ns, kNever) << "the clock of another time namespace";
  usage[1].backlog_ns = ~uint64_t{0};
  EXPECT_EQ(time.Poll(kNow).backlog_ns, 10'000'000'000) << "a liar";
}

TEST(ShareTime, CountersNeverGoBackAndNeverJump) {
  Members members(1);
  auto& [limits, usage, time] = members;
  usage[0].device_time_ns = 100;
  usage[0].occupied_ns = 200;
  EXPECT_EQ(time.Poll(0).busy_total_ns, 100u);
  EXPECT_EQ(time.Poll(0).occupied_total_ns, 200u);
  usage[0].device_time_ns = usage[0].occupied_ns = 0;
  EXPECT_EQ(time.Poll(0).busy_total_ns, 100u);
  usage[0].device_time_ns = 150;
  EXPECT_EQ(time.Poll(0).busy_total_ns, 150u) << "counted from where it was";
  usage[0].device_time_ns = ~uint64_t{0};
  EXPECT_EQ(time.Poll(0).busy_total_ns, 60'000'000'150u);
  time.Depart(0);
  time.Forget(0);
  EXPECT_EQ(time.Poll(0).busy_total_ns, 60'000'000'150u) << "its time stays with the share";
}

TEST(ShareTime, WhatIsOccupiedCountsUntilNow) {
  constexpr int64_t kNow = 5'000'000'000;
  Members members(2);
  auto& [limits, usage, time] = members;
  const auto occupied_ms = [&](int64_t now_ns) {
    return static_cast<int64_t>(time.Poll(now_ns).occupied_total_ns) / kMs;
  };
  EXPECT_EQ(occupied_ms(kNow), 0);
  usage[0].occupied_since_ns = kNow;
  EXPECT_EQ(occupied_ms(kNow + 10 * kMs), 10);
  usage[1].occupied_since_ns = kNow + 10 * kMs;
  EXPECT_EQ(occupied_ms(kNow + 20 * kMs), 20) << "both are of the same time";
  usage[0].occupied_since_ns = usage[1].occupied_since_ns = 0;
  usage[0].occupied_ns = 22 * kMs;
  usage[1].occupied_ns = 10 * kMs;
  EXPECT_EQ(occupied_ms(kNow + 30 * kMs), 22) << "it was over before";
  usage[1].occupied_since_ns = kNow - 3'600'000 * kMs;
  EXPECT_EQ(occupied_ms(kNow + 40 * kMs), 22) << "the clock of another time namespace";
  usage[1].occupied_ns = 20 * kMs;
  EXPECT_EQ(occupied_ms(kNow + 50 * kMs), 32) << "goes by what is published";
  usage[0].occupied_since_ns = kNow + 50 * kMs;
  time.Poll(kNow + 60 * kMs);
  time.Depart(0);
  EXPECT_EQ(occupied_ms(kNow + 90 * kMs), 42) << "the dead occupy nothing";
}

// Then its process is away: it says what it used when it is back.
TEST(ShareTime, WhatIsOccupiedCountsUntilTheMemberShouldHaveLooked) {
  constexpr int64_t kNow = 5'000'000'000;
  Members members(1);
  auto& [limits, usage, time] = members;
  const auto occupied_ns = [&](int64_t now_ns) { return time.Poll(now_ns).occupied_total_ns; };
  EXPECT_EQ(occupied_ns(kNow), 0u);
  usage[0].occupied_since_ns = kNow;
  usage[0].looks_by_ns = kNow + 5 * kMs;
  EXPECT_EQ(occupied_ns(kNow + 6 * kMs), 6u * kMs);
  EXPECT_EQ(occupied_ns(kNow + 90 * kMs), 5u * kMs + shm::kLateLookNs);
  usage[0].occupied_since_ns = kNow + 90 * kMs;  // by a thread that launches
  usage[0].occupied_ns = 20 * kMs;
  EXPECT_EQ(occupied_ns(kNow + 99 * kMs), 20u * kMs) << "the helper has not looked yet";
  for (const int64_t lie : {INT64_MAX, kNow + 3'600'000 * kMs}) {
    usage[0].looks_by_ns = lie;
    EXPECT_EQ(occupied_ns(kNow + 100 * kMs), 30u * kMs) << "as if it had said nothing";
  }
  usage[0].looks_by_ns = INT64_MIN;
  EXPECT_EQ(occupied_ns(kNow + 110 * kMs), 40u * kMs);
}

// From when on nobody who has work, or waits, would have looked in time.
TEST(ShareTime, WhoDoesNotLookIsAway) {
  constexpr int64_t kNow = 5'000'000'000, kNever = policy::LeasePolicy::kNever;
  Members members(2);
  auto& [limits, usage, time] = members;
  for (const uint32_t slot : {0, 1}) time.SetConnected(slot, true);
  const auto away_ns = [&] { return time.Poll(kNow).away_ns; };
  EXPECT_EQ(away_ns(), kNever) << "nobody has work";
  usage[0].backlog_ns = kMs;
  EXPECT_EQ(away_ns(), kNever) << "it has not said when it looks";
  usage[0].looks_by_ns = kNow - 5 * kMs;
  EXPECT_EQ(away_ns(), kNow - 5 * kMs + shm::kLateLookNs);
  usage[0].expected_end_ns = kNow + 7 * kMs;
  EXPECT_EQ(away_ns(), kNow + 7 * kMs) << "its work runs";
  usage[1].looks_by_ns = kNow + 20 * kMs;
  EXPECT_EQ(away_ns(), kNow + 7 * kMs) << "the other has nothing";
  usage[1].waiting = 1;
  EXPECT_EQ(away_ns(), kNow + 20 * kMs + shm::kLateLookNs);
  for (const int64_t lie : {INT64_MAX, INT64_MIN, kNow + 3'600'000 * kMs}) {
    usage[1].looks_by_ns = lie;
    EXPECT_EQ(away_ns(), kNever) << "or another clock's";
  }
}

}  // namespace
}  // namespace prorata::agent
