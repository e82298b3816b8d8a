#include "tests/client/hosted_share.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "bench/null_driver/null_driver.h"

// A child of a program with threads is what some of these tests are about.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace prorata {

HostedShare::HostedShare() : folder_(testing::TempDir() + "prorata-hosted-XXXXXX") {
  EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  setenv("PRORATA_DRIVER_DIR", PRORATA_NULL_DRIVER_DIR, 1);
  setenv("PRORATA_SHARE", folder_.c_str(), 1);
  setenv("NULL_STRICT", "1", 1);
  share_ = std::make_unique<bench::FixtureShare>(folder_, bench::kNullUuidText, kLimitBytes);
}

HostedShare::~HostedShare() {
  share_.reset();
  rmdir(folder_.c_str());
}

void HostedShare::SetUp() {
  static bool used = false;
  ASSERT_FALSE(std::exchange(used, true)) << "run one test at a time: --gtest_filter, or ctest";
}

void HostedShare::Start() {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&primary_, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(primary_), CUDA_SUCCESS);
}

int StatusOf(pid_t child) {
  constexpr auto kPatience = std::chrono::minutes(1);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return status;
}

}  // namespace prorata
