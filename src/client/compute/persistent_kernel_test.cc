// What is taken for a persistent kernel (run_watch.h), and what must not be.

#include <gtest/gtest.h>

#include "client/compute/testing_world.h"

namespace prorata::client {
namespace {

class PersistentKernelTest : public WorkTrackerTest {};

TEST_F(PersistentKernelTest, AKernelThatNeverEndsIsOneUntilItDoes) {
  Context context(world_);
  Launch(context, 0, 1, kNever);
  Poll();
  Pass(10 * kS);
  EXPECT_EQ(Persistent(), 0u) << "it was not suspected at once";
  Pass(2 * kS);
  EXPECT_EQ(Persistent(), static_cast<uint64_t>(12 * kS));
  Launch(context, 1, 3, world_.now_ns + kMs);
  Pass(1 * kS);
  EXPECT_EQ(Persistent(), static_cast<uint64_t>(13 * kS)) << "work of another stream is done";
  world_.EndAt(context.streams[0], world_.now_ns + 50 * kMs);
  Pass(100 * kMs);
  EXPECT_EQ(Persistent(), 0u);
}

TEST_F(PersistentKernelTest, ItIsGoneWithItsContext) {
  Context context(world_);
  Launch(context, 0, 1, kNever);
  Poll();
  Pass(12 * kS);
  EXPECT_NE(Persistent(), 0u);
  tracker_.Discard(&context.work);
  Poll();
  EXPECT_EQ(Persistent(), 0u);
}

TEST_F(PersistentKernelTest, AQueueOfKernelsIsNone) {
  Context context(world_);
  for (int i = 0; i < 20; ++i) Launch(context, 0, 1, world_.now_ns + (i + 1) * 3 * kS);
  Poll();
  for (int i = 0; i < 600; ++i) {
    Pass(100 * kMs);
    ASSERT_EQ(Persistent(), 0u);
  }
}

TEST_F(PersistentKernelTest, WhatHasNotBegunIsNone) {
  Context context(world_);
  // Behind a wait, a host function or a semaphore.
  context.streams[0].waits.store(1);
  world_.free_at_ns[&context.streams[0]] = kNever;
  Launch(context, 0, 1, kNever);
  // Behind what we do not know: its start is not done.
  world_.free_at_ns[&context.streams[1]] = kNever;
  Launch(context, 1, 1, kNever);
  Poll();
  Pass(60 * kS);
  EXPECT_EQ(Persistent(), 0u);
  EXPECT_TRUE(Busy()) << "of the second it is not known";
  // From when it begins, it is one.
  for (const StreamRecord& stream : context.streams) {
    world_.DoneNs(stream.first->start) = world_.now_ns;
  }
  Pass(9 * kS);
  EXPECT_EQ(Persistent(), 0u);
  Pass(4 * kS);
  EXPECT_NEAR(static_cast<double>(Persistent()), 13e9, 1e9);
}

TEST_F(PersistentKernelTest, BesideOthersOnlyItsPartOfTheTimeCounts) {
  Context context(world_), other(world_);
  world_.limits.members_at_work.store(3);
  Launch(context, 0, 1, kNever);
  Poll();
  Pass(30 * kS);
  EXPECT_EQ(Persistent(), 0u) << "two others, who have two thirds of the device";
  Pass(2 * kS);
  EXPECT_NE(Persistent(), 0u);
  world_.EndAt(context.streams[0], world_.now_ns);
  Launch(other, 0, 2, world_.now_ns + 40 * kS);
  Launch(context, 0, 1, kNever);
  Pass(39 * kS);
  EXPECT_EQ(Persistent(), 0u) << "and a second context of its own";
  Pass(2 * kS);
  EXPECT_EQ(world_.compute.contexts, 1u);
}

TEST_F(PersistentKernelTest, AStoppedProcessHasNone) {
  Context context(world_);
  Launch(context, 0, 1, kNever);
  Poll();
  Pass(2 * kS);
  for (int i = 0; i < 9; ++i) {
    world_.now_ns += 600 * kS;  // stopped, the device perhaps with it: in a debugger, say
    Poll();
  }
  EXPECT_EQ(Persistent(), 0u);
}

TEST_F(PersistentKernelTest, AFunctionKnownToTakeLongIsWaitedForLonger) {
  Context context(world_);
  Teach(1, 4 * kS);
  Launch(context, 0, 1, kNever);
  Poll();
  Pass(16 * kS);
  EXPECT_EQ(Persistent(), 0u);
  Pass(2 * kS);
  EXPECT_NE(Persistent(), 0u);
}

}  // namespace
}  // namespace prorata::client
