// Short pauses of a share, and who may use them.

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

class PausesTest : public TimeSharingTest {};

TEST_F(PausesTest, AShareWithLongKernelsInDebtDoesNotUseAShortPause) {
  TwoBusy(0.1, 0.9);
  int64_t now_ns = LongKernelsOfTheFirst();
  policy_.Idle(2, now_ns += kMs);
  Backlog(2, 0, LeasePolicy::kNever);
  Decide(now_ns);
  EXPECT_EQ(In(1), Phase::kRunnable) << "the other may be back in a moment";
  Decide(now_ns += 300 * kMs);
  EXPECT_EQ(In(1), Phase::kRunning) << "but the device is not kept for who does not need it";
}

// One with a limit loses its lease as soon as it is idle.
TEST_F(PausesTest, NorAPauseOfAShareWithALimit) {
  TwoBusy(0.1, 0.9);
  int64_t now_ns = LongKernelsOfTheFirst();
  policy_.SetTerms(2, Terms(0.9, 0.95), now_ns);
  policy_.Idle(2, now_ns += kMs);
  Backlog(2, 0, LeasePolicy::kNever);
  Decide(now_ns);
  ASSERT_EQ(In(2), Phase::kDraining);
  EXPECT_EQ(In(1), Phase::kRunnable);
  Drains(2, now_ns += 20 * kUs);
  EXPECT_EQ(In(1), Phase::kRunnable);
  Decide(now_ns += 300 * kMs);
  EXPECT_EQ(In(1), Phase::kRunning);
}

// It had used what the other left, which is a debt, and the other pauses after each of its kernels:
// it would not run again until all of that is paid, though the device idles.
TEST_F(PausesTest, WhoHasWaitedForItsPartUsesAShortPauseWhateverItOwes) {
  TwoBusy(0.1, 0.9);
  int64_t now_ns = LongKernelsOfTheFirst();
  int64_t asked_ns = 0;
  for (int i = 0; i < 4; ++i) {
    policy_.Idle(2, now_ns);
    Backlog(2, 0, LeasePolicy::kNever);
    Decide(now_ns += 300 * kMs);
    ASSERT_EQ(In(1), Phase::kRunning);
    Drains(2, now_ns);
    Wants(2, now_ns);
    asked_ns = now_ns + kSliceNs;  // while its kernels ran
    now_ns = LongKernelsOfTheFirst(now_ns);
  }
  while (In(1) == Phase::kRunnable && now_ns < asked_ns + 60 * kS) {
    Backlog(2, kMs, now_ns + kMs);
    Decide(now_ns += 10 * kMs);
    policy_.Idle(2, now_ns);
    Backlog(2, 0, LeasePolicy::kNever);
    Decide(now_ns);
    Decide(now_ns += kMs);
  }
  EXPECT_LT(LagMs(1), -500) << "it still owes";
  EXPECT_NEAR(static_cast<double>(now_ns - asked_ns) / kS, 2 / 0.1, 0.2) << "they took 2 s";
}

// What it has stands behind a wait: it wants nothing of the device meanwhile.
TEST_F(PausesTest, NorOneInWhichTheOthersWorkStandsBehindAWait) {
  TwoBusy(0.1, 0.9);
  int64_t now_ns = LongKernelsOfTheFirst();
  // Another uses that, and ends.
  Add(3, Terms(0.05), now_ns);
  Backlog(2, 1, LeasePolicy::kNever, /*blocked=*/true);
  Wants(3, now_ns += kMs);
  ASSERT_EQ(In(3), Phase::kRunning);
  Decide(now_ns);
  ASSERT_EQ(In(2), Phase::kStalled);
  policy_.Remove(3, now_ns += kMs);
  Decide(now_ns);
  EXPECT_EQ(In(1), Phase::kRunnable) << "that may be released in a moment";
  Decide(now_ns += 300 * kMs);
  EXPECT_EQ(In(1), Phase::kRunning);
}

// It had the device for as long afterwards.
TEST_F(PausesTest, WhoseWorkStandsBehindAWaitSavesNothingUp) {
  TwoBusy();
  Backlog(1, kMs, LeasePolicy::kNever, /*blocked=*/true);
  Decide(kMs);
  ASSERT_EQ(In(2), Phase::kRunning);
  int64_t now_ns = kMs;
  while (now_ns < 2 * kS) {
    Measures(2, now_ns += kMs);
    Decide(now_ns);
  }
  EXPECT_EQ(In(1), Phase::kStalled);
  EXPECT_NEAR(LagMs(1), 0, 1);
}

// Another thread of it waits at the gate.
TEST_F(PausesTest, UnlessItWouldRunBesideThat) {
  TwoBusy();
  Backlog(1, kMs, LeasePolicy::kNever, /*blocked=*/true);
  Decide(kMs);
  ASSERT_EQ(In(2), Phase::kRunning);
  Backlog(2, kMs, kSliceNs);
  Wants(1, 2 * kMs);
  Decide(kSliceNs);
  EXPECT_GT(LagMs(1), 3);
}

}  // namespace
}  // namespace prorata::policy
