#include "kubernetes/api/repeated.h"

#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>

namespace prorata::kubernetes {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST(Repeated, IsDoneWhenItIsAskedFor) {
  std::counting_semaphore<> done(0);
  Repeated repeated(hours(1), milliseconds(0), [&] { done.release(); });
  EXPECT_FALSE(done.try_acquire_for(milliseconds(20))) << "nobody asked yet";
  for (int i = 0; i < 3; ++i) {
    repeated.Soon();
    done.acquire();
  }
}

TEST(Repeated, IsDoneNowAndThen) {
  std::counting_semaphore<> done(0);
  const Repeated repeated(milliseconds(1), milliseconds(0), [&] { done.release(); });
  for (int i = 0; i < 3; ++i) done.acquire();
}

TEST(Repeated, WhoAsksWhileItRunsIsServedByAnotherCall) {
  std::binary_semaphore begun(0), go_on(0);
  std::atomic<int> calls = 0;
  Repeated repeated(hours(1), milliseconds(0), [&] {
    ++calls;
    begun.release();
    go_on.acquire();
  });
  repeated.Soon();
  begun.acquire();
  repeated.Soon();
  repeated.Soon();
  go_on.release();
  begun.acquire();
  EXPECT_EQ(calls, 2);
  go_on.release();
}

TEST(Repeated, PausesBetweenCalls) {
  constexpr milliseconds kPause{30};
  std::counting_semaphore<> done(0);
  steady_clock::time_point last = {};
  std::atomic<bool> sooner = false;
  Repeated repeated(milliseconds(0), kPause, [&] {
    const auto now = steady_clock::now();
    sooner = sooner || now - last < kPause;
    last = now;
    done.release();
  });
  for (int i = 0; i < 4; ++i) {
    repeated.Soon();
    done.acquire();
  }
  EXPECT_FALSE(sooner);
}

TEST(Repeated, NothingFollowsItsStop) {
  std::atomic<int> calls = 0;
  Repeated repeated(milliseconds(0), milliseconds(0), [&] { ++calls; });
  repeated.Stop();
  const int then = calls;
  repeated.Soon();
  repeated.Stop();
  EXPECT_EQ(calls, then);
}

TEST(Repeated, EndsAtOnceWhileItWaits) {
  const auto begin = steady_clock::now();
  {
    const Repeated repeated(hours(1), hours(1), [] {});
  }
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace prorata::kubernetes
