// What a share's members are counted as for the time in which no agent speaks.

#include "agent/share_time.h"

#include <gtest/gtest.h>

namespace prorata::agent {
namespace {

TEST(ShareTime, MembersThatUseTheDeviceAreCountedAsActive) {
  protocol::DeviceLimits limits = {};
  ShareTime time(&limits);
  protocol::DeviceUsage usage[3] = {};
  for (uint32_t slot = 0; slot < 3; ++slot) {
    time.Admit(slot);
    time.SetUsage(slot, &usage[slot]);
  }
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

}  // namespace
}  // namespace prorata::agent
