// What is done with fences, on a world made of numbers: streams are done when the test says.

#include "client/fence_machine.h"

#include <gtest/gtest.h>

#include "client/testing_world.h"

namespace prorata::client {
namespace {

TEST_F(FenceMachineTest, AKernelThatNeverEndsIsTakenForPersistentUntilItDoes) {
  Context context;
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(10 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u) << "it was not suspected at once";
  Pass(2 * kS, {&context});
  EXPECT_EQ(Persistent(), static_cast<uint64_t>(12 * kS));
  Launch(context, 1, 3, world_.now_ns + kMs);
  Pass(1 * kS, {&context});
  EXPECT_EQ(Persistent(), static_cast<uint64_t>(13 * kS)) << "work of another stream is done";
  world_.EndAt(context.streams[0], world_.now_ns + 50 * kMs);
  Pass(100 * kMs, {&context});
  EXPECT_EQ(Persistent(), 0u);
}

// Time-sliced, each measures the other's time too.
TEST_F(FenceMachineTest, ContextsThatRunAtOnceAreChargedOnce) {
  Context a, b;
  for (int i = 0; i < 50; ++i) {
    Launch(a, 0, 1, world_.now_ns + 100 * kMs);
    Launch(b, 0, 2, world_.now_ns + 100 * kMs);
    Pass(100 * kMs, {&a, &b});
  }
  EXPECT_EQ(Charged(), static_cast<uint64_t>(5 * kS));
  // One after the other, harvested at once.
  Launch(a, 0, 1, world_.now_ns + 40 * kMs);
  Launch(b, 0, 2, world_.now_ns + 80 * kMs);
  const Slot& second = b.ring->slots[b.streams[0].last_slot];
  world_.DoneNs(second.start) = world_.now_ns + 40 * kMs;
  Pass(100 * kMs, {&a, &b});
  EXPECT_EQ(Charged(), static_cast<uint64_t>(5 * kS + 80 * kMs));
}

TEST_F(FenceMachineTest, ItIsGoneWithItsContext) {
  Context context;
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(12 * kS, {&context});
  EXPECT_NE(Persistent(), 0u);
  FenceMachine<FakeWorld>(world_).Discard(context.ring.get());
  Look({&context});
  EXPECT_EQ(Persistent(), 0u);
  EXPECT_EQ(world_.compute.contexts.at_work(), 0u);
}

TEST_F(FenceMachineTest, AQueueOfKernelsIsNone) {
  Context context;
  for (int i = 0; i < 20; ++i) Launch(context, 0, 1, world_.now_ns + (i + 1) * 3 * kS);
  Look({&context});
  for (int i = 0; i < 600; ++i) {
    Pass(100 * kMs, {&context});
    ASSERT_EQ(Persistent(), 0u);
  }
}

TEST_F(FenceMachineTest, WhatHasNotBegunIsNone) {
  Context context;
  // Behind a wait, a host function or a semaphore.
  context.streams[0].waits.store(1);
  world_.free_at_ns[&context.streams[0]] = kNever;
  Launch(context, 0, 1, kNever);
  // Behind what nobody told us of: its start is not done.
  world_.free_at_ns[&context.streams[1]] = kNever;
  Launch(context, 1, 1, kNever);
  Look({&context});
  Pass(60 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u);
  // From when it begins, it is one.
  for (const int stream : {0, 1}) {
    const Slot& slot = context.ring->slots[context.streams[stream].last_slot];
    world_.DoneNs(slot.start) = world_.now_ns;
  }
  Pass(9 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u);
  Pass(4 * kS, {&context});
  EXPECT_NEAR(static_cast<double>(Persistent()), 13e9, 1e9);
}

TEST_F(FenceMachineTest, BesideOthersOnlyItsPartOfTheTimeCounts) {
  Context context, other;
  world_.limits.members_at_work.store(3);
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(30 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u) << "two others, who have two thirds of the device";
  Pass(2 * kS, {&context});
  EXPECT_NE(Persistent(), 0u);
  world_.EndAt(context.streams[0], world_.now_ns);
  Launch(other, 0, 2, world_.now_ns + 40 * kS);
  Launch(context, 0, 1, kNever);
  Pass(39 * kS, {&context, &other});
  EXPECT_EQ(Persistent(), 0u) << "and a second context of its own";
  Pass(2 * kS, {&context, &other});
  EXPECT_EQ(world_.compute.contexts.at_work(), 1u);
}

TEST_F(FenceMachineTest, AStoppedProcessHasNone) {
  Context context;
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(2 * kS, {&context});
  for (int i = 0; i < 9; ++i) {
    world_.now_ns += 600 * kS;  // stopped, the device perhaps with it: in a debugger, say
    Look({&context});
  }
  EXPECT_EQ(Persistent(), 0u);
}

TEST_F(FenceMachineTest, AFunctionKnownToTakeLongIsWaitedForLonger) {
  Context context;
  Teach(1, 4 * kS);
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(16 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u);
  Pass(2 * kS, {&context});
  EXPECT_NE(Persistent(), 0u);
}

// What was launched and left without a fence may be done when its thread comes to wait.
TEST_F(FenceMachineTest, ABatchThatIsFencedLateIsExpectedToEndByWhenItBegan) {
  Context context;
  StreamRecord& stream = context.streams[0];
  Teach(1, 300'000);
  ASSERT_TRUE(RaiseLaunching(world_, &stream));
  const uint32_t estimate_ns =
      PrepareBatch(FenceMachine<FakeWorld>(world_), &stream, world_.estimates().Lookup(1));
  const int64_t began_ns = world_.now_ns;
  EXPECT_FALSE(AddLaunch(&stream, this, 1, estimate_ns));
  stream.launching.fetch_sub(1);
  world_.free_at_ns[&stream] = began_ns + 320'000;
  world_.now_ns += 250'000;
  world_.limits.lease.store(1u << protocol::kLeaseSequenceShift);
  FenceBeforeWait(world_, &stream);
  EXPECT_EQ(world_.usage.expected_end_ns, began_ns + estimate_ns);
  EXPECT_NEAR(static_cast<double>(estimate_ns), 300'000, 5'000);
}

TEST_F(FenceMachineTest, WhenAllIsDoneEarlyItIsNotExpectedAnyMore) {
  Context context;
  Teach(1, 10 * kMs);
  Launch(context, 0, 1, world_.now_ns + kMs);
  world_.now_ns += 2 * kMs;
  Look({&context});
  EXPECT_EQ(world_.compute.backlog.end_ns(), world_.now_ns);
}

// Beside others, a program that launches no faster than the device runs has little outstanding.
TEST_F(FenceMachineTest, OfWhatIsLaunchedSlowlyInCompanyTheLastIsLeft) {
  Context context;
  world_.limits.together = 1;
  StreamRecord& stream = context.streams[0];
  Teach(1, 100'000);
  FenceMachine<FakeWorld> fences(world_);
  const uint32_t estimate_ns = PrepareBatch(fences, &stream, world_.estimates().Lookup(1));
  world_.free_at_ns[&stream] = kNever;
  while (!AddLaunch(&stream, this, 1, estimate_ns)) world_.now_ns += 200'000;
  fences.EndBatch(&stream, false);
  EXPECT_EQ(world_.usage.expected_end_ns, world_.now_ns + estimate_ns);
}

TEST_F(FenceMachineTest, APersistentKernelIsNotLookedAtAllTheTime) {
  LeaseWatch watch;
  LeaseWatch::Seen seen = {1 * kS, 0, true, true, 0, 1, 1, 200};
  EXPECT_EQ(watch.Step(seen).look_again_ns, LeaseWatch::kOftenNs);
  seen.persistent = true;
  EXPECT_EQ(watch.Step(seen).look_again_ns, LeaseWatch::kSometimesNs);
  seen.lease = protocol::kLeaseOpen | protocol::kLeaseContended;
  EXPECT_EQ(watch.Step(seen).look_again_ns, LeaseWatch::kSometimesNs);
}

// A batch under way is fenced late, after all that was queued before it has been seen to be done:
// it did not run before that.
TEST_F(FenceMachineTest, AnOldBatchRanAfterWhatWasBeforeIt) {
  Context context;
  StreamRecord& stream = context.streams[0];
  Teach(1, 5 * kMs);
  Teach(2, 200'000);
  const int64_t before_ns = world_.now_ns + world_.estimates().Lookup(1);
  Launch(context, 0, 1, before_ns);
  FenceMachine<FakeWorld> fences(world_);
  ASSERT_TRUE(RaiseLaunching(world_, &stream));
  const uint32_t estimate_ns = PrepareBatch(fences, &stream, world_.estimates().Lookup(2));
  AddLaunch(&stream, this, 2, estimate_ns);
  stream.launching.fetch_sub(1);
  world_.now_ns = before_ns + 20'000;
  fences.Harvest(context.ring.get());
  ASSERT_EQ(world_.compute.backlog.count(), 0u);
  world_.free_at_ns[&stream] = before_ns + 200'000;
  world_.limits.lease.store(1u << protocol::kLeaseSequenceShift);
  FenceBeforeWait(world_, &stream);
  EXPECT_EQ(world_.usage.expected_end_ns, before_ns + estimate_ns);
}

// What a batch is beside: the streams with fenced work, and those with a batch under way.
TEST_F(FenceMachineTest, BatchesKnowWhatTheyRanBeside) {
  Context context;
  StreamRecord& first = context.streams[0];
  StreamRecord& second = context.streams[1];
  const auto batch = [](const StreamRecord& stream) -> const Batch& {
    return stream.ring->slots[stream.last_slot].batch;
  };
  Teach(1, kMs);
  Launch(context, 0, 1, world_.now_ns + kMs);
  EXPECT_EQ(batch(first).beside, 1u);
  EXPECT_EQ(batch(first).open, 1u);
  Launch(context, 1, 1, world_.now_ns + 2 * kMs);
  EXPECT_EQ(batch(second).beside, 2u);
  EXPECT_EQ(batch(second).open, 1u) << "the other one's is fenced";
  Launch(context, 1, 1, world_.now_ns + 3 * kMs);
  EXPECT_EQ(batch(second).beside, 2u) << "itself is counted once";

  world_.now_ns += 10 * kMs;
  FenceMachine<FakeWorld> fences(world_);
  fences.BeginBatch(&first);
  Launch(context, 1, 1, world_.now_ns + kMs);
  EXPECT_EQ(batch(second).beside, 1u) << "nothing else is fenced and not done";
  EXPECT_EQ(batch(second).open, 2u);
  ForgetOpenBatch(&first);
  ForgetOpenBatch(&second);
  EXPECT_EQ(context.ring->open, 0u);

  world_.now_ns += 10 * kMs;
  first.waits = 1;
  world_.free_at_ns[&first] = world_.now_ns + 5 * kMs;
  Launch(context, 0, 1, world_.now_ns + 6 * kMs);
  Launch(context, 1, 1, world_.now_ns + kMs);
  EXPECT_EQ(batch(second).beside, 1u) << "the other one's has not begun";
}

}  // namespace
}  // namespace prorata::client
