// When the helper says "drained" and "idle", and when it looks again.

#include "client/lease_watch.h"

#include <gtest/gtest.h>

#include <limits>

namespace prorata::client {
namespace {

constexpr int64_t kUs = 1'000, kMs = 1'000'000;

constexpr uint32_t Word(uint32_t sequence, uint32_t bits) {
  return (sequence << protocol::kLeaseSequenceShift) | bits;
}

class LeaseWatchTest : public testing::Test {
 protected:
  LeaseWatch::Act Step(uint32_t lease, bool outstanding = false, uint64_t unfenced_ns = 0) {
    return watch_.Step({.now_ns = now_ns_,
                        .lease = lease,
                        .outstanding = outstanding,
                        .waiting = waiting_,
                        .unfenced_ns = unfenced_ns,
                        .backlog_ns = backlog_ns_,
                        .launches = launches_,
                        .idle_report_ns = 200 * 1000,
                        .expected_end_ns = end_ns_,
                        .closely = closely_,
                        .unknown = unknown_,
                        .at_bound = at_bound_,
                        .unawaited = unawaited_,
                        .unfenced_launches = unfenced_launches_,
                        .unfenced_began_ns = unfenced_began_ns_});
  }
  bool waiting_ = false;
  uint64_t backlog_ns_ = 0;
  bool unknown_ = false;
  bool at_bound_ = false;
  bool unawaited_ = false;
  int64_t end_ns_ = std::numeric_limits<int64_t>::max();
  bool closely_ = false;
  uint64_t unfenced_launches_ = 0;
  int64_t unfenced_began_ns_ = 0;
  LeaseWatch watch_;
  int64_t now_ns_ = 1'000 * kMs;
  uint64_t launches_ = 0;
};

TEST_F(LeaseWatchTest, AClosedLeaseIsDrainedOnceWhenTheFencesAreDone) {
  Step(Word(1, protocol::kLeaseOpen), true);
  now_ns_ += kMs;
  EXPECT_FALSE(Step(Word(2, 0), true).drained);
  now_ns_ += kMs;
  const LeaseWatch::Act act = Step(Word(2, 0), false);
  EXPECT_TRUE(act.drained);
  EXPECT_EQ(act.sequence, 2u);
  now_ns_ += kMs;
  EXPECT_FALSE(Step(Word(2, 0)).drained) << "once for a sequence";
  EXPECT_TRUE(Step(Word(4, 0)).drained) << "and again for the next";
}

TEST_F(LeaseWatchTest, UnfencedWorkIsGivenItsTime) {
  Step(Word(1, protocol::kLeaseOpen));
  ++launches_;
  now_ns_ += kMs;
  EXPECT_FALSE(Step(Word(2, 0), false, 300 * kUs).drained);
  now_ns_ += 200 * kUs;
  EXPECT_FALSE(Step(Word(2, 0), false, 300 * kUs).drained);
  now_ns_ += 100 * kUs;
  EXPECT_TRUE(Step(Word(2, 0), false, 300 * kUs).drained);
}

TEST_F(LeaseWatchTest, IdleIsSaidOnlyWhenContendedAndOnceUntilWorkComes) {
  const uint32_t open = Word(1, protocol::kLeaseOpen);
  const uint32_t contended = Word(2, protocol::kLeaseOpen | protocol::kLeaseContended);
  Step(open);
  now_ns_ += 100 * kMs;
  EXPECT_FALSE(Step(open).idle);
  EXPECT_TRUE(Step(contended).idle) << "it has been idle long enough already";
  now_ns_ += 10 * kMs;
  EXPECT_FALSE(Step(contended).idle);
  ++launches_;
  now_ns_ += kMs;
  EXPECT_FALSE(Step(contended).idle);
  now_ns_ += 200 * kUs;
  EXPECT_TRUE(Step(contended).idle);
}

// Looks may lie half a millisecond apart: what was outstanding at the last one may have ended now.
TEST_F(LeaseWatchTest, IdlenessBeginsWhenNothingIsSeenOutstanding) {
  const uint32_t contended = Word(1, protocol::kLeaseOpen | protocol::kLeaseContended);
  ++launches_;
  Step(contended, true);
  now_ns_ += 500 * kUs;
  EXPECT_FALSE(Step(contended).idle);
  now_ns_ += 100 * kUs;
  EXPECT_FALSE(Step(contended).idle);
  now_ns_ += 100 * kUs;
  EXPECT_TRUE(Step(contended).idle);
}

TEST_F(LeaseWatchTest, IdlenessBeginsWithTheExpectedEndIfThatWasSinceTheLastLook) {
  const uint32_t contended = Word(1, protocol::kLeaseOpen | protocol::kLeaseContended);
  ++launches_;
  Step(contended, true);
  end_ns_ = now_ns_ + 250 * kUs;
  now_ns_ += 450 * kUs;
  EXPECT_TRUE(Step(contended).idle);
  ++launches_;
  Step(contended, true);
  end_ns_ = now_ns_ - 100 * kUs;  // it was done later than expected
  now_ns_ += 450 * kUs;
  EXPECT_FALSE(Step(contended).idle) << "just now, for all that is known";
  ++launches_;
  Step(contended, true);
  end_ns_ = now_ns_ + kMs;  // earlier
  now_ns_ += 450 * kUs;
  EXPECT_FALSE(Step(contended).idle);
}

// A look is a wake-up: while much is outstanding, and nothing could be said, there are few.
TEST_F(LeaseWatchTest, LooksComeCloserAsTheWorkEnds) {
  const uint32_t contended = Word(1, protocol::kLeaseOpen | protocol::kLeaseContended);
  backlog_ns_ = 8 * kMs;
  EXPECT_EQ(Step(contended, true).look_again_ns, LeaseWatch::kWhileBusyNs);
  backlog_ns_ = 800 * kUs;
  EXPECT_EQ(Step(contended, true).look_again_ns, 400 * kUs);
  backlog_ns_ = 250 * kUs;  // and an idle report after it, if nothing comes
  EXPECT_EQ(Step(contended, true).look_again_ns, 450 * kUs);
  EXPECT_EQ(Step(contended, true, 50 * kUs).look_again_ns, 125 * kUs) << "some is behind no fence";
  backlog_ns_ = 1;
  EXPECT_EQ(Step(contended, true).look_again_ns, LeaseWatch::kOftenNs) << "late";
  backlog_ns_ = 600 * kUs;
  // Others wait for the end of these, and the agent for the next figure.
  EXPECT_EQ(Step(Word(2, 0), true).look_again_ns, 450 * kUs);
  closely_ = true;  // and goes by all that come before
  EXPECT_EQ(Step(Word(2, 0), true).look_again_ns, LeaseWatch::kOftenNs);
  closely_ = false;
  backlog_ns_ = 80 * kUs;
  EXPECT_EQ(Step(Word(2, 0), true).look_again_ns, LeaseWatch::kOftenNs);
}

// What launches add is outstanding until it should be done: the look after the last of them is all
// that is needed, but only where that is known and nobody goes by the figures in between.
TEST_F(LeaseWatchTest, LooksAtABusyHolderMayBePutOff) {
  const uint32_t contended = Word(1, protocol::kLeaseOpen | protocol::kLeaseContended);
  backlog_ns_ = 800 * kUs;
  EXPECT_TRUE(Step(contended, true).may_be_moved);
  unknown_ = true;
  EXPECT_FALSE(Step(contended, true).may_be_moved);
  unknown_ = false;
  closely_ = true;
  EXPECT_FALSE(Step(contended, true).may_be_moved);
  closely_ = false;
  EXPECT_FALSE(Step(Word(2, 0), true).may_be_moved) << "others wait for the end of these";
  EXPECT_FALSE(Step(Word(3, protocol::kLeaseOpen), true).may_be_moved) << "seldom as it is";
}

// That look finds launches that it has not seen, and all of them done: it says so at once, for they
// should have been done since.
TEST_F(LeaseWatchTest, WhatWasLaunchedAndDoneBetweenTwoLooksIsKnownByItsExpectedEnd) {
  const uint32_t contended = Word(1, protocol::kLeaseOpen | protocol::kLeaseContended);
  Step(contended);
  launches_ += 20;
  end_ns_ = now_ns_ + 9 * kMs;
  now_ns_ = end_ns_ + 200 * kUs;
  EXPECT_TRUE(Step(contended).idle);
  launches_ += 20;
  end_ns_ = now_ns_ + 9 * kMs;
  now_ns_ = end_ns_ + 100 * kUs;
  const LeaseWatch::Act act = Step(contended);
  EXPECT_FALSE(act.idle);
  EXPECT_EQ(act.look_again_ns, 100 * kUs);
}

// A batch that no fence is behind ends by when it was begun and what it takes, if nothing was added
// to it for as long as idleness is looked for.
TEST_F(LeaseWatchTest, AnOpenBatchEndsByWhenItBegan) {
  const uint32_t contended = Word(1, protocol::kLeaseOpen | protocol::kLeaseContended);
  Step(contended);
  launches_ += 3;
  unfenced_launches_ = 3;
  unfenced_began_ns_ = now_ns_ + 10 * kUs;
  end_ns_ = 0;
  now_ns_ += 100 * kUs;
  LeaseWatch::Act act = Step(contended, false, 300 * kUs);
  EXPECT_FALSE(act.idle);
  EXPECT_EQ(act.look_again_ns, 10 * kUs + 300 * kUs + 200 * kUs - 100 * kUs);
  ++launches_;  // it launches on
  now_ns_ += act.look_again_ns;
  act = Step(contended, false, 400 * kUs);
  EXPECT_FALSE(act.idle);
  EXPECT_EQ(act.look_again_ns, 200 * kUs);
  now_ns_ += act.look_again_ns;
  EXPECT_TRUE(Step(contended, false, 400 * kUs).idle);
}

TEST_F(LeaseWatchTest, AnOpenBatchHasDrainedByWhenItBeganAndItsLastLaunchMayTake) {
  Step(Word(1, protocol::kLeaseOpen), false);
  launches_ += 4;
  unfenced_launches_ = 4;
  unfenced_began_ns_ = now_ns_;
  end_ns_ = 0;
  now_ns_ += 350 * kUs;
  EXPECT_FALSE(Step(Word(2, 0), false, 400 * kUs).drained);
  now_ns_ += 60 * kUs;
  EXPECT_FALSE(Step(Word(2, 0), false, 400 * kUs).drained) << "a launch may have come at the end";
  now_ns_ += 40 * kUs;
  EXPECT_TRUE(Step(Word(2, 0), false, 400 * kUs).drained);
}

// Who waits for a fence launches when it is done: the program will not be idle before. But how long
// that is must be known.
TEST_F(LeaseWatchTest, WhileAThreadWaitsAtTheBoundLooksAreFew) {
  const uint32_t contended = Word(1, protocol::kLeaseOpen | protocol::kLeaseContended);
  backlog_ns_ = 1'800 * kUs;
  EXPECT_EQ(Step(contended, true).look_again_ns, LeaseWatch::kWhileBusyNs);
  at_bound_ = true;
  EXPECT_EQ(Step(contended, true).look_again_ns, 2'000 * kUs);
  backlog_ns_ = 1;
  EXPECT_EQ(Step(contended, true).look_again_ns, LeaseWatch::kWhileBusyNs + 1)
      << "it is later than expected";
  backlog_ns_ = 1'800 * kUs;
  closely_ = true;
  EXPECT_EQ(Step(contended, true).look_again_ns, LeaseWatch::kWhileBusyNs);
  closely_ = false;
  unknown_ = true;
  EXPECT_EQ(Step(contended, true).look_again_ns, 2 * LeaseWatch::kOftenNs);
  EXPECT_EQ(Step(Word(2, 0), true).look_again_ns, LeaseWatch::kOftenNs);
}

// Seen in the simulation: looks half an idle report apart, each up to a time-out's slack late, let
// a device stand still for more than a millisecond after its holder's last kernel.
TEST_F(LeaseWatchTest, IdlenessIsLookedForWhenItIsDue) {
  const uint32_t contended = Word(1, protocol::kLeaseOpen | protocol::kLeaseContended);
  ++launches_;
  EXPECT_EQ(Step(contended, false, 250 * kUs).look_again_ns, 450 * kUs);
  now_ns_ += 430 * kUs;
  EXPECT_EQ(Step(contended, false, 250 * kUs).look_again_ns, 20 * kUs);
  now_ns_ += 20 * kUs;
  EXPECT_TRUE(Step(contended, false, 250 * kUs).idle);
  // Nor is what is launched meanwhile reported too late.
  ++launches_;
  EXPECT_EQ(Step(contended, false, 900 * kUs).look_again_ns, LeaseWatch::kWhileBusyNs);
}

// Who waits for the lease to open again must not keep it from being drained.
TEST_F(LeaseWatchTest, AWaitingThreadDoesNotHoldUpTheDraining) {
  Step(Word(1, protocol::kLeaseOpen));
  ++launches_;
  waiting_ = true;
  EXPECT_FALSE(Step(Word(2, 0), false, 300 * kUs).drained);
  now_ns_ += 300 * kUs;
  EXPECT_TRUE(Step(Word(2, 0), false, 300 * kUs).drained);
}

// Seen on the simulated GPU: "idle" was said 40 us after the lease had opened, while the thread
// that had waited for it was still waking; the next share was let in, and two ran at once.
TEST_F(LeaseWatchTest, AWakingThreadIsNotIdle) {
  const uint32_t open = Word(3, protocol::kLeaseOpen | protocol::kLeaseContended);
  Step(Word(2, 0));
  now_ns_ += 100 * kMs;
  waiting_ = true;
  EXPECT_FALSE(Step(open).idle) << "no work for 100 ms, but the lease was closed";
  now_ns_ += kMs;
  EXPECT_FALSE(Step(open).idle) << "it has not woken yet";
  waiting_ = false;
  now_ns_ += 150 * kUs;
  EXPECT_FALSE(Step(open).idle) << "it has only just woken";
  now_ns_ += 50 * kUs;
  EXPECT_TRUE(Step(open).idle);
}

TEST_F(LeaseWatchTest, ARunningKernelIsNotIdle) {
  const uint32_t contended = Word(2, protocol::kLeaseOpen | protocol::kLeaseContended);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(Step(contended, true).idle);
    now_ns_ += 150 * kUs;
  }
  EXPECT_FALSE(Step(contended).idle) << "it ended since the last look, 150 us ago at most";
  now_ns_ += 50 * kUs;
  EXPECT_TRUE(Step(contended).idle);
}

// It has no work on the device for the moment it takes to wake up.
TEST_F(LeaseWatchTest, WhoWaitsForAFenceIsAboutToLaunch) {
  const uint32_t contended = Word(2, protocol::kLeaseOpen | protocol::kLeaseContended);
  at_bound_ = true;
  Step(contended, true);
  now_ns_ += 10 * kMs;
  Step(contended);
  now_ns_ += 10 * kMs;
  EXPECT_FALSE(Step(contended).idle);
  at_bound_ = false;
  EXPECT_FALSE(Step(contended).idle) << "the time begins when it has woken";
  now_ns_ += 200 * kUs;
  EXPECT_TRUE(Step(contended).idle);
}

TEST_F(LeaseWatchTest, WhereKernelsWaitForPeersAWaitForAFenceKeepsNobody) {
  const uint32_t contended = Word(2, protocol::kLeaseOpen | protocol::kLeaseContended);
  at_bound_ = closely_ = true;
  Step(contended, true);
  now_ns_ += 10 * kMs;
  Step(contended);
  now_ns_ += 10 * kMs;
  EXPECT_TRUE(Step(contended).idle);
}

// From then on there is nothing to see before the lease opens, and who waits for that knows.
TEST_F(LeaseWatchTest, AfterDrainingTheLookMayBeMovedAndComesInTimeForASilence) {
  Step(Word(1, protocol::kLeaseOpen | protocol::kLeaseContended), true);
  now_ns_ += kMs;
  EXPECT_FALSE(Step(Word(2, 0), true).may_be_moved) << "it ends when it ends";
  now_ns_ += kMs;
  const LeaseWatch::Act act = Step(Word(2, 0));
  EXPECT_TRUE(act.drained);
  EXPECT_TRUE(act.may_be_moved);
  EXPECT_EQ(act.move_within_ns, LeaseWatch::kSeldomNs);
  closely_ = true;
  EXPECT_FALSE(Step(Word(2, 0)).may_be_moved) << "these must be told of each change";
}

// That it has drained is written down and waited for by nobody: one look, as it should be done.
TEST_F(LeaseWatchTest, ADrainThatNobodyAwaitsIsLookedAtOnce) {
  backlog_ns_ = 800 * kUs;
  EXPECT_EQ(Step(Word(2, 0), true).look_again_ns, 600 * kUs);
  unawaited_ = true;
  EXPECT_EQ(Step(Word(2, 0), true).look_again_ns, 850 * kUs);
  backlog_ns_ = 1;
  EXPECT_EQ(Step(Word(2, 0), true).look_again_ns, 300 * kUs) << "later than expected";
}

// A look that comes late finds it drained; when that was is known by when it was expected.
TEST_F(LeaseWatchTest, WhenItHadDrainedIsToldAsFarAsItIsKnown) {
  Step(Word(1, protocol::kLeaseOpen | protocol::kLeaseContended), true);
  end_ns_ = now_ns_ + kMs;
  now_ns_ += 3 * kMs;
  LeaseWatch::Act act = Step(Word(2, 0));
  EXPECT_TRUE(act.drained);
  EXPECT_EQ(act.done_ns, end_ns_);
  Step(Word(3, protocol::kLeaseOpen | protocol::kLeaseContended), true);
  end_ns_ = now_ns_ - kMs;
  now_ns_ += kMs;
  Step(Word(4, 0), true);
  now_ns_ += kMs;
  act = Step(Word(4, 0));
  EXPECT_TRUE(act.drained);
  EXPECT_EQ(act.done_ns, now_ns_) << "it was not done when it should have been";
}

}  // namespace
}  // namespace prorata::client
