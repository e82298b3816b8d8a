// What a thread does that waits at the gate, what it tells of, and when the helper looks after it.

#include "client/launch_gate.h"

#include <gtest/gtest.h>

#include "client/testing_world.h"

namespace prorata::client {
namespace {

class LaunchGateTest : public FenceMachineTest {};

// A launch that comes while the last ones still run is told of by the word that they have drained.
// But not for ever: they may wait for it, as the kernels of a collective do. Seen in the
// simulation: a gang that was none yet, and never seen to wait.
TEST_F(LaunchGateTest, AWaitIsToldOfWithTheDrainingOrALittleLater) {
  Context context;
  Teach(1, kMs);
  Launch(context, 0, 1, kNever);
  world_.limits.lease.store(1u << protocol::kLeaseSequenceShift);
  LaunchWait wait(0);
  const LaunchWait::Next next = wait.Step(world_);
  EXPECT_EQ(next.what, LaunchWait::Do::kAwaitLease);
  EXPECT_EQ(next.timeout_ns, 2 * kMs);
  EXPECT_EQ(world_.usage.waiting, 1u);
  EXPECT_TRUE(world_.sent.empty());
  world_.now_ns += next.timeout_ns;
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookAgainNs);
  EXPECT_EQ(world_.sent, std::vector{protocol::MessageType::kLeaseWanted});
}

TEST_F(LaunchGateTest, AWaitThatTheDrainingToldOfIsNotToldOfAgain) {
  Context context;
  Teach(1, kMs);
  Launch(context, 0, 1, kNever);
  const auto word = [](uint32_t sequence) { return sequence << protocol::kLeaseSequenceShift; };
  world_.limits.lease.store(word(1));
  LaunchWait wait(0);
  world_.now_ns += wait.Step(world_).timeout_ns;
  world_.usage.drained_sequence = 1;
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookAgainNs);
  world_.now_ns += LaunchWait::kLookAgainNs;
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookOftenNs);
  EXPECT_TRUE(world_.sent.empty());
  // Another lease, which opened and closed while it slept: nobody has told of that.
  world_.limits.lease.store(word(3));
  world_.now_ns += wait.Step(world_).timeout_ns;
  wait.Step(world_);
  EXPECT_EQ(world_.sent, std::vector{protocol::MessageType::kLeaseWanted});
}

TEST_F(LaunchGateTest, AWaitAfterTheDrainingIsToldOfAtOnce) {
  Context context;
  Teach(1, kMs);
  Launch(context, 0, 1, kNever);
  world_.limits.lease.store(1u << protocol::kLeaseSequenceShift);
  world_.usage.drained_sequence = 1;
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookAgainNs);
  EXPECT_EQ(world_.sent, std::vector{protocol::MessageType::kLeaseWanted});
}

TEST_F(LaunchGateTest, ADrainThatNobodyAwaitsIsWrittenAndNotSent) {
  Context context;
  for (const uint32_t unawaited : {1u, 2u}) {
    world_.limits.lease.store(2u << protocol::kLeaseSequenceShift);
    world_.limits.drain_unawaited = unawaited;
    world_.compute.watch = LeaseWatch();
    world_.sent.clear();
    world_.usage.drained_sequence = 0;
    world_.now_ns += kMs;
    Look({&context});
    EXPECT_EQ(world_.usage.drained_sequence, 2u);
    EXPECT_EQ(world_.usage.expected_end_ns, world_.now_ns);
    EXPECT_EQ(world_.sent.size(), unawaited == 2 ? 0u : 1u) << "of another lease it is not said";
  }
}

TEST_F(LaunchGateTest, ALaunchPutsOffTheLook) {
  Context context;
  world_.limits.idle_report_us = 200;
  Teach(1, kMs);
  const int64_t estimate_ns = world_.estimates().Lookup(1);
  world_.PlanLook(0, world_.now_ns + 100'000, world_.now_ns + 15 * kMs);
  Launch(context, 0, 1, kNever);
  EXPECT_EQ(world_.compute.look_ns, world_.now_ns + estimate_ns + 100'000);
  EXPECT_EQ(world_.usage.backlog_ns, static_cast<uint64_t>(estimate_ns))
      << "the agent must know that there is something";
  const int64_t by_ns = world_.now_ns + kMs / 2;
  world_.PlanLook(0, world_.now_ns + 100'000, by_ns);
  Launch(context, 0, 1, kNever);
  EXPECT_EQ(world_.compute.look_ns, by_ns) << "no further than that";
  world_.PlanLook(0, world_.now_ns + 100'000, 0);
  Launch(context, 0, 1, kNever);
  EXPECT_EQ(world_.compute.look_ns, world_.now_ns + 100'000) << "it may not be put off";
}

// How long it takes is not known: 2 ms are assumed, and it may be much less.
TEST_F(LaunchGateTest, AnUnknownLaunchDoesNotPutOffTheLook) {
  Context context;
  world_.PlanLook(0, world_.now_ns + 100'000, world_.now_ns + 15 * kMs);
  Launch(context, 0, 1, kNever);
  EXPECT_EQ(world_.compute.look_ns, world_.now_ns + 100'000);
}

TEST_F(LaunchGateTest, WhoWaitsAtTheBoundIsCounted) {
  Context context;
  world_.limits.backlog_alone_us.store(500);
  Teach(1, kMs);
  Launch(context, 0, 1, world_.now_ns + kMs);
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitFence);
  EXPECT_EQ(world_.compute.at_bound, 1u);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitFence);
  EXPECT_EQ(world_.compute.at_bound, 1u);
  world_.now_ns += kMs;
  Look({&context});
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kPass);
  EXPECT_EQ(world_.compute.at_bound, 0u);
}

// The end of a lot of work was waited for, which is over; what is launched now ends sooner.
TEST_F(LaunchGateTest, ALaunchBringsTheLookNearer) {
  Context context;
  world_.limits.idle_report_us = 200;
  Teach(1, kMs);
  world_.PlanLook(0, world_.now_ns + 10 * kMs, world_.now_ns + 15 * kMs);
  Launch(context, 0, 1, kNever);
  EXPECT_LT(world_.compute.look_ns, world_.now_ns + 2 * kMs);
}

TEST_F(LaunchGateTest, WhosePausesAreLongIsLookedAtWhenOneHasBegun) {
  Context context;
  world_.limits.idle_report_us = 200;
  Teach(1, kMs);
  const int64_t estimate_ns = world_.estimates().Lookup(1);
  for (int i = 0; i < 20; ++i) {
    world_.PlanLook(0, world_.now_ns + 100'000, world_.now_ns + 15 * kMs);
    Launch(context, 0, 1, world_.now_ns + estimate_ns);
    world_.now_ns += estimate_ns + 4 * kMs;
  }
  EXPECT_EQ(IdleReportNs(world_.limits, world_.compute), IdleGaps::kSoonNs);
  world_.PlanLook(0, world_.now_ns + 100'000, world_.now_ns + 15 * kMs);
  Launch(context, 0, 1, world_.now_ns + estimate_ns);
  EXPECT_EQ(world_.compute.look_ns,
            world_.now_ns + estimate_ns - estimate_ns / 16 + IdleGaps::kSoonNs);
  world_.limits.closely = 1;
  EXPECT_EQ(IdleReportNs(world_.limits, world_.compute), 200'000) << "a peer may be late";
  world_.limits.closely = 0;
  world_.limits.idle_report_us = 40;
  EXPECT_EQ(IdleReportNs(world_.limits, world_.compute), 40'000) << "it is never more";
}

TEST_F(LaunchGateTest, WhoHasWaitedForTheLeaseBringsTheLookNearer) {
  world_.limits.idle_report_us = 200;
  const int64_t look_ns = world_.now_ns + 15 * kMs;
  const auto pass = [&](int64_t planned_ns, int64_t by_ns) {
    world_.limits.lease.store(2u << protocol::kLeaseSequenceShift);
    LaunchWait wait(0);
    EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitLease);
    world_.PlanLook(0, planned_ns, by_ns);
    world_.limits.lease.store((3u << protocol::kLeaseSequenceShift) | protocol::kLeaseOpen);
    EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kPass);
    return world_.compute.look_ns.load();
  };
  EXPECT_EQ(pass(look_ns, look_ns), world_.now_ns + 200'000);
  EXPECT_EQ(pass(look_ns, 0), look_ns) << "it may not be moved";
  EXPECT_EQ(pass(look_ns, world_.now_ns + 50'000), world_.now_ns + 50'000);
  EXPECT_EQ(pass(world_.now_ns + 1'000, look_ns), world_.now_ns + 1'000) << "it is near enough";
}

// The agent looks by itself whether the share waits, before its next turn can begin.
TEST_F(LaunchGateTest, WhoseDrainIsUnawaitedSaysNothingOfItsWait) {
  world_.limits.lease.store(2u << protocol::kLeaseSequenceShift);
  world_.limits.drain_unawaited.store(2);
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitLease);
  EXPECT_EQ(world_.usage.waiting, 1u);
  EXPECT_TRUE(world_.sent.empty());
  world_.limits.drain_unawaited.store(0);
  wait.Step(world_);
  ASSERT_EQ(world_.sent.size(), 1u) << "it was taken back";
  EXPECT_EQ(world_.sent[0], protocol::MessageType::kLeaseWanted);
  wait.Step(world_);
  EXPECT_EQ(world_.sent.size(), 1u);
}

TEST_F(LaunchGateTest, WhoWaitsForLongLooksMoreOften) {
  const auto word = [](uint32_t sequence) { return sequence << protocol::kLeaseSequenceShift; };
  world_.limits.lease.store(word(1));
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookAgainNs);
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookOftenNs);
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookOftenNs);
  world_.limits.lease.store(word(3));
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookAgainNs);
}

// What its look at the lease was about must be the lease as it is, or nobody would tell.
TEST_F(LaunchGateTest, AMemberThatNeedsNoWordOfItsLeaseSaysSo) {
  Context context;
  world_.limits.idle_report_us = 200;
  Look({&context});
  EXPECT_EQ(world_.usage.minds_lease, 0u) << "alone it looks seldom, and launches do not move that";
  world_.limits.lease.store((2u << protocol::kLeaseSequenceShift) | protocol::kLeaseOpen |
                            protocol::kLeaseContended);
  Look({&context});
  EXPECT_EQ(world_.usage.minds_lease, protocol::kMindsOpening | protocol::kMindsClosing);
  world_.limits.lease.store(3u << protocol::kLeaseSequenceShift);
  world_.now_ns += kMs;
  Look({&context});
  EXPECT_EQ(world_.usage.drained_sequence, 3u);
  EXPECT_EQ(world_.usage.minds_lease, protocol::kMindsOpening | protocol::kMindsClosing);
  EXPECT_EQ(world_.compute.look_by_ns, world_.now_ns + LeaseWatch::kSeldomNs);
  world_.change_lease_to = 4u << protocol::kLeaseSequenceShift;
  Look({&context});
  EXPECT_EQ(world_.compute.look_ns, world_.now_ns) << "the lease changed while it looked";
}

// What its program launches behind a fence, it launches behind each, as a rule: the look comes when
// that is done, too.
TEST_F(LaunchGateTest, WhatIsLaunchedBehindFencesIsCountedOn) {
  Context context;
  StreamRecord& stream = context.streams[0];
  world_.limits.idle_report_us = 200;
  world_.limits.lease.store((2u << protocol::kLeaseSequenceShift) | protocol::kLeaseOpen |
                            protocol::kLeaseContended);
  world_.limits.backlog_contended_us.store(20'000);
  Teach(1, kMs);
  Teach(2, 300'000);
  const int64_t estimate_ns = world_.estimates().Lookup(1);
  FenceMachine<FakeWorld> fences(world_);
  ASSERT_TRUE(RaiseLaunching(world_, &stream));
  AddLaunch(&stream, this, 2, PrepareBatch(fences, &stream, world_.estimates().Lookup(2)));
  Look({&context});
  EXPECT_EQ(world_.compute.tail_ns, 0) << "one that is just being launched may be fenced at once";
  stream.launching.fetch_sub(1);
  Look({&context});
  const int64_t tail_ns = world_.compute.tail_ns;
  EXPECT_EQ(tail_ns, int64_t{world_.estimates().Lookup(2)});
  EXPECT_EQ(world_.usage.minds_lease, protocol::kMindsOpening);
  fences.EndOldBatch(&stream);
  world_.now_ns += 10 * kMs;
  fences.Harvest(context.ring.get());
  world_.PlanLook(0, world_.now_ns + 100'000, world_.now_ns + 15 * kMs);
  Launch(context, 0, 1, kNever);
  EXPECT_EQ(world_.compute.look_ns, world_.now_ns + estimate_ns + tail_ns + 100'000);
}

}  // namespace
}  // namespace prorata::client
