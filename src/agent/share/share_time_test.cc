// What a share's members are counted as for failsafe mode, and what they publish of their work.

#include "agent/share/share_time.h"

#include <gtest/gtest.h>

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
  constexpr int64_t kNow = 5'000'000'000, kMs = 1'000'000;
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

TEST(ShareTime, WhatIsUnfinishedIsTheSumOfItsMembers) {
  constexpr int64_t kNow = 5'000'000'000, kMs = 1'000'000;
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

}  // namespace
}  // namespace prorata::agent
