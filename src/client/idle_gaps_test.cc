// Whether a program's pauses are long as a rule.

#include "client/idle_gaps.h"

#include <gtest/gtest.h>

namespace prorata::client {
namespace {

constexpr int64_t kUs = 1'000, kMs = 1'000'000;

class IdleGapsTest : public testing::Test {
 protected:
  void Pause(int64_t gap_ns, int times = 1) {
    for (int i = 0; i < times; ++i) {
      gaps_.Launches(now_ns_, now_ns_ + gap_ns);
      now_ns_ += gap_ns + kMs;
    }
  }
  IdleGaps gaps_;
  int64_t now_ns_ = 1'000 * kMs;
};

TEST_F(IdleGapsTest, LongPausesAreExpectedAfterSome) {
  Pause(4 * kMs, 7);
  EXPECT_FALSE(gaps_.AreLong());
  Pause(4 * kMs);
  EXPECT_TRUE(gaps_.AreLong());
}

TEST_F(IdleGapsTest, AFewThatWereShortEndThat) {
  Pause(4 * kMs, 100);
  Pause(150 * kUs, 2);
  EXPECT_TRUE(gaps_.AreLong()) << "now and then does not count";
  Pause(150 * kUs);
  EXPECT_FALSE(gaps_.AreLong());
  Pause(150 * kUs, 100);
  Pause(4 * kMs, 7);
  EXPECT_FALSE(gaps_.AreLong());
  Pause(4 * kMs);
  EXPECT_TRUE(gaps_.AreLong()) << "and it is no worse than new";
}

TEST_F(IdleGapsTest, PausesThatAreOverBeforeTheyAreToldOfSayNothing) {
  Pause(4 * kMs, 8);
  Pause(50 * kUs, 1'000);
  EXPECT_TRUE(gaps_.AreLong());
  Pause(-10 * kUs, 1'000);  // work ended earlier than expected
  EXPECT_TRUE(gaps_.AreLong());
}

// Others have the device in between: that is no pause of this program's.
TEST_F(IdleGapsTest, WaitingForTheLeaseIsNone) {
  for (int i = 0; i < 100; ++i) {
    gaps_.Waits(now_ns_, now_ns_ + 20 * kUs);
    now_ns_ += 13 * kMs;
    gaps_.Launches(now_ns_ - 13 * kMs, now_ns_);
  }
  EXPECT_FALSE(gaps_.AreLong());
}

TEST_F(IdleGapsTest, APauseThatAWaitEndsIsCountedOnce) {
  for (int i = 0; i < 4; ++i) {
    gaps_.Waits(now_ns_, now_ns_ + 4 * kMs);
    gaps_.Waits(now_ns_, now_ns_ + 5 * kMs);  // another thread
    gaps_.Launches(now_ns_, now_ns_ + 20 * kMs);
    now_ns_ += 30 * kMs;
  }
  EXPECT_FALSE(gaps_.AreLong());
  for (int i = 0; i < 4; ++i) {
    gaps_.Waits(now_ns_, now_ns_ + 4 * kMs);
    gaps_.Launches(now_ns_, now_ns_ + 20 * kMs);
    now_ns_ += 30 * kMs;
  }
  EXPECT_TRUE(gaps_.AreLong());
}

}  // namespace
}  // namespace prorata::client
