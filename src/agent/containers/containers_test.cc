#include "agent/containers/containers.h"

#include <gtest/gtest.h>
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

}  // namespace
}  // namespace prorata::agent
