// The helper's sleep, on real clocks: it is never too short, and no upper bound is asked for but a
// minute, for a loaded machine may be late. That a look was put off shows in what came first.

#include "client/look_timer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

namespace prorata::client {
namespace {

constexpr int64_t kMs = 1'000'000, kS = 1'000'000'000;
constexpr int64_t kThroughNs = 60 * kS;

class LookTimerTest : public testing::Test {
 protected:
  LookTimerTest() { EXPECT_EQ(pipe(pipe_), 0); }
  ~LookTimerTest() override {
    timer_.Forget();
    close(pipe_[0]);
    close(pipe_[1]);
  }
  void Write() { EXPECT_EQ(write(pipe_[1], "x", 1), 1); }
  // A look that is slept through is told of, instead of waiting for an hour.
  bool Await(int64_t timeout_ns = kThroughNs) {
    const int64_t began_ns = NowNs();
    const bool readable = timer_.Await(pipe_[0], timeout_ns);
    EXPECT_LT(NowNs() - began_ns, kThroughNs) << "it slept through its looks";
    return readable;
  }

  DeviceCompute devices_[3] = {};
  LookTimer timer_{devices_};
  int pipe_[2] = {-1, -1};
};

TEST_F(LookTimerTest, SleepsUntilTheFirstOfTheLooks) {
  timer_.Open(2);
  const int64_t now_ns = NowNs();
  timer_.Plan(0, now_ns + 3'600 * kS, 0);
  timer_.Plan(1, now_ns + 5 * kMs, 0);
  EXPECT_FALSE(Await()) << "device 2 is none of this member's";
  EXPECT_GE(NowNs(), now_ns + 5 * kMs);
  EXPECT_FALSE(Await()) << "a look that is overdue is due at once";
  timer_.Plan(0, NowNs() + 5 * kMs, 0);
  timer_.Plan(1, NowNs() + 3'600 * kS, 0);
  EXPECT_FALSE(Await()) << "whichever device it is at";
}

TEST_F(LookTimerTest, WhatThereIsToReadEndsTheSleep) {
  timer_.Open(1);
  timer_.Plan(0, NowNs() + 3'600 * kS, 0);
  std::thread other([this] { Write(); });
  EXPECT_TRUE(Await());
  other.join();
}

TEST_F(LookTimerTest, TheTimeOutEndsTheSleep) {
  timer_.Open(1);
  timer_.Plan(0, NowNs() + 3'600 * kS, 0);
  EXPECT_FALSE(Await(kMs));
}

// The sleeper's deadline is moved from a tenth of a second to an hour, and what is written
// after the tenth is over is what it wakes for.
TEST_F(LookTimerTest, ALookIsPutOffWhileItIsSleptFor) {
  timer_.Open(2);
  for (bool in_time = false; !in_time;) {  // a machine that is busy may be later than the look
    const int64_t now_ns = NowNs();
    timer_.Plan(0, now_ns + 100 * kMs, now_ns + 7'200 * kS);
    timer_.Plan(1, now_ns + 3'600 * kS, 0);
    std::thread other([&] {
      timer_.Move(0, now_ns + 3'600 * kS);
      in_time = NowNs() < now_ns + 100 * kMs;
      while (NowNs() < now_ns + 120 * kMs) usleep(10'000);
      Write();
    });
    const bool readable = Await();
    other.join();
    EXPECT_TRUE(readable || !in_time);
    char byte;
    ASSERT_EQ(read(pipe_[0], &byte, 1), 1);
  }
}

// A lease was closed, say: what a launch knew before does not put off the look that this asks for.
TEST_F(LookTimerTest, ALookThatMayNotBePutOffIsNot) {
  timer_.Open(1);
  const int64_t now_ns = NowNs();
  timer_.Plan(0, now_ns + kMs, 0);
  timer_.Move(0, now_ns + 3'600 * kS);
  EXPECT_FALSE(Await());
}

TEST_F(LookTimerTest, OneThatIsPutOffDoesNotPutOffTheOthers) {
  timer_.Open(2);
  const int64_t now_ns = NowNs();
  timer_.Plan(0, now_ns + 20 * kMs, now_ns + 7'200 * kS);
  timer_.Plan(1, now_ns + 40 * kMs, now_ns + 7'200 * kS);
  timer_.Move(0, now_ns + 3'600 * kS);
  EXPECT_FALSE(Await());
  EXPECT_GE(NowNs(), now_ns + 40 * kMs);
}

TEST_F(LookTimerTest, WithoutADescriptorLooksAreAsPlanned) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  timer_.Open(1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const int64_t now_ns = NowNs();
  timer_.Plan(0, now_ns + 5 * kMs, now_ns + 7'200 * kS);
  timer_.Move(0, now_ns + 3'600 * kS);
  EXPECT_FALSE(Await());
  EXPECT_GE(NowNs(), now_ns + 5 * kMs);
  timer_.Plan(0, now_ns + 3'600 * kS, 0);
  std::thread other([this] { Write(); });
  EXPECT_TRUE(Await());
  other.join();
}

// Threads that launch and a helper that plans, at once: no look is lost.
TEST_F(LookTimerTest, PuttingOffAndPlanningAtOnce) {
  timer_.Open(1);
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) timer_.Move(0, NowNs() + kMs / 4);
  });
  for (int i = 0; i < 100; ++i) {
    const int64_t now_ns = NowNs();
    timer_.Plan(0, now_ns + kMs / 10, i % 2 == 0 ? 0 : now_ns + kMs);
    if (i % 2 == 1) {
      EXPECT_FALSE(Await(10 * kMs));
      continue;
    }
    EXPECT_FALSE(Await());
    EXPECT_GE(NowNs(), now_ns + kMs / 10);
  }
  done = true;
  other.join();
}

TEST_F(LookTimerTest, ALookIsBroughtNearerWhileItIsSleptFor) {
  timer_.Open(1);
  EXPECT_TRUE(timer_.Plan(0, NowNs() + 3'600 * kS, NowNs() + 3'600 * kS));
  int64_t at_ns = 0;
  std::thread other([&] {
    at_ns = NowNs() + 5 * kMs;
    timer_.Move(0, at_ns);
  });
  EXPECT_FALSE(Await());
  other.join();
  EXPECT_GE(NowNs(), at_ns);
}

TEST_F(LookTimerTest, WhetherALookCanBeMoved) {
  EXPECT_FALSE(timer_.Plan(0, NowNs(), NowNs() + kS)) << "there is no timer yet";
  timer_.Open(1);
  EXPECT_TRUE(timer_.Plan(0, NowNs(), NowNs() + kS));
  EXPECT_FALSE(timer_.Plan(0, NowNs(), 0));
}

}  // namespace
}  // namespace prorata::client
