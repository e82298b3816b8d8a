#include "agent/containers/containers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <optional>

#include "agent/runtime/worker.h"

namespace prorata::agent {
namespace {

TEST(ContainersTest, ARememberedGroupIsThatOfTheCgroup) {
  boost::asio::io_context loop;
  Worker disk(loop, 4);
  Containers containers(disk);
  const auto own = IdentifyProcess(::getpid());
  ASSERT_TRUE(own.has_value());
  const auto group = Containers::Of(*own);
  EXPECT_EQ(containers.OfCgroup(*own), group);
  EXPECT_EQ(containers.OfCgroup(*own), group);
  // One that has ended, whose number is another's now: nothing is said of it.
  Containers fresh(disk);
  EXPECT_EQ(fresh.OfCgroup({own->pid, own->start_ticks + 1}), std::nullopt);
  EXPECT_EQ(fresh.OfCgroup(*own), group);
}

// A program of a moment, by `podman exec`: it has ended when the engine's process is looked for.
TEST(ContainersTest, WhoHasEndedIsNotTheOnlyOneToAsk) {
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(ended, nullptr, 0), ended);
  int never_written[2];
  ASSERT_EQ(::pipe(never_written), 0);
  const pid_t monitor = ::fork();
  if (monitor == 0) {
    ::dup2(never_written[0], 0);
    ::execl("/bin/sh", "conmon", "-c", "read line", "--cid", "1234", "--name", "first", nullptr);
    ::_exit(1);
  }
  const ContainerGroup group = {.engine = "podman", .id = "1234", .hierarchy = "", .path = ""};
  const auto named = [&](const std::vector<pid_t>& processes) {
    return Containers::NameOf(group, processes);
  };
  // Until it is that program, which only looking tells.
  for (int i = 0; i < 10'000 && named({monitor}).empty(); ++i) ::usleep(1000);
  EXPECT_EQ(named({ended}), "");
  EXPECT_EQ(named({ended, monitor}), "first");
  ::kill(monitor, SIGKILL);
  ::waitpid(monitor, nullptr, 0);
  ::close(never_written[0]);
  ::close(never_written[1]);
}

}  // namespace
}  // namespace prorata::agent
