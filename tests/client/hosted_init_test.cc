// cuInit beside other threads, and what it leaves of the program's own settings.

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "client/session/connection.h"
#include "client/session/share.h"
#include "tests/client/hosted_share.h"

namespace prorata {
namespace {

TEST_F(HostedShare, OtherThreadsCallWhileOneInitialises) {
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      CUstream stream = nullptr;
      while (!over) EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    });
  }
  Start();
  over = true;
  for (std::thread& thread : threads) thread.join();
}

// As a launch that tells the agent that it waits. Without prorata a launch is no cancellation
// point, and a thread that ended here would hold the lock of the connection for ever.
TEST_F(HostedShare, AThreadIsNotCancelledWhileItTellsTheAgent) {
  Start();
  const auto tell = [] { return client::Send(wire::MessageType::kLeaseIdle, wire::LeaseEvent{}); };
  std::atomic<bool> told{false};
  std::thread thread([&] {
    pthread_cancel(pthread_self());
    told = tell();
    pthread_testcancel();
  });
  thread.join();
  ASSERT_TRUE(told);
  EXPECT_TRUE(tell());
}

// The agent answers late, so the child is made while another thread waits for it. Whatever the
// driver says to a child of a process that it knows, it is said.
TEST_F(HostedShare, AChildForkedDuringCuInitWaitsForNobody) {
  share_->WelcomeAfter(3000);
  std::thread initialises([&] { Start(); });
  while (client::Live() != client::kUnjoined) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) _exit(cuInit(0) == CUDA_SUCCESS ? 0 : 1);
  EXPECT_EQ(StatusOf(child), 0);
  EXPECT_EQ(share_->joins(), 0u) << "the child was to be made before its parent had joined";
  initialises.join();
}

// The child is made while the driver's constructors run. Earlier, while the loader maps its file,
// glibc's own lists are half made, and a child of that moment cannot load anything, with prorata or
// without.
TEST_F(HostedShare, AChildForkedWhileTheDriverIsLoadedLoadsItItself) {
  int loading[2];
  ASSERT_EQ(pipe(loading), 0);
  setenv("NULL_LOADING_FD", std::to_string(loading[1]).c_str(), 1);
  setenv("NULL_LOADS_MS", "3000", 1);
  int version = 0;
  std::thread loads([&] { EXPECT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS); });
  char begun = 1;
  ASSERT_EQ(read(loading[0], &begun, 1), 1);
  const pid_t child = fork();
  if (child == 0) {
    setenv("NULL_LOADING_FD", "0", 1);
    setenv("NULL_LOADS_MS", "0", 1);
    _exit(cuDriverGetVersion(&version) == CUDA_SUCCESS ? 0 : 1);
  }
  EXPECT_EQ(StatusOf(child), 0);
  loads.join();
  close(loading[0]);
  close(loading[1]);
}

TEST_F(HostedShare, ALongListOfVisibleDevicesIsReadAndKept) {
  const std::string list = "0,-1," + std::string(5000, '7');
  setenv("CUDA_VISIBLE_DEVICES", list.c_str(), 1);
  Start();  // fails where its first entry is lost: the share's device is not shown
  EXPECT_EQ(getenv("CUDA_VISIBLE_DEVICES"), list);
}

// A profiler, say: the driver loads it in cuInit, and it calls what programs call.
TEST_F(HostedShare, AnInjectedToolMayCallFromWithinCuInit) {
  static CUresult said;
  said = CUDA_ERROR_UNKNOWN;
  void (*const tool)() = [] { said = cuInit(0); };
  setenv("NULL_INJECTED", std::to_string(reinterpret_cast<uintptr_t>(tool)).c_str(), 1);
  Start();
  EXPECT_EQ(said, CUDA_SUCCESS);
}

}  // namespace
}  // namespace prorata
