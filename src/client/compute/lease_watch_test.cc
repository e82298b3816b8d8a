// When the helper reports, and when it polls again.

#include "client/compute/lease_watch.h"
#include "base/units.h"

#include <gtest/gtest.h>

namespace prorata::client {
namespace {

constexpr uint32_t kOpen = shm::kLeaseOpen;
constexpr uint32_t kContended = shm::kLeaseOpen | shm::kLeaseContended;
constexpr uint32_t Word(uint32_t sequence, uint32_t bits) {
  return sequence << shm::kLeaseSequenceShift | bits;
}

class LeaseWatchTest : public testing::Test {
 protected:
  LeaseWatch::Act At(int64_t now_ns) {
    seen_.now_ns = now_ns;
    return watch_.Step(seen_);
  }
  LeaseWatch watch_;
  LeaseWatch::Seen seen_ = {.lease = Word(1, kOpen), .idle_report_ns = 200 * kUs};
};

TEST_F(LeaseWatchTest, AClosedLeaseIsDrainedOnceWhenTheMemberIsIdle) {
  At(1 * kS);
  seen_.lease = Word(2, 0);
  seen_.busy = true;
  EXPECT_FALSE(At(1 * kS + kMs).drained);
  seen_.busy = false;
  const LeaseWatch::Act act = At(1 * kS + 2 * kMs);
  EXPECT_TRUE(act.drained);
  EXPECT_EQ(act.sequence, 2u);
  EXPECT_FALSE(At(1 * kS + 3 * kMs).drained);
  seen_.lease = Word(4, 0);  // it opened and closed between two polls
  EXPECT_TRUE(At(1 * kS + 4 * kMs).drained);
}

TEST_F(LeaseWatchTest, IdlenessCountsFromTheLastWorkAndIsReportedOnceUntilWorkComes) {
  seen_.lease = Word(3, kContended);
  At(1 * kS);
  seen_.batches = 1;
  seen_.last_work_ns = 1 * kS + 100 * kUs;
  LeaseWatch::Act act = At(1 * kS + 250 * kUs);
  EXPECT_FALSE(act.idle);
  EXPECT_EQ(act.poll_again_ns, 50 * kUs) << "when it is due";
  EXPECT_TRUE(At(1 * kS + 300 * kUs).idle);
  EXPECT_TRUE(watch_.quiet());
  EXPECT_FALSE(At(1 * kS + kMs).idle);
  seen_.batches = 2;  // launched and done between two polls
  seen_.last_work_ns = 1 * kS + 3 * kMs;
  EXPECT_FALSE(At(1 * kS + 3 * kMs).idle);
  EXPECT_TRUE(At(1 * kS + 4 * kMs).idle);
}

// Until it is known the share is charged for a device that it does not use.
TEST_F(LeaseWatchTest, ThatAllButWhatWaitsHasDrainedIsReportedOnceWhenItHasLasted) {
  seen_.lease = Word(2, 0);
  seen_.busy = true;
  EXPECT_FALSE(At(1 * kS).poll);
  seen_.blocked = true;
  LeaseWatch::Act act = At(1 * kS + 500 * kUs);
  EXPECT_FALSE(act.poll) << "most waits are short";
  EXPECT_TRUE(act.blocked);
  act = At(1 * kS + kMs);
  EXPECT_TRUE(act.poll);
  EXPECT_TRUE(act.blocked);
  EXPECT_FALSE(act.drained);
  EXPECT_EQ(act.poll_again_ns, LeaseWatch::kBlockedNs);
  EXPECT_FALSE(At(1 * kS + 2 * kMs).poll);
}

TEST_F(LeaseWatchTest, WorkThatIsReleasedOutsideItsLeaseIsReportedOnce) {
  seen_.lease = Word(2, 0);
  seen_.busy = seen_.blocked = true;
  At(1 * kS);
  seen_.blocked = false;
  const LeaseWatch::Act act = At(1 * kS + 500 * kUs);
  EXPECT_TRUE(act.poll);
  EXPECT_FALSE(act.drained);
  EXPECT_FALSE(At(1 * kS + kMs).poll);
  seen_.lease = Word(3, kOpen);
  seen_.blocked = true;
  At(1 * kS + 2 * kMs);
  seen_.blocked = false;
  EXPECT_FALSE(At(1 * kS + 3 * kMs).poll) << "the lease lets it run";
}

// A host function runs, say: others may have the device. But not in each pause of a program that
// keeps something behind a wait and works on.
TEST_F(LeaseWatchTest, WorkBehindAWaitIsReportedOnceWhenItHasLasted) {
  seen_.lease = Word(2, kOpen | kContended);
  seen_.busy = seen_.blocked = true;
  seen_.last_work_ns = 1 * kS;
  LeaseWatch::Act act = At(1 * kS + 100 * kUs);
  EXPECT_FALSE(act.poll);
  EXPECT_FALSE(act.blocked);
  act = At(1 * kS + 300 * kUs);
  EXPECT_TRUE(act.poll);
  EXPECT_TRUE(act.blocked);
  EXPECT_FALSE(At(1 * kS + kMs).poll) << "once";
  seen_.last_work_ns = 1 * kS + kMs;
  EXPECT_FALSE(At(1 * kS + kMs + 100 * kUs).blocked) << "it works on";
}

TEST_F(LeaseWatchTest, NothingIsReportedWhileNobodyWaits) {
  At(1 * kS);
  const LeaseWatch::Act act = At(2 * kS);
  EXPECT_FALSE(act.idle || act.drained);
  EXPECT_EQ(act.poll_again_ns, LeaseWatch::kIdlePollNs);
}

TEST_F(LeaseWatchTest, WhoWasJustLetInIsNotIdle) {
  seen_.lease = Word(2, 0);
  At(1 * kS);
  seen_.lease = Word(3, kContended);
  EXPECT_FALSE(At(2 * kS).idle) << "its thread needs a moment to wake";
  seen_.about_to = true;
  EXPECT_FALSE(At(2 * kS + 300 * kUs).idle);
  seen_.about_to = false;
  EXPECT_FALSE(At(2 * kS + 400 * kUs).idle);
  EXPECT_TRUE(At(2 * kS + 500 * kUs).idle);
}

TEST_F(LeaseWatchTest, ARunningKernelIsNotIdleHoweverLong) {
  seen_.lease = Word(3, kContended);
  seen_.busy = true;
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(At(1 * kS + i * kMs).idle);
}

TEST_F(LeaseWatchTest, AWaitingThreadDoesNotHoldUpTheDraining) {
  seen_.lease = Word(2, 0);
  seen_.about_to = true;
  EXPECT_TRUE(At(1 * kS).drained);
}

TEST_F(LeaseWatchTest, LooksComeWhenTheWorkShouldBeDone) {
  seen_.lease = Word(2, 0);
  seen_.busy = true;
  seen_.end_ns = 1 * kS + 700 * kUs;
  EXPECT_EQ(At(1 * kS).poll_again_ns, 700 * kUs);
  EXPECT_EQ(At(1 * kS + 690 * kUs).poll_again_ns, LeaseWatch::kMinNs);
  EXPECT_EQ(At(1 * kS + 700 * kUs).poll_again_ns, LeaseWatch::kOverdueNs);
  EXPECT_EQ(At(1 * kS + 20 * kMs).poll_again_ns, LeaseWatch::kMaxOverdueNs);
  seen_.lease = Word(3, kContended);
  seen_.end_ns = 2 * kS + 700 * kUs;
  EXPECT_EQ(At(2 * kS).poll_again_ns, 900 * kUs) << "and had time to launch more";
  seen_.open = true;
  seen_.end_ns = 2 * kS - 1;
  EXPECT_EQ(At(2 * kS).poll_again_ns, LeaseWatch::kOverdueNs) << "to fence it";
}

TEST_F(LeaseWatchTest, AMemberThatStaysAtItsBoundIsPolledLater) {
  seen_.lease = Word(3, kContended);
  seen_.busy = true;
  seen_.end_ns = 1 * kS + kMs;
  seen_.about_to = seen_.at_bound = true;
  EXPECT_LT(At(1 * kS).poll_again_ns, 2 * kMs) << "a burst may end there";
  EXPECT_EQ(At(1 * kS).poll_again_ns, LeaseWatch::kBusyNs);
  seen_.at_bound = false;
  EXPECT_LT(At(1 * kS).poll_again_ns, 2 * kMs);
}

TEST_F(LeaseWatchTest, APersistentKernelIsNotLookedAtAllTheTime) {
  seen_.busy = seen_.persistent = true;
  for (const uint32_t bits : {0u, kContended}) {
    seen_.lease = Word(5 + bits, bits);
    EXPECT_EQ(At(1 * kS).poll_again_ns, LeaseWatch::kSometimesNs);
  }
}

TEST_F(LeaseWatchTest, InFailsafeModeWorkIsLookedAtEveryMillisecond) {
  seen_.busy = seen_.failsafe = true;
  EXPECT_LE(At(1 * kS).poll_again_ns, kMs);
}

}  // namespace
}  // namespace prorata::client
