// What a thread does that waits at the gate, and what it reports.

#include "client/compute/gate.h"

#include <gtest/gtest.h>

#include "client/compute/testing_world.h"

namespace prorata::client {
namespace {

using wire::MessageType;

class GateTest : public WorkTrackerTest {
 protected:
  // Waits as a thread does; answers for how long.
  int64_t Await(LaunchWait& wait, int64_t longest_ns = 60 * kS) {
    const int64_t start_ns = world_.now_ns;
    for (LaunchWait::Next next = wait.Step(world_); next.what != LaunchWait::Do::kPass;
         next = wait.Step(world_)) {
      EXPECT_GT(next.timeout_ns, 0);
      world_.now_ns += next.timeout_ns;
      if (world_.now_ns - start_ns > longest_ns) break;
    }
    return world_.now_ns - start_ns;
  }
  void PassWithoutHeartbeat(int64_t ns) {
    for (const int64_t end_ns = world_.now_ns + ns; world_.now_ns < end_ns;) {
      world_.heartbeat_lost_ns += kMs;
      Pass(kMs);
    }
  }
};

TEST_F(GateTest, AWaitIsReportedOncePerSequence) {
  Context context(world_);
  world_.limits.lease.store(Word(2, 0));
  LaunchWait wait(0), other(0);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitLease);
  EXPECT_EQ(other.Step(world_).what, LaunchWait::Do::kAwaitLease);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitLease);
  EXPECT_EQ(world_.usage.waiting, 2u);
  EXPECT_EQ(world_.sent, std::vector{MessageType::kLeaseWanted});
  // Another lease, which opened and closed while it slept.
  world_.limits.lease.store(Word(4, 0));
  wait.Step(world_);
  EXPECT_EQ(world_.sent.size(), 2u);
  world_.limits.lease.store(Word(5, kOpen));
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kPass);
  EXPECT_EQ(other.Step(world_).what, LaunchWait::Do::kPass);
  EXPECT_EQ(world_.usage.waiting, 0u);
}

TEST_F(GateTest, WhoWaitsForItsOwnDrainIsReportedByTheDrain) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 2 * kMs);
  LaunchFenced(context, 0, 1, world_.now_ns + 2 * kMs);
  world_.limits.lease.store(Word(3, 0));
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitLease);
  EXPECT_TRUE(world_.sent.empty());
  world_.now_ns += 3 * kMs;
  Poll();
  EXPECT_EQ(world_.sent, std::vector{MessageType::kLeaseDrained});
  EXPECT_EQ(world_.usage.waiting, 1u) << "as the agent sees it now";
  wait.Step(world_);
  EXPECT_EQ(world_.sent.size(), 1u);
}

TEST_F(GateTest, WhoWaitsForADrainThatIsNotReportedReportsByItself) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 2 * kMs);
  LaunchFenced(context, 0, 1, kNever);
  world_.limits.lease.store(Word(3, 0));
  LaunchWait wait(0);
  wait.Step(world_);
  EXPECT_TRUE(world_.sent.empty());
  wait.Step(world_);  // after its time-out
  EXPECT_EQ(world_.sent, std::vector{MessageType::kLeaseWanted});
}

// A thread that was stopped between the gate and its launch: the helper will not look for 20 ms.
TEST_F(GateTest, WhoLaunchedLateAndWaitsSeesThatItHasRun) {
  Context context(world_);
  StreamRecord& stream = context.streams[0];
  Teach(1, 20 * kUs);
  Launch(context, 0, 1, world_.now_ns + 20 * kUs);
  const uint32_t estimate_ns = world_.estimates().Lookup(1);
  ASSERT_FALSE(BeginsBatch(&stream, estimate_ns)) << "the next launch needs but the gate";
  world_.limits.lease.store(Word(2, 0));
  for (int i = 0; i < 4 && !Reported(MessageType::kLeaseDrained); ++i) {
    world_.now_ns += WorkTracker<FakeWorld>::kTailNs;
    Poll();
  }
  ASSERT_TRUE(Reported(MessageType::kLeaseDrained));
  world_.free_at_ns[&stream] = world_.now_ns + 20 * kUs;
  ASSERT_TRUE(AddLaunch(&stream, &context, 1, estimate_ns).opened);
  tracker_.Opened(&stream, false);
  tracker_.FenceBeforeWait(&stream);
  ASSERT_TRUE(Busy());
  const uint64_t occupied_ns = Occupied();
  LaunchWait wait(0);
  const LaunchWait::Next next = wait.Step(world_);
  ASSERT_EQ(next.what, LaunchWait::Do::kAwaitLease);
  ASSERT_LE(next.timeout_ns, kMs);
  world_.now_ns += next.timeout_ns;
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kPollLeaseAgainNs);
  EXPECT_FALSE(Busy());
  EXPECT_LE(Occupied() - occupied_ns, static_cast<uint64_t>(2 * kMs));
}

TEST_F(GateTest, BesideWorkBehindAWaitAWaitIsReportedAtOnce) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 2 * kMs);
  context.streams[0].waits.store(1);
  world_.free_at_ns[&context.streams[0]] = kNever;
  LaunchFenced(context, 0, 1, kNever);
  Poll();
  world_.limits.lease.store(Word(3, 0));
  LaunchWait wait(0);
  wait.Step(world_);
  EXPECT_TRUE(Reported(MessageType::kLeaseWanted));
}

// What it waited for under an earlier lease has run: it does not pass at once beside another.
TEST_F(GateTest, PatienceBeginsAnewOnceTheBacklogWasEmpty) {
  Context context(world_);
  Teach(1, 38 * kMs);
  LaunchFenced(context, 0, 1, world_.now_ns + 38 * kMs);
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitBacklog);
  world_.limits.lease.store(Word(2, 0));
  world_.now_ns += 40 * kMs;
  Poll();
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitLease);
  world_.limits.lease.store(Word(3, kOpen));
  LaunchFenced(context, 0, 1, world_.now_ns + 38 * kMs);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitBacklog);
}

TEST_F(GateTest, AClosedLeaseMayLetAFewLaunchesPass) {
  Context context(world_);
  world_.limits.lease.store(Word(2, 0));
  LaunchWait first(0), second(0), third(0);
  for (LaunchWait* wait : {&first, &second, &third}) {
    EXPECT_EQ(wait->Step(world_).what, LaunchWait::Do::kAwaitLease);
  }
  EXPECT_FALSE(RaiseLaunching(world_, 0));
  world_.limits.extra_launches.store(uint64_t{3} << 32 | 2);
  world_.limits.lease.store(Word(3, 0));
  EXPECT_EQ(first.Step(world_).what, LaunchWait::Do::kPass);
  EXPECT_EQ(second.Step(world_).what, LaunchWait::Do::kPass);
  EXPECT_EQ(third.Step(world_).what, LaunchWait::Do::kAwaitLease) << "they are taken";
  EXPECT_EQ(world_.usage.waiting, 1u);
  EXPECT_TRUE(RaiseLaunching(world_, 0));
  world_.compute.launching.store(0);
  world_.limits.lease.store(Word(4, 0));
  EXPECT_EQ(third.Step(world_).what, LaunchWait::Do::kAwaitLease) << "of another lease";
  EXPECT_FALSE(RaiseLaunching(world_, 0)) << "it has closed since its thread passed";
  world_.limits.extra_launches.store(uint64_t{5} << 32 | 1);
  world_.limits.lease.store(Word(5, 0));
  EXPECT_EQ(third.Step(world_).what, LaunchWait::Do::kPass);
  LaunchWait fourth(0);
  EXPECT_EQ(fourth.Step(world_).what, LaunchWait::Do::kAwaitLease);
}

TEST_F(GateTest, WhoWaitsForLongLooksMoreOften) {
  world_.limits.lease.store(Word(1, 0));
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kPollLeaseNs);
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kPollLeaseAgainNs);
  world_.limits.lease.store(Word(3, 0));
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kPollLeaseNs);
}

TEST_F(GateTest, ALaunchOverTheBoundWaitsUntilTheBacklogIsBelowIt) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 2 * kMs);
  const int64_t end_ns = world_.now_ns + world_.estimates().Lookup(1);
  Launch(context, 0, 1, end_ns);
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitBacklog);
  EXPECT_EQ(world_.compute.at_bound, 1u);
  EXPECT_EQ(world_.usage.waiting, 0u) << "it has its lease";
  Await(wait);
  EXPECT_EQ(world_.compute.at_bound, 0u);
  EXPECT_NEAR(static_cast<double>(end_ns - world_.now_ns), 1e6, 1e5)
      << "what is still to run is below the bound, and the device need not idle";
}

// Else the device idles until the thread runs.
TEST_F(GateTest, WhoIsWokenLateIsWokenTheEarlierNextTime) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 10 * kMs);
  // Each time it is woken so late.
  const auto left_ms = [&](int64_t late_ns) {
    const int64_t end_ns = world_.now_ns + 10 * kMs;
    LaunchFenced(context, 0, 1, end_ns);
    LaunchWait wait(0);
    for (LaunchWait::Next next = wait.Step(world_); next.what != LaunchWait::Do::kPass;
         next = wait.Step(world_)) {
      world_.now_ns += next.timeout_ns + late_ns;
    }
    const auto left_ns = static_cast<double>(end_ns - world_.now_ns);
    world_.now_ns = std::max(world_.now_ns, end_ns);
    Poll();
    return left_ns / kMs;
  };
  EXPECT_NEAR(left_ms(0), 1, 0.1);
  left_ms(2 * kMs);
  EXPECT_NEAR(left_ms(2 * kMs), 1, 0.1) << "the device need not idle";
  world_.limits.backlog_contended_us.store(500);
  EXPECT_LT(left_ms(2 * kMs), 0) << "a shorter one is another share's wish, and stays";
  world_.limits.backlog_contended_us.store(1'000);
  left_ms(15 * kMs);
  EXPECT_LT(left_ms(0), 5) << "there is a most";
  for (int i = 0; i < 10; ++i) left_ms(0);
  EXPECT_NEAR(left_ms(0), 1, 0.1) << "it is forgotten";
  EXPECT_LT(left_ms(60 * kMs), -50);
  EXPECT_NEAR(left_ms(0), 1, 0.1) << "it was stopped";
}

TEST_F(GateTest, ALongerKernelThanExpectedIsWaitedFor) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 2 * kMs);
  LaunchFenced(context, 0, 1, world_.now_ns + 8 * kMs);
  LaunchFenced(context, 0, 1, world_.now_ns + 8 * kMs);
  LaunchWait wait(0);
  EXPECT_NEAR(static_cast<double>(Await(wait)), 8e6, 1.1e6);
}

// A kernel that spins on a flag which this thread sets after its next launches; a stream wait, a
// host function or another process's event in the same way.
TEST_F(GateTest, ABoundThatCannotBeKeptIsGivenUpWithinASlice) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, kMs);
  LaunchFenced(context, 0, 1, kNever);
  world_.now_ns += 1;
  LaunchFenced(context, 1, 1, kNever);
  LaunchWait wait(0);
  EXPECT_EQ(Await(wait), LaunchWait::kGiveUpNs);
  int64_t waited_ns = 0;
  for (int i = 0; i < 100; ++i) {
    LaunchFenced(context, 1, 1, kNever);
    LaunchWait next(0);
    waited_ns += Await(next);
  }
  EXPECT_LT(waited_ns, 500 * kMs) << "for as many launches as it likes";
  EXPECT_TRUE(Busy());
  // The fence that was the oldest then is done: the bound holds again.
  world_.EndAt(context.streams[0], world_.now_ns);
  Poll();
  EXPECT_EQ(world_.compute.bound_given_up, 0u);
  LaunchWait again(0);
  EXPECT_EQ(again.Step(world_).what, LaunchWait::Do::kAwaitBacklog);
}

// In the simulation: a program that queues graphs of 26 ms had three seconds of them submitted when
// another share wanted the device.
TEST_F(GateTest, BehindALongKernelFewLaunchesPass) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 300 * kMs);
  const int64_t began_ns = world_.now_ns;
  int passed = 0;
  for (; world_.now_ns < began_ns + 300 * kMs; ++passed) {
    LaunchFenced(context, 0, 1, began_ns + (passed + 1) * 300 * kMs);
    LaunchWait wait(0);
    Await(wait);
  }
  EXPECT_LE(passed, 6);
}

// Under a limit the lease may open for less than a slice each time.
TEST_F(GateTest, ABoundIsGivenUpAcrossLeases) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 2 * kMs);
  LaunchFenced(context, 0, 1, kNever);
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitBacklog);
  world_.limits.lease.store(Word(3, 0));
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitLease);
  world_.now_ns += LaunchWait::kGiveUpNs;
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitLease);
  world_.limits.lease.store(Word(4, kContended));
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kPass);
}

TEST_F(GateTest, WhatHasNotBegunNeedsNoBound) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 2 * kMs);
  context.streams[0].waits.store(1);
  world_.free_at_ns[&context.streams[0]] = kNever;
  for (int i = 0; i < 100; ++i) {
    LaunchWait wait(0);
    ASSERT_EQ(wait.Step(world_).what, LaunchWait::Do::kPass) << i;
    LaunchFenced(context, 0, 1, kNever);
  }
  EXPECT_FALSE(Busy());
  EXPECT_EQ(world_.compute.backlog.ns(), 0u);
  // It holds for what runs beside it, and for that when it begins.
  LaunchFenced(context, 1, 1, world_.now_ns + 8 * kMs);
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitBacklog);
  Await(wait);
  world_.DoneNs(context.streams[0].first->start) = world_.now_ns;
  LaunchFenced(context, 1, 1, kNever);
  Poll();
  LaunchWait again(0);
  EXPECT_EQ(again.Step(world_).what, LaunchWait::Do::kAwaitBacklog);
  EXPECT_GT(world_.compute.backlog.ns(), static_cast<uint64_t>(200 * kMs));
}

TEST_F(GateTest, ABoundIsNotGivenUpForWhatHasNotBegun) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, 2 * kMs);
  context.streams[0].waits.store(1);
  world_.free_at_ns[&context.streams[0]] = kNever;
  LaunchFenced(context, 0, 1, kNever);
  Poll();
  for (int i = 0; i < 2; ++i) LaunchFenced(context, 1, 1, world_.now_ns + 50 * kMs);
  LaunchWait wait(0);
  EXPECT_EQ(Await(wait), LaunchWait::kGiveUpNs);
  EXPECT_EQ(world_.compute.bound_given_up, 1u);
  world_.EndAt(context.streams[1], world_.now_ns);
  Poll();
  EXPECT_EQ(world_.compute.bound_given_up, 0u) << "the oldest that ran is done";
}

TEST_F(GateTest, ABoundThatWasGivenUpHoldsAgainWithTheNextContext) {
  Context context(world_);
  world_.limits.lease.store(Word(2, kContended));
  Teach(1, kMs);
  LaunchFenced(context, 0, 1, kNever);
  LaunchFenced(context, 0, 1, kNever);
  LaunchWait wait(0);
  Await(wait);
  EXPECT_EQ(world_.compute.bound_given_up, 1u);
  tracker_.Discard(&context.work);
  EXPECT_EQ(world_.compute.bound_given_up, 0u);
}

TEST_F(GateTest, InFailsafeModeTheBucketDecidesByOccupiedTime) {
  Context context(world_);
  world_.limits.compute_limit_ppm.store(250'000);
  Teach(1, 5 * kMs);
  Poll();
  world_.limits.lease.store(Word(2, 0));
  const int64_t start_ns = world_.now_ns;
  int64_t busy_ns = 0;
  while (world_.now_ns < start_ns + 4 * kS) {
    world_.now_ns += kMs;
    world_.heartbeat_lost_ns = world_.now_ns - start_ns;
    Poll();
    if (HeartbeatLost(world_) && !Busy()) {
      LaunchWait wait(0);
      if (wait.Step(world_).what == LaunchWait::Do::kPass) {
        LaunchFenced(context, 0, 1, world_.now_ns + 5 * kMs);
        busy_ns += 5 * kMs;
      } else {
        world_.usage.waiting.fetch_sub(1);
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(busy_ns), 1e9, 0.1e9);
}

TEST_F(GateTest, InFailsafeModeTimeThatGoesBackCostsNothing) {
  Context context(world_);
  world_.limits.compute_limit_ppm.store(250'000);
  Teach(1, 60 * kS);
  LaunchFenced(context, 0, 1, kNever);
  Poll();
  PassWithoutHeartbeat(80 * kMs);
  const uint64_t occupied_ns = Occupied();
  // As a thread does that read the clock before another one looked.
  world_.now_ns -= kMs;
  Poll();
  EXPECT_EQ(Occupied(), occupied_ns);
  // A quarter of the time is its part, and what it is charged for one context among four.
  world_.now_ns += kMs;
  PassWithoutHeartbeat(40 * kMs);
  EXPECT_NEAR(world_.compute.used_ns, (80 + 40) * kMs / kFailsafeCrowd, kUs);
  EXPECT_TRUE(world_.compute.bucket.MayRun(world_.now_ns + kMs, 250'000));
}

TEST_F(GateTest, FailsafeModeOwesOnlyWhatWasUsedWithoutAHeartbeat) {
  Context context(world_);
  world_.limits.compute_limit_ppm.store(250'000);
  Teach(1, 60 * kS);
  LaunchFenced(context, 0, 1, kNever);
  // The heart beats. Other threads of the program look at it, so the helper never sees it move.
  for (int i = 0; i < 500; ++i) {
    world_.heartbeat_lost_ns = kMs;
    Pass(10 * kMs);
  }
  PassWithoutHeartbeat(80 * kMs);
  ASSERT_EQ(world_.compute.failsafe.load(), 1U);
  EXPECT_NEAR(world_.compute.used_ns, 80 * kMs / kFailsafeCrowd, kUs);
  EXPECT_TRUE(world_.compute.bucket.MayRun(world_.now_ns + kMs, 250'000));
}

}  // namespace
}  // namespace prorata::client
