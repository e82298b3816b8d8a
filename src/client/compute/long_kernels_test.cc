// What takes longer than was expected: what that says of the rest, and what is taken for a
// persistent kernel (run_watch.h), and must not be.

#include <gtest/gtest.h>

#include "client/compute/testing_world.h"

#include "base/units.h"
#include "client/compute/backlog.h"

namespace prorata::client {
namespace {

// Kernels of 40 to 450 us, beside a share that stalls, whose slices are of 2 ms: what they measured
// was the less of what they took and of what was expected, 0.86 of what they took.
TEST(Measure, AmongSlicesWhatTookALittleLongerHadTheDeviceAllAlong) {
  Batch batch;
  batch.key = batch.launches = 1;
  batch.estimate_ns = 245'000;
  batch.prompt = true;
  const Beside beside{.in_slices = 2};
  for (const uint64_t took_ns : {40'000u, 245'000u, 450'000u}) {
    const Measured seen = MeasureBatch(batch, took_ns, beside);
    EXPECT_EQ(seen.busy_ns, took_ns);
    EXPECT_EQ(seen.least_ns, took_ns) << "and it is learned";
  }
  EXPECT_EQ(MeasureBatch(batch, 2'245'000, beside).busy_ns, 245'000u) << "with one of another's";
  batch.estimate_ns = 5'000'000;
  EXPECT_EQ(MeasureBatch(batch, 5'400'000, beside).busy_ns, 5'400'000u);
  EXPECT_EQ(MeasureBatch(batch, 7'000'000, beside).busy_ns, 5'000'000u);
}

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
  Pass(31 * kS);
  EXPECT_EQ(Persistent(), 0u) << "two others, who have two thirds of the device";
  Pass(3 * kS);
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

class LateKernelTest : public WorkTrackerTest {};

// Beside what another share has left on the device the first of two kernels takes 4 ms longer: what
// follows has not begun before that was last seen at work, and the next share is let in by that.
TEST_F(LateKernelTest, WhatFollowsALateKernelIsLateToo) {
  Context context(world_);
  Teach(1, 5 * kMs);
  StreamRecord& stream = context.streams[0];
  const int64_t begin_ns = world_.now_ns;
  LaunchFenced(context, 0, 1, begin_ns + 9 * kMs);
  LaunchFenced(context, 0, 1, begin_ns + 14 * kMs);
  ASSERT_EQ(stream.pending, 2u);
  for (int i = 0; i < 5; ++i) {
    world_.now_ns += 2 * kMs;
    Poll();
  }
  ASSERT_EQ(stream.pending, 1u);
  EXPECT_GE(world_.usage.expected_end_ns, begin_ns + 13 * kMs);
  EXPECT_LE(world_.usage.expected_end_ns, begin_ns + 15 * kMs);
}

// Another share had yet to drain when it began, and has when it is seen to be done.
TEST_F(LateKernelTest, WhatRanInSlicesForAWhileTeachesNothing) {
  Context context(world_);
  Teach(1, 5 * kMs);
  world_.limits.together.store(shm::kInSlices);
  LaunchFenced(context, 0, 1, world_.now_ns + 12 * kMs);
  world_.now_ns += 6 * kMs;
  Poll();
  world_.limits.together.store(shm::kNotTogether);
  world_.now_ns += 6 * kMs;
  Poll();
  EXPECT_EQ(context.streams[0].pending, 0u);
  EXPECT_EQ(world_.estimates().Lookup(1), 5 * kMs);
  // The next one has the device for itself.
  context.streams[0].probe.store(1);
  LaunchFenced(context, 0, 1, world_.now_ns + 7 * kMs);
  world_.now_ns += 7 * kMs;
  Poll();
  EXPECT_GT(world_.estimates().Lookup(1), 5 * kMs);
}

}  // namespace
}  // namespace prorata::client
