#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <memory>

#include "agent/runtime/connection.h"
#include "agent/runtime/process.h"
#include "base/unique_fd.h"

namespace prorata::agent {
namespace {

// The loop finds both ready at once; what it then finds of the second is not true any more.
TEST(ProcessWatchTest, AWaitThatEndsWithoutNeedIsNoDeath) {
  boost::asio::io_context loop;
  std::array<int, 2> fds;
  std::array<std::unique_ptr<ProcessWatch>, 2> watches;
  int ended = 0;
  for (size_t i = 0; i < 2; ++i) {
    fds[i] = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    ASSERT_GE(fds[i], 0);
    watches[i] = std::make_unique<ProcessWatch>(loop, UniqueFd(fds[i]), [&ended, &fds, i] {
      ++ended;
      eventfd_t value = 0;
      ::eventfd_read(fds[1 - i], &value);
    });
  }
  loop.poll();
  EXPECT_EQ(ended, 0);
  for (const int fd : fds) ASSERT_EQ(::eventfd_write(fd, 1), 0);
  loop.poll();
  EXPECT_EQ(ended, 1);
  // The other is still watched.
  for (const int fd : fds) ASSERT_EQ(::eventfd_write(fd, 1), 0);
  loop.poll();
  EXPECT_EQ(ended, 2);
}

// Of the descriptors that it needs one at a time is missing.
TEST(WatchProcessTest, WithoutDescriptorsAProcessIsUnknownAndNotDead) {
  const auto self = IdentifyProcess(::getpid());
  ASSERT_TRUE(self);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd next(::dup(0));
  for (int free = 0; free < 3; ++free) {
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next.get() + 1 + free);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto identified = IdentifyProcess(::getpid());
    const auto watched = WatchProcess(*self);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(identified.has_value(), free > 0);
    EXPECT_EQ(watched.has_value(), free > 1);
    EXPECT_EQ(identified ? "pidfd" : identified.error().code, "pidfd");
    if (watched) continue;
    EXPECT_EQ(watched.error().code, "pidfd");
    EXPECT_NE(watched.error().message.find("no descriptors left"), std::string::npos)
        << watched.error().message;
  }
}

}  // namespace
}  // namespace prorata::agent
