// A deadline on the loop, on real clocks: never too early, and no upper bound is asked for.

#include "agent/runtime/deadline.h"
#include "base/units.h"

#include <gtest/gtest.h>

#include <chrono>

namespace prorata::agent {
namespace {

constexpr int64_t kHour = 3'600'000'000'000;

class DeadlineTest : public ::testing::Test {
 protected:
  static int64_t NowNs() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  // Runs the loop until something was done so often, for ten seconds at most.
  void Await(int times) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (times_ < times && loop_.run_one_until(end) != 0) {
    }
    EXPECT_EQ(times_, times);
  }

  boost::asio::io_context loop_;
  int times_ = 0;
  std::function<void()> then_ = [] {};
  Deadline deadline_{loop_, [this] { ++times_, then_(); }};
};

TEST_F(DeadlineTest, ComesOnceAndNotTooEarly) {
  const int64_t began_ns = NowNs();
  deadline_.In(20 * kMs);
  Await(1);
  EXPECT_GE(NowNs(), began_ns + 20 * kMs);
  EXPECT_EQ(loop_.poll(), 0u);
  EXPECT_EQ(times_, 1);
}

TEST_F(DeadlineTest, MovedItComesWhenItWasMovedTo) {
  deadline_.In(kHour);
  deadline_.In(kMs);
  Await(1);
  const int64_t began_ns = NowNs();
  deadline_.In(1);
  deadline_.In(20 * kMs);
  Await(2);
  EXPECT_GE(NowNs(), began_ns + 20 * kMs);
}

// It has gone off, and the loop has not run yet.
TEST_F(DeadlineTest, MovedOrGivenUpAfterItHasGoneOffItDoesNotCome) {
  Deadline other(loop_, [this] { ++times_; });
  deadline_.In(1);
  const int64_t began_ns = NowNs();
  other.In(5 * kMs);
  while (NowNs() < began_ns + 2 * kMs) {
  }
  deadline_.Never();
  Await(1);
  EXPECT_GE(NowNs(), began_ns + 5 * kMs) << "the other one's";
  deadline_.In(-kHour);
  Await(2);
}

// Both have gone off when the loop looks: what is done for one of them moves the other.
TEST_F(DeadlineTest, MovedWhileItIsAboutToComeItDoesNot) {
  Deadline other(loop_, [this] { ++times_, deadline_.In(kHour); });
  then_ = [&] { other.In(kHour); };
  deadline_.In(1);
  other.In(1);
  const int64_t began_ns = NowNs();
  while (NowNs() < began_ns + 2 * kMs) {
  }
  Await(1);
  loop_.poll();
  EXPECT_EQ(times_, 1);
}

TEST_F(DeadlineTest, MayBeMovedByWhatItDoes) {
  then_ = [this] {
    if (times_ < 5) deadline_.In(kMs);
  };
  deadline_.In(kMs);
  Await(5);
  EXPECT_EQ(loop_.poll(), 0u);
}

}  // namespace
}  // namespace prorata::agent
