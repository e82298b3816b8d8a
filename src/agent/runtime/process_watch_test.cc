#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <memory>

#include "agent/runtime/connection.h"
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

}  // namespace
}  // namespace prorata::agent
