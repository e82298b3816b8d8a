// What a share's members are counted as for the time in which no agent speaks, and what is queued.

#include "agent/share_time.h"

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
  protocol::DeviceLimits limits = {};
  protocol::DeviceUsage usage[3] = {};
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
  protocol::DeviceLimits limits = {};
  ShareTime time(&limits);
  protocol::DeviceUsage usage = {};
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

TEST(ShareTime, TheWordThatADrainIsUnawaitedIsOfOneLease) {
  protocol::DeviceLimits limits = {};
  ShareTime time(&limits);
  time.WriteLease(true, true);
  const uint32_t closed = time.WriteLease(false, false);
  EXPECT_FALSE(time.SetDrainUnawaited(true));
  EXPECT_EQ(limits.drain_unawaited, closed);
  EXPECT_TRUE(time.SetDrainUnawaited(false));
  EXPECT_EQ(limits.drain_unawaited, 0u);
  EXPECT_FALSE(time.SetDrainUnawaited(false)) << "it was not";
  time.SetDrainUnawaited(true);
  time.WriteLease(true, true);
  EXPECT_FALSE(time.SetDrainUnawaited(false)) << "that was another lease";
}

// What a member wrote at its helper's last look is older than what its launches say.
TEST(ShareTime, WhatIsQueuedIsKnownByItsExpectedEnd) {
  constexpr int64_t kNow = 5'000'000'000, kMs = 1'000'000;
  constexpr int64_t kNever = policy::LeasePolicy::kNever;
  Members members(2);
  auto& [limits, usage, time] = members;
  usage[0].launches = 1;
  EXPECT_EQ(time.QueuedAt(kNow).ns, 0u);
  EXPECT_EQ(time.QueuedAt(kNow).end_ns, kNever) << "nothing is queued";
  usage[0].backlog_ns = 2 * kMs;
  usage[0].expected_end_ns = kNow + kMs;
  EXPECT_EQ(time.QueuedAt(kNow).ns, 1u * kMs);
  EXPECT_EQ(time.QueuedAt(kNow).end_ns, kNow + kMs);
  // It runs late: something is left, and it is known since when it should not be.
  EXPECT_EQ(time.QueuedAt(kNow + 3 * kMs).ns, 1u);
  EXPECT_EQ(time.QueuedAt(kNow + 3 * kMs).end_ns, kNow + kMs);
  // Two have their turns on the device one after the other.
  usage[1].backlog_ns = 2 * kMs;
  usage[1].expected_end_ns = kNow + 2 * kMs;
  EXPECT_EQ(time.QueuedAt(kNow).ns, 3u * kMs);
  EXPECT_EQ(time.QueuedAt(kNow).end_ns, kNow + 3 * kMs);
  // In another time namespace: what was written counts.
  usage[1].expected_end_ns = kNow + 3'600'000'000'000;
  EXPECT_EQ(time.QueuedAt(kNow).ns, 4u * kMs);
  EXPECT_EQ(time.QueuedAt(kNow).end_ns, kNever);
  usage[1].expected_end_ns = kNow - 3'600'000'000'000;
  EXPECT_EQ(time.QueuedAt(kNow).end_ns, kNever);
  usage[1].backlog_ns = 0;
  EXPECT_EQ(time.QueuedAt(kNow).end_ns, kNow + kMs) << "that one has nothing queued";
}

// Who has a look planned by itself needs no word of its lease: when that opens, a thread that waits
// moves the look; when it closes, the look comes as the work ends, if that is known and near.
TEST(ShareTime, WhoSeesTheLeaseByItself) {
  constexpr int64_t kNow = 5'000'000'000, kMs = 1'000'000;
  Members members(1);
  auto& [limits, usage, time] = members;
  time.WriteLease(true, true);
  usage[0].waiting = 1;
  EXPECT_FALSE(time.MindsLease(0, kNow)) << "it does not say so";
  usage[0].minds_lease = protocol::kMindsOpening;
  EXPECT_TRUE(time.MindsLease(0, kNow));
  EXPECT_FALSE(time.MindsLease(7, kNow)) << "nobody";
  usage[0].waiting = 0;
  EXPECT_FALSE(time.MindsLease(0, kNow)) << "no thread will wake, and it is to say that it is idle";
  time.WriteLease(false, false);
  usage[0].backlog_ns = 2 * kMs;
  usage[0].expected_end_ns = kNow + 2 * kMs;
  EXPECT_FALSE(time.MindsLease(0, kNow)) << "some of it is behind no fence";
  usage[0].minds_lease = protocol::kMindsOpening | protocol::kMindsClosing;
  EXPECT_TRUE(time.MindsLease(0, kNow));
  usage[0].expected_end_ns = kNow + 20 * kMs;
  EXPECT_FALSE(time.MindsLease(0, kNow)) << "it may end much earlier";
  usage[0].expected_end_ns = kNow;
  EXPECT_FALSE(time.MindsLease(0, kNow)) << "it should have ended";
  usage[0].expected_end_ns = kNow + 2 * kMs;
  usage[0].backlog_ns = 0;
  EXPECT_FALSE(time.MindsLease(0, kNow)) << "it has none, as far as is known";
}

}  // namespace
}  // namespace prorata::agent
