#include "client/platform/os.h"
#include "base/units.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <thread>

namespace prorata::client {
namespace {

int64_t RealNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// What is written once for a process is put back: other tests may share it.
class GuestTest : public ::testing::Test {
 protected:
  ~GuestTest() override { SetDilation(1); }
  std::atomic<uint32_t> never_{0};
};

TEST_F(GuestTest, TimeIsRealUnlessSlowedDown) {
  for (const uint32_t real : {0u, 1u}) {
    SetDilation(real);
    const int64_t before = RealNs();
    const int64_t now = NowNs();
    EXPECT_LE(before, now);
    EXPECT_LE(now, RealNs());
  }
}

// Who is cancelled at the gate is counted there; it ends when it is back in the program.
TEST_F(GuestTest, AThreadIsNotCancelledWhileItWaits) {
  std::atomic<bool> waited{false};
  std::thread thread([&] {
    pthread_cancel(pthread_self());
    FutexWait(&never_, 0, kMs);
    AwaitReadable(-1, kMs);
    waited.store(true);
    pthread_testcancel();
  });
  thread.join();
  EXPECT_TRUE(waited.load());
}

TEST_F(GuestTest, ClockAndWaitsAreSlowedDownTogether) {
  SetDilation(20);
  const int64_t real_before = RealNs();
  const int64_t before = NowNs();
  FutexWait(&never_, 0, 3 * kMs);
  EXPECT_FALSE(AwaitReadable(-1, 2 * kMs));
  // No upper bound: a loaded machine may be as late as it likes.
  EXPECT_GE(NowNs() - before, 5 * kMs - 1);
  EXPECT_GE(RealNs() - real_before, 100 * kMs);
}

TEST_F(GuestTest, AWaitWhoseWordHasChangedEndsAtOnce) {
  SetDilation(10'000);
  const int64_t before = NowNs();
  FutexWait(&never_, 1, 3'600 * int64_t{1'000'000'000});
  EXPECT_LT(NowNs() - before, 3'600 * int64_t{1'000'000'000});
}

}  // namespace
}  // namespace prorata::client
