// The end of a context waits for our own threads that use it.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "client/compute/compute.h"
#include "client/compute/streams.h"
#include "tests/client/hosted_share.h"

namespace prorata {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Long enough for any limit of time to be over when the process goes on.
constexpr char kStopThisProcess[] = "sleep 0.05; kill -STOP $PPID; sleep 0.3; kill -CONT $PPID";
constexpr milliseconds kStopped{200};

TEST_F(HostedShare, TheEndOfAContextWaitsForWhoWasStoppedInIt) {
  Start();
  client::ContextWork* const work = client::WorkOf(primary_, 0);
  ASSERT_NE(work, nullptr);
  std::atomic<bool> entered{false}, done{false};
  std::thread user([&] {
    const client::WorkUse use(work);
    entered = use.entered();
    // Until the process was stopped, and a little longer. One look at the clock each time around: a
    // stop between two looks, of which the second begins the next interval, would not be seen.
    const auto give_up = steady_clock::now() + std::chrono::seconds(20);
    for (auto last = steady_clock::now(), now = last; now - last < kStopped;
         now = steady_clock::now()) {
      last = now;
      if (last > give_up) return;
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(milliseconds(5));
    done = true;
  });
  while (!entered) std::this_thread::yield();
  FILE* const stopping = popen(kStopThisProcess, "r");
  ASSERT_NE(stopping, nullptr);
  client::WorkOfContextPausing(primary_);
  client::AwaitUsersOfWork(primary_);
  EXPECT_TRUE(done) << "the context would have ended under its user";
  client::WorkOfContextGoesOn(primary_);
  user.join();
  pclose(stopping);
}

}  // namespace
}  // namespace prorata
