// What is known of a member's work, on a world made of numbers: streams are done when the test
// says.

#include "client/compute/work_tracker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "client/compute/testing_world.h"

namespace prorata::client {
namespace {

using wire::MessageType;

TEST_F(WorkTrackerTest, AMemberIsBusyFromItsLaunchToTheProof) {
  Context context(world_);
  Teach(1, kMs);
  EXPECT_FALSE(Busy());
  Launch(context, 0, 1, world_.now_ns + 3 * kMs);
  EXPECT_TRUE(Busy());
  world_.now_ns += 2 * kMs;
  Poll();
  EXPECT_TRUE(Busy()) << "longer than expected";
  EXPECT_EQ(world_.usage.backlog_ns, 1u);
  EXPECT_EQ(Occupied(), static_cast<uint64_t>(2 * kMs));
  world_.now_ns += 2 * kMs;
  Poll();
  EXPECT_FALSE(Busy());
  EXPECT_EQ(world_.usage.backlog_ns, 0u);
  EXPECT_EQ(world_.usage.expected_end_ns, world_.now_ns);
  world_.now_ns += 5 * kMs;
  Poll();
  EXPECT_EQ(Occupied(), static_cast<uint64_t>(4 * kMs));
}

TEST_F(WorkTrackerTest, AStreamPerRequestIsBusyUntilItsFencesAreDone) {
  Context context(world_, 1);
  Teach(1, 400'000);
  Launch(context, 0, 1, world_.now_ns + 10 * kMs);
  StreamRecord& stream = context.streams[0];
  // cuStreamDestroy: the open batch is fenced before the driver's call.
  stream.ending.store(1);
  tracker_.EndOld(&stream);
  EXPECT_TRUE(tracker_.StreamGone(&stream)) << "its fences live on in it";
  world_.limits.lease.store(Word(2, 0));
  for (int i = 0; i < 9; ++i) {
    world_.now_ns += kMs;
    Poll();
    EXPECT_TRUE(Busy());
    EXPECT_TRUE(world_.gone.empty()) << "a fence's stream is always there";
  }
  EXPECT_FALSE(Reported(MessageType::kLeaseDrained));
  world_.now_ns += kMs;
  Poll();
  EXPECT_FALSE(Busy());
  EXPECT_TRUE(Reported(MessageType::kLeaseDrained));
  EXPECT_EQ(world_.gone, std::vector<StreamRecord*>{&stream});
}

TEST_F(WorkTrackerTest, AWaitThatAnotherThreadPutsInCountsNothingTwice) {
  Context context(world_, 1);
  StreamRecord& stream = context.streams[0];
  constexpr int64_t kEachNs = 400'000;
  Teach(1, kEachNs);
  Launch(context, 0, 1, world_.now_ns + kEachNs);
  // One thread found that batch open and is about to add to it. The other ends it, for its wait.
  const uint32_t estimate_ns = world_.estimates().Lookup(1);
  ASSERT_FALSE(BeginsBatch(&stream, estimate_ns));
  tracker_.EndOld(&stream);
  stream.waits.store(1);
  world_.free_at_ns[&stream] = world_.now_ns + 2 * kEachNs;
  const Added added = AddLaunch(&stream, &context, 1, estimate_ns);
  EXPECT_TRUE(added.opened);
  tracker_.Opened(&stream, false);
  tracker_.End(&stream, false);
  EXPECT_EQ(world_.compute.backlog.ns(), static_cast<uint64_t>(2 * kEachNs));
  world_.now_ns += 2 * kEachNs;
  Poll();
  EXPECT_FALSE(Busy());
  EXPECT_EQ(world_.compute.launches, 2u);
  EXPECT_EQ(world_.compute.backlog.count(), 0u);
  EXPECT_EQ(Measured(), static_cast<uint64_t>(2 * kEachNs));
  EXPECT_EQ(Occupied(), static_cast<uint64_t>(2 * kEachNs));
}

// Kernels of 5 us, each waited for, by a thread whose calls take 2 us and that is now and then
// stopped on its way to a launch.
TEST_F(WorkTrackerTest, TinyKernelsAreMeasuredWithoutTheTimeThatTheirLaunchesTook) {
  Context context(world_, 1);
  StreamRecord& stream = context.streams[0];
  constexpr int64_t kKernelNs = 5'000, kCallNs = 2'000;
  constexpr int kKernels = 4000;
  for (int i = 0; i < kKernels; ++i) {
    const uint32_t estimate_ns = world_.estimates().Lookup(1);
    ASSERT_TRUE(BeginsBatch(&stream, estimate_ns));
    tracker_.Begin(&stream, estimate_ns);
    world_.now_ns += i % 64 == 15 ? 80 * kUs : kCallNs;
    world_.free_at_ns[&stream] = world_.now_ns + kKernelNs;
    const Added added = AddLaunch(&stream, &context, 1, estimate_ns);
    if (added.opened) tracker_.Opened(&stream, true);
    if (added.due) tracker_.End(&stream, estimate_ns == 0);
    Synchronize(context, 0);
    world_.now_ns += kCallNs;
    Poll();
  }
  EXPECT_NEAR(static_cast<double>(Measured()), kKernels * kKernelNs, 0.05 * kKernels * kKernelNs);
}

TEST_F(WorkTrackerTest, AnIdleStreamIsGoneAtOnce) {
  Context context(world_, 1);
  EXPECT_FALSE(tracker_.StreamGone(&context.streams[0]));
}

TEST_F(WorkTrackerTest, BlockedBatchesDoNotHideWorkElsewhere) {
  Context context(world_);
  Teach(1, kMs);
  for (int i = 0; i < 300; ++i) LaunchFenced(context, 0, 1, kNever);
  for (int i = 0; i < 10; ++i) {
    LaunchFenced(context, 1, 1, world_.now_ns + kMs);
    EXPECT_EQ(context.streams[1].pending, 1u);
    world_.now_ns += kMs;
    Poll();
    EXPECT_EQ(context.streams[1].pending, 0u) << "it is harvested all the same";
    EXPECT_TRUE(Busy());
  }
  EXPECT_EQ(Occupied(), static_cast<uint64_t>(10 * kMs));
  world_.EndAt(context.streams[0], world_.now_ns);
  Poll();
  EXPECT_FALSE(Busy());
}

TEST_F(WorkTrackerTest, AThousandStreamsAreKnownEach) {
  Context context(world_, 1100);
  Teach(1, kMs);
  for (size_t i = 0; i < 1100; ++i) LaunchFenced(context, i, 1, kNever);
  for (size_t i = 0; i < 1099; ++i) world_.EndAt(context.streams[i], world_.now_ns);
  Poll();
  EXPECT_TRUE(Busy());
  EXPECT_EQ(world_.compute.occupancy.reasons(), 1u);
  world_.EndAt(context.streams[1099], world_.now_ns);
  Poll();
  EXPECT_FALSE(Busy());
}

TEST_F(WorkTrackerTest, AnOpenTailIsNeverReportedDrained) {
  Context context(world_);
  Teach(1, 50'000);
  Launch(context, 0, 1, world_.now_ns + 40 * kMs);  // its estimate is far too short
  world_.limits.lease.store(Word(2, 0));
  for (int i = 0; i < 39; ++i) {
    world_.now_ns += kMs;
    Poll();
    ASSERT_FALSE(Reported(MessageType::kLeaseDrained)) << i;
  }
  EXPECT_FALSE(HasOpen(context.streams[0])) << "the helper has fenced it";
  world_.now_ns += kMs;
  Poll();
  EXPECT_TRUE(Reported(MessageType::kLeaseDrained));
  EXPECT_EQ(world_.usage.drained_sequence, 2u);
  EXPECT_EQ(world_.usage.expected_end_ns, world_.now_ns);
}

TEST_F(WorkTrackerTest, TheHelperRecordsNothingWhileACaptureIsOpen) {
  Context context(world_);
  Teach(1, 50'000);
  Launch(context, 0, 1, world_.now_ns + 50'000);
  world_.limits.lease.store(Word(2, 0));
  world_.capturing = 1;
  for (int i = 0; i < 5; ++i) {
    world_.now_ns += kMs;
    Poll();
  }
  EXPECT_EQ(world_.records, 0);
  EXPECT_TRUE(Busy());
  EXPECT_FALSE(Reported(MessageType::kLeaseDrained));
  world_.capturing = 0;
  Poll();
  Poll();
  EXPECT_TRUE(Reported(MessageType::kLeaseDrained));
}

TEST_F(WorkTrackerTest, ATailIsFencedOnlyWhereItMatters) {
  Context context(world_);
  Poll();
  Teach(1, 50'000);
  Launch(context, 0, 1, world_.now_ns + 50'000);
  for (int i = 0; i < 20; ++i) {
    world_.now_ns += 200'000;
    Poll();
  }
  EXPECT_TRUE(Busy()) << "nobody waits";
  for (int i = 0; i < 6; ++i) {
    world_.now_ns += LeaseWatch::kSometimesNs;
    Poll();
  }
  EXPECT_FALSE(Busy()) << "now and then it is found out";
  world_.limits.lease.store(Word(3, kContended));
  Launch(context, 0, 1, world_.now_ns + 50'000);
  for (int i = 0; i < 3; ++i) {
    world_.now_ns += 100'000;
    Poll();
  }
  EXPECT_FALSE(Busy());
}

TEST_F(WorkTrackerTest, TheProgramsOwnSynchronisationProvesWithoutACall) {
  Context context(world_);
  Teach(1, 5'000);
  for (int i = 0; i < 10; ++i) {
    Launch(context, 0, 1, world_.now_ns + 5'000);
    EXPECT_TRUE(Busy());
    Synchronize(context, 0);
    EXPECT_FALSE(Busy());
    EXPECT_EQ(world_.usage.occupied_ns, static_cast<uint64_t>((i + 1) * 5'000));
    world_.now_ns += 20'000;  // a gap is no work
  }
  EXPECT_EQ(world_.records + world_.queries, 0);
  EXPECT_EQ(world_.compute.launches, 10u);
  EXPECT_EQ(Measured(), 50'000u);
}

TEST_F(WorkTrackerTest, ItProvesNothingOfWhatWasLaunchedMeanwhile) {
  Context context(world_);
  Teach(1, 50'000);
  LaunchFenced(context, 0, 1, world_.now_ns + 50'000);
  Launch(context, 0, 1, world_.now_ns + 100'000);
  StreamRecord& stream = context.streams[0];
  const auto mark = tracker_.Mark(&stream);
  world_.now_ns += 100'000;
  Launch(context, 0, 1, world_.now_ns + kMs);  // by another thread
  tracker_.Proven(&stream, mark);
  EXPECT_TRUE(Busy());
  EXPECT_EQ(stream.pending, 0u) << "what was fenced before is done";
  EXPECT_TRUE(HasOpen(stream));
  Launch(context, 1, 1, world_.now_ns + kMs);
  const uint64_t epoch = tracker_.MarkContext(&context.work);
  EXPECT_EQ(tracker_.MarkContext(&context.work), 0u) << "one at a time";
  Launch(context, 1, 1, world_.now_ns + kMs);
  tracker_.ContextProven(&context.work, epoch, true);
  EXPECT_FALSE(HasOpen(context.streams[0]));
  EXPECT_TRUE(HasOpen(context.streams[1]));
  const uint64_t again = tracker_.MarkContext(&context.work);
  tracker_.ContextProven(&context.work, again, false);
  EXPECT_TRUE(Busy()) << "it failed";
}

TEST_F(WorkTrackerTest, UntrackedWorkIsBusyUntilItsContextIsSynchronised) {
  Context context(world_);
  tracker_.Untracked(&context.work);
  EXPECT_TRUE(Busy());
  const uint64_t epoch = tracker_.MarkContext(&context.work);
  tracker_.Untracked(&context.work);
  tracker_.ContextProven(&context.work, epoch, true);
  EXPECT_TRUE(Busy()) << "some was launched after the call began";
  tracker_.ContextProven(&context.work, tracker_.MarkContext(&context.work), true);
  EXPECT_FALSE(Busy());
  tracker_.Untracked(&context.work);
  tracker_.Discard(&context.work);
  EXPECT_FALSE(Busy()) << "it went with its context";
}

TEST_F(WorkTrackerTest, AFenceThatCannotBeRecordedLeavesItBusy) {
  Context context(world_);
  Teach(1, kMs);
  world_.record_answer = Recorded::kNo;
  Launch(context, 0, 1, world_.now_ns + kMs);
  world_.now_ns += 10 * kMs;
  Poll();
  EXPECT_TRUE(Busy());
  world_.record_answer = Recorded::kFault;
  tracker_.EndOld(&context.streams[0]);
  Poll();
  EXPECT_FALSE(Busy()) << "its context runs nothing any more";
}

// It takes 20 us a hundred times, and then 20 ms.
TEST_F(WorkTrackerTest, AKernelThatGrowsIsNotReportedDoneEarly) {
  Context context(world_);
  Teach(1, 20'000);
  world_.limits.lease.store(Word(2, kContended));
  Launch(context, 0, 1, world_.now_ns + 20 * kMs);
  world_.limits.lease.store(Word(3, 0));
  for (int i = 0; i < 199; ++i) {
    world_.now_ns += 100'000;
    Poll();
    ASSERT_TRUE(world_.sent.empty()) << i;
  }
  EXPECT_GE(world_.usage.backlog_ns, 1u);
  world_.now_ns += 100'000;
  Poll();
  EXPECT_EQ(world_.sent, std::vector{MessageType::kLeaseDrained});
}

TEST_F(WorkTrackerTest, ALaunchThatIsBeingMadeHoldsUpTheDraining) {
  Context context(world_);
  ASSERT_TRUE(RaiseLaunching(world_, 0));
  world_.limits.lease.store(Word(2, 0));
  Poll();
  EXPECT_FALSE(Reported(MessageType::kLeaseDrained));
  EXPECT_FALSE(RaiseLaunching(world_, 0)) << "it sees the closed lease";
  EXPECT_EQ(world_.compute.launching, 1u);
  world_.compute.launching.fetch_sub(1);
  Poll();
  EXPECT_TRUE(Reported(MessageType::kLeaseDrained));
}

// A thread saw its batch open, was preempted for long, and launched: it is late, but not lost.
TEST_F(WorkTrackerTest, ALaunchIntoABatchThatWasClosedMeanwhileIsSeen) {
  Context context(world_);
  Teach(1, 50'000);
  Launch(context, 0, 1, world_.now_ns);
  StreamRecord& stream = context.streams[0];
  EXPECT_FALSE(BeginsBatch(&stream, 50'000));
  tracker_.EndOld(&stream);
  Poll();
  EXPECT_FALSE(Busy());
  EXPECT_EQ(stream.listed, kNotListed);
  const uint64_t occupied_ns = Occupied();
  world_.now_ns += 5 * kMs;
  const Added added = AddLaunch(&stream, &context, 1, 50'000);
  EXPECT_TRUE(added.opened);
  tracker_.Opened(&stream, false);
  EXPECT_TRUE(Busy());
  EXPECT_EQ(stream.listed, kListed);
  Poll();
  EXPECT_EQ(Occupied(), occupied_ns) << "its thread was stopped, and nothing ran";
}

// While a capture is open anywhere the helper fences nothing: it would not be known that what is
// open has run, and the lease would never be given up.
TEST_F(WorkTrackerTest, NothingIsOpenWhileACaptureIs) {
  Context context(world_);
  Teach(1, 50 * kUs);
  Launch(context, 0, 1, world_.now_ns + 50 * kUs);
  ASSERT_TRUE(HasOpen(context.streams[0]));
  world_.capturing = 1;
  tracker_.FenceOpen(&context.work);
  EXPECT_FALSE(HasOpen(context.streams[0]));
  Launch(context, 1, 1, world_.now_ns + 50 * kUs);
  EXPECT_FALSE(HasOpen(context.streams[1]));
  world_.now_ns += kMs;
  Poll();
  EXPECT_FALSE(Busy());
}

TEST_F(WorkTrackerTest, ALaunchOnSeveralDevicesKeepsAllBusyUntilItIsDone) {
  Context context(world_);
  Teach(1, kMs);
  Launch(context, 0, 1, world_.now_ns + kMs);
  tracker_.RunsOn(&context.streams[0], 0b110);  // of this world all are one
  EXPECT_EQ(world_.compute.occupancy.reasons(), 3u);
  tracker_.End(&context.streams[0], false);
  EXPECT_EQ(world_.compute.backlog.count(), 1u) << "it was fenced before";
  world_.now_ns += 2 * kMs;
  Poll();
  EXPECT_FALSE(Busy());
  EXPECT_EQ(world_.compute.backlog.count(), 0u);
}

TEST_F(WorkTrackerTest, AThreadsOwnDefaultStreamIsFencedWithEachLaunch) {
  Context context(world_);
  Teach(1, 1'000);
  context.streams[0].per_thread = true;
  for (uint32_t i = 1; i < 5; ++i) {
    Launch(context, 0, 1, kNever);
    EXPECT_EQ(context.streams[0].pending, i);
    EXPECT_FALSE(HasOpen(context.streams[0]));
  }
}

// An event of the legacy stream keeps all others waiting: it stands right behind its launch.
TEST_F(WorkTrackerTest, TheLegacyStreamIsFencedBeforeOthersGoOn) {
  Context context(world_, 3);
  for (StreamRecord& stream : context.streams) stream.blocking = true;
  StreamRecord& legacy = context.streams[0];
  legacy.legacy = true;
  context.work.legacy.store(&legacy);
  Teach(1, 1'000);
  Launch(context, 0, 1, kNever);
  EXPECT_TRUE(HasOpen(legacy)) << "alone it is fenced as any";
  Launch(context, 1, 1, kNever);
  EXPECT_FALSE(HasOpen(legacy));
  Launch(context, 0, 1, kNever);
  EXPECT_FALSE(HasOpen(legacy)) << "beside others each of its launches is";
}

// For ThreadSanitizer: a thread that launches sees the record whole as soon as another has made it.
TEST_F(WorkTrackerTest, TheLegacyStreamMayAppearAtAnyTime) {
  Context context(world_, 2);
  StreamRecord& legacy = context.streams[0];
  StreamRecord& other = context.streams[1];
  other.blocking = true;
  Teach(1, 1'000);
  std::atomic<bool> made{false};  // relaxed: it orders nothing
  std::thread launching([&] {
    while (!made.load(std::memory_order_relaxed)) {
    }
    tracker_.Begin(&other, 1'000);
  });
  memset(static_cast<void*>(&legacy), 0, sizeof legacy);
  legacy.work = &context.work;
  context.work.legacy.store(&legacy);
  made.store(true, std::memory_order_relaxed);
  launching.join();
  EXPECT_FALSE(HasOpen(legacy));
}

// Each of its batches waits for a time slice of another process: 3 ms for 36 us.
TEST_F(WorkTrackerTest, InSlicesTheTimeOfOthersIsNotItsOwn) {
  Context context(world_);
  Teach(1, 36'000);
  world_.limits.together.store(shm::kInSlices);
  for (int i = 0; i < 20; ++i) {
    LaunchFenced(context, 0, 1, world_.now_ns + 3 * kMs);
    world_.now_ns += 3 * kMs;
    Poll();
  }
  EXPECT_EQ(world_.usage.device_time_ns, 20u * 36'000);
  EXPECT_EQ(world_.estimates().Lookup(1), 36'000u);
  // A kernel of 40 ms under the same name is measured, whichever it is: half of it at least.
  LaunchFenced(context, 0, 1, world_.now_ns + 80 * kMs);
  world_.now_ns += 80 * kMs;
  Poll();
  EXPECT_GE(world_.usage.device_time_ns, 20u * 36'000 + 38 * kMs);
}

TEST_F(WorkTrackerTest, EstimatesAreTriedNowAndThen) {
  Context context(world_);
  Teach(1, 100'000);
  for (int i = 0; i < 200; ++i) {
    Launch(context, 0, 1, world_.now_ns + 20'000);
    Synchronize(context, 0);
  }
  EXPECT_LT(world_.estimates().Lookup(1), 40'000u);
  // Each sixteenth, and at first each, until what was learned wrong is nearly right.
  EXPECT_LE(world_.records, 2 * (200 / 16 + 8) + 2);
}

TEST_F(WorkTrackerTest, UnderPressureBatchesAreMeasuredFenceToFence) {
  Context context(world_);
  Teach(1, 600'000);
  const int64_t start_ns = world_.now_ns;
  for (int i = 1; i <= 20; ++i) Launch(context, 0, 1, start_ns + i * kMs);
  for (int i = 0; i < 20; ++i) {
    world_.now_ns += kMs;
    Poll();
  }
  EXPECT_FALSE(Busy());
  EXPECT_NEAR(world_.estimates().Lookup(1), 1e6, 1e4);
  EXPECT_LE(Measured(), Occupied());
  EXPECT_GT(Measured(), static_cast<uint64_t>(19 * kMs));
}

TEST_F(WorkTrackerTest, MeasuredTimeIsNeverMoreThanTheTimeItWasBusy) {
  Context context(world_, 8);
  Teach(1, kMs);
  for (size_t i = 0; i < 8; ++i) LaunchFenced(context, i, 1, world_.now_ns + 2 * kMs);
  world_.now_ns += 2 * kMs;
  Poll();
  EXPECT_EQ(Occupied(), static_cast<uint64_t>(2 * kMs));
  EXPECT_EQ(Measured(), static_cast<uint64_t>(2 * kMs));
}

TEST_F(WorkTrackerTest, AContextTakesItsWorkWithIt) {
  Context context(world_);
  Teach(1, kMs);
  for (int i = 0; i < 50; ++i) LaunchFenced(context, 0, 1, kNever);
  Launch(context, 1, 1, kNever);
  tracker_.RunsOn(&context.streams[1], 2);
  context.streams[0].gone = true;
  tracker_.Discard(&context.work);
  EXPECT_FALSE(Busy());
  EXPECT_EQ(world_.compute.backlog.count(), 0u);
  EXPECT_EQ(world_.compute.backlog.ns(), 0u);
  EXPECT_EQ(world_.gone, std::vector<StreamRecord*>{&context.streams[0]});
  EXPECT_EQ(context.work.context.load(), nullptr);
}

}  // namespace
}  // namespace prorata::client
