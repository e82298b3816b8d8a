#include "cli/start_wait.h"

#include <gtest/gtest.h>

#include "cli/options/options.h"
#include "cli/text/tables.h"

namespace prorata::cli {
namespace {

api::WaitingShare Waiting() {
  api::WaitingShare waiting;
  waiting.place = 2;
  waiting.name = "b";
  waiting.why = "GPU 0 has only 1 GiB left";
  waiting.memory_bytes = uint64_t{4} << 30;
  waiting.waited_ms = 12'345;
  waiting.pid = 812;
  return waiting;
}

TEST(StartWaitTest, ALineOfATerminalIsNeverFull) {
  const std::string whole = WaitingLine(Waiting(), 0);
  EXPECT_EQ(whole, "share 'b' waits, 2nd in line: GPU 0 has only 1 GiB left");
  EXPECT_EQ(WaitingLine(Waiting(), 100), "prorata: " + whole);
  for (size_t columns = 1; columns < 80; ++columns) {
    EXPECT_LT(WaitingLine(Waiting(), columns).size(), std::max<size_t>(columns, 4)) << columns;
  }
}

TEST(StartWaitTest, ATableOfThoseInLine) {
  EXPECT_EQ(WaitingTable({Waiting()}),
            "PLACE  NAME  GPU  MEMORY  COMPUTE  WAITED  PROCESS  WAITS FOR\n"
            "2      b     any  4 GiB   0        12 s    812      GPU 0 has only 1 GiB left\n");
}

TEST(StartWaitTest, TheOptionHasADurationOrNone) {
  auto create = [](const std::string& wait) {
    return ParseCommandLine({"create", wait, "b", "--memory", "4GiB"});
  };
  const auto bare = create("--wait");
  ASSERT_TRUE(bare.options) << bare.err;
  EXPECT_TRUE(bare.options->create.wait && !bare.options->create.wait_ms);
  EXPECT_EQ(bare.options->create.name, "b");
  const auto timed = create("--wait=10m");
  ASSERT_TRUE(timed.options) << timed.err;
  EXPECT_EQ(timed.options->create.wait_ms, 600'000u);
  const auto run = ParseCommandLine({"run", "--wait=5s", "--", "true"});
  ASSERT_TRUE(run.options) << run.err;
  EXPECT_EQ(run.options->run.wait_ms, 5'000u);
  for (const char* wait : {"--wait=5", "--wait=-1s", "--wait=1us", "--wait=soon"}) {
    EXPECT_EQ(create(wait).status, kExitUsage) << wait;
  }
  EXPECT_FALSE(ParseCommandLine({"create", "b"}).options->create.wait);
}

}  // namespace
}  // namespace prorata::cli
