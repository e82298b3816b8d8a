#include "cli/agent_start.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>

#include <filesystem>
#include <thread>

#include "base/unique_fd.h"

namespace prorata::cli {
namespace {

class AgentStartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/prorata-start-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    place_ = {.runtime_dir = name,
              .socket_path = std::string(name) + "/control",
              .executable = std::string(name) + "/no-such-program",
              .patience = std::chrono::seconds(1)};
  }
  void TearDown() override { std::filesystem::remove_all(place_.runtime_dir); }

  // As another `prorata run` does that starts an agent.
  UniqueFd HoldStartLock() {
    const std::string path = place_.runtime_dir + "/start.lock";
    UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::flock(lock.get(), LOCK_EX), 0);
    return lock;
  }

  AgentPlace place_;
};

TEST_F(AgentStartTest, SaysWhatTheAgentSaid) {
  const auto connection = ConnectOrStart(place_);
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, "agent_start");
  EXPECT_NE(connection.error().message.find("no-such-program' as the agent"), std::string::npos)
      << connection.error().message;
}

TEST_F(AgentStartTest, WhoStartsOneMayBeStoppedAndHoldsNobodyForEver) {
  const UniqueFd held = HoldStartLock();
  const auto connection = ConnectOrStart(place_);
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, "agent_start");
  EXPECT_NE(connection.error().message.find("start.lock"), std::string::npos)
      << connection.error().message;
}

TEST_F(AgentStartTest, WhoWaitedForOneThatFailedStartsOneItself) {
  place_.patience = std::chrono::seconds(60);
  UniqueFd held = HoldStartLock();
  std::thread gives_up([&held] { held.Reset(); });
  const auto connection = ConnectOrStart(place_);
  gives_up.join();
  ASSERT_FALSE(connection);
  EXPECT_NE(connection.error().message.find("starting one failed"), std::string::npos)
      << connection.error().message;
}

}  // namespace
}  // namespace prorata::cli
