// What stands behind a wait in its stream: no part of the backlog, and not done (work_poller.h).

#include <gtest/gtest.h>

#include "client/compute/testing_world.h"

namespace prorata::client {
namespace {

using wire::MessageType;

class WaitsTest : public WorkTrackerTest {};

// A wait in the stream, and launches behind it: they take nothing of the device until they begin,
// but they may begin at any moment.
TEST_F(WaitsTest, WhatIsKnownNotToHaveBegunIsNotOccupiedAndNotDrained) {
  Context context(world_);
  Teach(1, kMs);
  StreamRecord& stream = context.streams[0];
  stream.waits.store(1);
  world_.free_at_ns[&stream] = kNever;
  LaunchFenced(context, 0, 1, kNever);
  LaunchFenced(context, 0, 1, kNever);
  Poll();
  const uint64_t before_ns = Occupied();
  world_.limits.lease.store(Word(2, 0));
  Pass(1 * kS);
  EXPECT_EQ(Occupied(), before_ns);
  EXPECT_FALSE(Reported(MessageType::kLeaseDrained));
  EXPECT_NE(world_.usage.backlog_ns, 0u);
  EXPECT_EQ(world_.usage.blocked, 1u);
  const std::vector<MessageType> told = {MessageType::kLeaseIdle};
  EXPECT_EQ(world_.sent, told) << "it is charged until then";
  // It begins right after it was looked at.
  world_.DoneNs(stream.first->start) = world_.now_ns + 1;
  Pass(100 * kMs);
  EXPECT_EQ(Occupied(), before_ns + static_cast<uint64_t>(100 * kMs));
  EXPECT_EQ(world_.usage.blocked, 0u);
  const std::vector<MessageType> told_again = {MessageType::kLeaseIdle, MessageType::kLeaseIdle};
  EXPECT_EQ(world_.sent, told_again) << "it runs outside its lease";
  world_.EndAt(stream, world_.now_ns);
  Poll();
  EXPECT_TRUE(Reported(MessageType::kLeaseDrained));
  EXPECT_EQ(world_.compute.blocked, 0u);
  EXPECT_EQ(world_.compute.occupancy.reasons(), 0u);
}

// A short kernel, of which a batch has many as a rule: nobody need look for that to be known.
TEST_F(WaitsTest, WhatComesBehindAWaitIsKnownToAtOnce) {
  Context context(world_);
  Teach(1, 10'000);
  world_.limits.lease.store(Word(1, kContended));
  StreamRecord& stream = context.streams[0];
  NoteWait(&stream);
  world_.free_at_ns[&stream] = kNever;
  Launch(context, 0, 1, kNever);
  EXPECT_FALSE(HasOpen(stream));
  EXPECT_FALSE(Busy());
  EXPECT_EQ(world_.compute.blocked, 1u);
  // More of them are a batch as ever.
  for (int i = 0; i < 3; ++i) Launch(context, 0, 1, kNever);
  EXPECT_EQ(LaunchesIn(OpenWord(stream)), 3u);
  EXPECT_FALSE(Busy());
}

// It begins and ends between two looks: it is charged for what its events say, and not for the time
// since it was last known to wait. The same again is queued behind it.
TEST_F(WaitsTest, WhatHasRunSinceItWasSeenToWaitIsChargedForThat) {
  for (const bool proven : {false, true}) {
    SCOPED_TRACE(proven);
    Context context(world_);
    Teach(1, kMs);
    StreamRecord& stream = context.streams[0];
    for (int i = 0; i < 2; ++i) {
      stream.waits.store(1);
      world_.free_at_ns[&stream] = kNever;
      LaunchFenced(context, 0, 1, kNever);
      LaunchFenced(context, 0, 1, kNever);
    }
    Poll();
    ASSERT_EQ(world_.compute.blocked, 1u);
    const uint64_t before_ns = Occupied();
    world_.DoneNs(stream.first->start) = world_.now_ns + 1 * kMs;
    world_.DoneNs(stream.first->end) = world_.now_ns + 2 * kMs;
    world_.DoneNs(stream.first->next->end) = world_.now_ns + 3 * kMs;
    world_.now_ns += 20 * kMs;
    if (proven) tracker_.Proven(&stream, {0, stream.first->next->serial});
    Poll();
    EXPECT_EQ(Occupied(), before_ns + static_cast<uint64_t>(2 * kMs));
    EXPECT_EQ(world_.compute.blocked, 1u);
    EXPECT_EQ(stream.pending, 2u);
    tracker_.Discard(&context.work);
    world_.works.clear();
  }
}

// Behind what its events measure it may have run on until now.
TEST_F(WaitsTest, WhatFollowsWhatHasRunIsChargedSinceItWasSeenToWait) {
  enum Next { kOpenBatch, kProvenBatch, kWaitIsOver, kStillWaits };
  for (const Next next : {kOpenBatch, kProvenBatch, kWaitIsOver, kStillWaits}) {
    SCOPED_TRACE(next);
    Context context(world_);
    Teach(1, kMs);
    StreamRecord& stream = context.streams[0];
    NoteWait(&stream);
    world_.free_at_ns[&stream] = kNever;
    LaunchFenced(context, 0, 1, kNever);
    const bool behind = next == kOpenBatch || next == kProvenBatch;
    if (!behind) {
      NoteWait(&stream);
      LaunchFenced(context, 0, 1, kNever);
    }
    Poll();
    ASSERT_EQ(world_.compute.blocked, 1u);
    const uint64_t before_ns = Occupied();
    Teach(2, 10'000);
    if (behind) Launch(context, 0, 2, kNever);
    ASSERT_EQ(HasOpen(stream), behind);
    const int64_t from_ns = world_.now_ns;
    world_.DoneNs(stream.first->start) = from_ns + 1 * kMs;
    world_.DoneNs(stream.first->end) = from_ns + 2 * kMs;
    if (next == kWaitIsOver) world_.DoneNs(stream.first->next->start) = from_ns + 3 * kMs;
    world_.now_ns += 5 * kMs;
    if (next == kProvenBatch) {
      world_.free_at_ns[&stream] = world_.now_ns;
      Synchronize(context, 0);
    }
    Poll();
    EXPECT_EQ(Occupied() - before_ns,
              static_cast<uint64_t>(next == kStillWaits ? 1 * kMs : 5 * kMs));
    EXPECT_EQ(Busy(), next == kOpenBatch || next == kWaitIsOver);
    tracker_.Discard(&context.work);
    world_.works.clear();
  }
}

// The helper fences the stream's batch at the very moment at which a wait is put in: what was
// launched before the wait must not seem to run until that is over.
TEST_F(WaitsTest, AWaitIsPutBehindAFenceThatAnotherThreadIsAt) {
  Context context(world_);
  Teach(1, 10'000);
  StreamRecord& stream = context.streams[0];
  Launch(context, 0, 1, world_.now_ns + 10'000);
  stream.fencing.store(1);
  world_.on_nap = [&] {
    if (world_.naps == 3) stream.fencing.store(0);
  };
  tracker_.EndBeforeWait(&stream);
  EXPECT_FALSE(HasOpen(stream));
  // And at the next: the batch behind the wait has a start event.
  stream.fencing.store(1);
  world_.naps = 0;
  stream.waits.store(1);
  world_.free_at_ns[&stream] = kNever;
  LaunchFenced(context, 0, 1, kNever);
  world_.now_ns += kMs;
  Poll();
  EXPECT_FALSE(Busy()) << "all that is left waits";
  EXPECT_EQ(world_.compute.blocked, 1u);
}

TEST_F(WaitsTest, AThreadThatNeverEndsItsFenceIsNotWaitedForLong) {
  Context context(world_);
  Launch(context, 0, 1, world_.now_ns + kMs);
  const int64_t begin_ns = world_.now_ns;
  StreamRecord& stream = context.streams[0];
  tracker_.Begin(&stream, 0);
  AddLaunch(&stream, &context, 1, 10'000);
  stream.fencing.store(1);
  tracker_.EndBeforeWait(&stream);
  EXPECT_TRUE(HasOpen(stream));
  EXPECT_LE(world_.now_ns - begin_ns, 6 * kMs);
}

// A fence of the legacy stream that comes behind a wait of a blocking stream hangs the program, if
// what ends the wait stands behind that fence. Whoever is fencing may have no processor for long.
TEST_F(WaitsTest, TheLegacyStreamIsFencedBeforeAWaitHoweverLongAnotherThreadIsAtIt) {
  Context context(world_);
  Teach(1, 10'000);
  StreamRecord& legacy = context.streams[0];
  legacy.legacy = true;
  context.work.legacy.store(&legacy);
  context.streams[1].blocking = true;
  Launch(context, 0, 1, world_.now_ns + 10'000);
  ASSERT_TRUE(HasOpen(legacy));
  legacy.fencing.store(1);
  world_.on_nap = [&] {
    if (world_.naps == 3'000) legacy.fencing.store(0);
  };
  tracker_.EndLegacy(&context.streams[1]);
  EXPECT_FALSE(HasOpen(legacy));
  EXPECT_EQ(world_.naps, 3'000);
}

// The legacy stream and the blocking ones wait for each other, so a wait in one keeps the others.
TEST_F(WaitsTest, AWaitInTheLegacyStreamKeepsBlockingStreamsAndIsKeptByThem) {
  for (const bool in_legacy : {true, false}) {
    SCOPED_TRACE(in_legacy);
    for (const bool other_blocks : {true, false}) {
      SCOPED_TRACE(other_blocks);
      Context context(world_);
      Teach(1, kMs);
      StreamRecord& legacy = context.streams[0];
      StreamRecord& other = context.streams[1];
      legacy.legacy = legacy.blocking = true;
      other.blocking = other_blocks;
      context.work.legacy.store(&legacy);
      NoteWait(in_legacy ? &legacy : &other);
      const size_t behind = in_legacy ? 1 : 0;
      world_.free_at_ns[&context.streams[behind]] = kNever;
      LaunchFenced(context, behind, 1, kNever);
      EXPECT_EQ(context.streams[behind].first->waits, other_blocks);
      Poll();
      EXPECT_EQ(Busy(), !other_blocks);
      // The next one is known to come behind that.
      LaunchFenced(context, behind, 1, kNever);
      EXPECT_FALSE(context.streams[behind].last->waits);
      tracker_.Discard(&context.work);
      world_.works.clear();
    }
  }
}

// A blocking stream comes behind the legacy stream's kernel, and that behind another's wait.
TEST_F(WaitsTest, AWaitReachesThroughTheLegacyStream) {
  Context context(world_, 3);
  Teach(1, kMs);
  StreamRecord& legacy = context.streams[0];
  legacy.legacy = legacy.blocking = true;
  context.work.legacy.store(&legacy);
  context.streams[1].blocking = context.streams[2].blocking = true;
  NoteWait(&context.streams[1]);
  for (StreamRecord& stream : context.streams) world_.free_at_ns[&stream] = kNever;
  LaunchFenced(context, 2, 1, world_.now_ns + kMs);
  EXPECT_FALSE(context.streams[2].first->waits);
  world_.now_ns += kMs;
  Poll();
  LaunchFenced(context, 0, 1, kNever);
  world_.free_at_ns[&context.streams[2]] = kNever;
  LaunchFenced(context, 2, 1, kNever);
  EXPECT_TRUE(context.streams[2].first->waits);
  Poll();
  EXPECT_FALSE(Busy());
}

TEST_F(WaitsTest, WorkBesideABlockedStreamIsNotBlocked) {
  Context context(world_);
  Teach(1, kMs);
  context.streams[0].waits.store(1);
  world_.free_at_ns[&context.streams[0]] = kNever;
  LaunchFenced(context, 0, 1, kNever);
  Poll();
  world_.now_ns += kMs;
  Poll();
  EXPECT_EQ(world_.usage.blocked, 1u);
  LaunchFenced(context, 1, 1, world_.now_ns + kMs);
  EXPECT_EQ(world_.usage.blocked, 0u) << "before the helper looks again";
  Poll();
  EXPECT_EQ(world_.usage.blocked, 0u);
  world_.now_ns += kMs;
  Poll();
  world_.now_ns += kMs;
  Poll();
  EXPECT_EQ(world_.usage.blocked, 1u);
  EXPECT_FALSE(Reported(MessageType::kLeaseIdle)) << "nobody waits for the device";
}

TEST_F(WaitsTest, ABlockedStreamGoesWithItsContext) {
  Context context(world_);
  Teach(1, kMs);
  context.streams[0].waits.store(1);
  world_.free_at_ns[&context.streams[0]] = kNever;
  LaunchFenced(context, 0, 1, kNever);
  Poll();
  EXPECT_EQ(world_.compute.blocked, 1u);
  tracker_.Discard(&context.work);
  EXPECT_EQ(world_.compute.blocked, 0u);
  EXPECT_FALSE(Busy());
}

// --- Launches that are late ---------------------------------------------------------------------

class LateLaunchTest : public WorkTrackerTest {
 protected:
  // The first launch of a function is in the driver, which loads its module.
  void Enter() {
    world_.limits.lease.store(Word(1, kContended));
    ASSERT_TRUE(RaiseLaunching(world_, 0));
    tracker_.Begin(&stream(), 0);
  }
  // It reaches the device now, and returns.
  void Return(int64_t takes_ns) {
    world_.free_at_ns[&stream()] = world_.now_ns + takes_ns;
    const Added added = AddLaunch(&stream(), &context_, 1, 0);
    tracker_.Opened(&stream(), true);
    tracker_.End(&stream(), true);
    EXPECT_TRUE(added.opened);
    tracker_.Returned(&stream());
    world_.compute.launching.fetch_sub(1);
  }
  void PassMs(int64_t ms) {
    for (; ms > 0; --ms) {
      world_.now_ns += kMs;
      Poll();
    }
  }
  StreamRecord& stream() { return context_.streams[0]; }

  Context context_{world_};
};

TEST_F(LateLaunchTest, ItIsBehindAWaitOnceTheDeviceIsSeenToHaveNothingOfIt) {
  Enter();
  PassMs(12);
  EXPECT_EQ(world_.usage.blocked, 0u) << "its thread may wait for a processor";
  PassMs(3);
  EXPECT_EQ(world_.usage.blocked, 1u);
  EXPECT_NE(world_.usage.backlog_ns, 0u);
  world_.limits.lease.store(Word(2, 0));
  PassMs(2'000);
  EXPECT_FALSE(Reported(MessageType::kLeaseDrained)) << "it may begin at any moment";
  EXPECT_EQ(Occupied(), 0u);
  Return(5 * kMs);
  EXPECT_EQ(world_.usage.blocked, 0u);
  PassMs(10);
  EXPECT_TRUE(Reported(MessageType::kLeaseDrained));
  EXPECT_GE(Occupied(), static_cast<uint64_t>(5 * kMs));
  EXPECT_LE(Occupied(), static_cast<uint64_t>(7 * kMs)) << "not what the driver took";
  EXPECT_EQ(world_.estimates().Lookup(1), 0u) << "nor is that learned";
  EXPECT_EQ(stream().listed, kNotListed);
}

TEST_F(LateLaunchTest, OneThatRunsWhileItsThreadIsStoppedIsCharged) {
  Enter();
  world_.free_at_ns[&stream()] = kNever;
  PassMs(100);
  EXPECT_EQ(world_.usage.blocked, 0u);
  EXPECT_EQ(Occupied(), static_cast<uint64_t>(100 * kMs)) << "while it is in the driver";
  world_.now_ns += kMs;
  Return(-kMs);
  Poll();
  EXPECT_EQ(Occupied(), static_cast<uint64_t>(101 * kMs));
  EXPECT_FALSE(Busy());
}

TEST_F(LateLaunchTest, OneThatRunsAndFailsLeavesNothing) {
  Enter();
  world_.free_at_ns[&stream()] = world_.now_ns + 50 * kMs;
  PassMs(40);
  EXPECT_TRUE(Busy());
  PassMs(60);
  EXPECT_FALSE(Busy());
  EXPECT_EQ(world_.usage.blocked, 1u) << "what it had is done";
  tracker_.Returned(&stream());
  world_.compute.launching.fetch_sub(1);
  world_.limits.lease.store(Word(2, 0));
  Poll();
  EXPECT_TRUE(Reported(MessageType::kLeaseDrained));
}

TEST_F(LateLaunchTest, NothingIsKnownOfOneBesideIt) {
  Enter();
  ASSERT_TRUE(RaiseLaunching(world_, 0));  // in no stream that has a record
  PassMs(100);
  EXPECT_EQ(world_.usage.blocked, 0u);
  world_.compute.launching.fetch_sub(1);
  PassMs(1);
  EXPECT_EQ(world_.usage.blocked, 1u);
}

TEST_F(LateLaunchTest, NothingIsAskedWhileACaptureIsOpen) {
  Enter();
  world_.capturing = 1;
  PassMs(100);
  EXPECT_EQ(world_.usage.blocked, 0u);
  EXPECT_EQ(world_.queries, 0);
  EXPECT_FALSE(Busy()) << "not charged twice: when it returns it is, from its beginning on";
  EXPECT_NE(world_.usage.backlog_ns, 0u);
}

TEST_F(LateLaunchTest, NorOfAThreadsOwnStream) {
  stream().per_thread = true;
  Enter();
  PassMs(100);
  EXPECT_EQ(world_.usage.blocked, 0u);
  EXPECT_EQ(world_.queries, 0);
}

TEST_F(LateLaunchTest, OneThatFailsLeavesNothing) {
  Enter();
  PassMs(100);
  tracker_.Returned(&stream());
  world_.compute.launching.fetch_sub(1);
  world_.limits.lease.store(Word(2, 0));
  Poll();
  EXPECT_TRUE(Reported(MessageType::kLeaseDrained));
  EXPECT_EQ(Occupied(), 0u);
  EXPECT_EQ(stream().listed, kNotListed);
}

// Its process uses up its processor quota, and nobody looks for 80 ms.
class AwayTest : public WorkTrackerTest {
 protected:
  void GoAway() { world_.now_ns += 80 * kMs; }
};

TEST_F(AwayTest, WhatRanMeanwhileIsChargedByItsEvents) {
  Context context(world_);
  Teach(1, kMs);
  LaunchFenced(context, 0, 1, world_.now_ns + 1 * kMs);
  Poll();
  Synchronize(context, 0);
  ASSERT_FALSE(Busy());
  const uint64_t before_ns = Occupied();
  LaunchFenced(context, 0, 1, world_.now_ns + 30 * kMs);  // it has no start event
  LaunchFenced(context, 0, 1, world_.now_ns + 40 * kMs);
  GoAway();
  Poll();
  EXPECT_FALSE(Busy());
  EXPECT_NEAR(Occupied() - before_ns, 40 * kMs, 2 * kMs);
  EXPECT_EQ(world_.compute.occupancy.ended_ns(), world_.now_ns - 40 * kMs);
  EXPECT_EQ(world_.usage.expected_end_ns, world_.now_ns - 40 * kMs) << "it had drained by then";
}

// Who was away says so, for others may have had its turn.
TEST_F(AwayTest, WhoIsBackSaysSo) {
  Context context(world_);
  Teach(1, kMs);
  LaunchFenced(context, 0, 1, kNever);
  Poll();
  world_.now_ns += 2 * kMs;
  Poll();
  EXPECT_FALSE(Reported(MessageType::kLeaseIdle));
  GoAway();
  Poll();
  EXPECT_EQ(world_.sent, std::vector{MessageType::kLeaseIdle});
  GoAway();
  world_.EndAt(context.streams[0], world_.now_ns);
  Synchronize(context, 0);
  Poll();
  EXPECT_EQ(world_.sent, std::vector{MessageType::kLeaseIdle})
      << "it has nothing, and wants nothing";
}

TEST_F(AwayTest, WhatRunsStillRanAllTheTime) {
  Context context(world_);
  Teach(1, kMs);
  LaunchFenced(context, 0, 1, kNever);
  Poll();
  GoAway();
  Poll();
  world_.now_ns += Occupancy::kBackNs;
  Poll();
  EXPECT_EQ(Occupied(), static_cast<uint64_t>(80 * kMs + Occupancy::kBackNs));
}

// Events that were recorded before and after enclose the time in which it was away.
TEST_F(AwayTest, WhatIsFencedAfterwardsIsNotMeasured) {
  Context context(world_);
  world_.limits.together.store(shm::kInSlices);  // a start event, and bounds from what was measured
  Teach(1, 10'000);
  Launch(context, 0, 1, world_.now_ns + 10'000);
  Poll();
  GoAway();
  tracker_.EndOld(&context.streams[0]);
  world_.EndAt(context.streams[0], world_.now_ns);
  Poll();
  EXPECT_FALSE(Busy());
  EXPECT_LT(Measured(), static_cast<uint64_t>(kMs));
  EXPECT_LT(Occupied(), static_cast<uint64_t>(kMs));
}

// A graph of another device's stream runs here, too; when it came is known there.
TEST_F(AwayTest, WorkThatIsInNoStreamHereRanAllTheTime) {
  Context context(world_);
  tracker_.Untracked(&context.work);
  Poll();
  GoAway();
  Poll();
  world_.now_ns += Occupancy::kBackNs;
  Poll();
  EXPECT_EQ(Occupied(), static_cast<uint64_t>(80 * kMs + Occupancy::kBackNs));
}

}  // namespace
}  // namespace prorata::client
