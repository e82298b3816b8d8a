#include "policy/memory/outside_watch.h"

#include <gtest/gtest.h>

namespace prorata::policy {
namespace {

using Process = OutsideWatch::Process;
using Processes = std::vector<Process>;

constexpr Process kA{7, 100};
constexpr Process kB{8, 100};

TEST(OutsideWatchTest, TwoLooksInARowReportAProcessOnce) {
  OutsideWatch watch;
  EXPECT_TRUE(watch.Poll({kA}).empty());
  EXPECT_TRUE(watch.reported().empty());
  EXPECT_EQ(watch.Poll({kA, kB}), Processes{kA});
  EXPECT_EQ(watch.Poll({kA, kB}), Processes{kB});
  EXPECT_TRUE(watch.Poll({kA, kB}).empty());
  EXPECT_EQ(watch.reported().size(), 2u);
}

TEST(OutsideWatchTest, WhatIsSeenNowAndThenIsNot) {
  OutsideWatch watch;
  for (int look = 0; look < 10; ++look) {
    EXPECT_TRUE(watch.Poll(look % 2 == 0 ? std::set<Process>{kA} : std::set<Process>{}).empty());
  }
}

TEST(OutsideWatchTest, OneThatIsGoneAndOneOfItsNumberAreTwo) {
  OutsideWatch watch;
  watch.Poll({kA});
  watch.Poll({kA});
  EXPECT_TRUE(watch.Poll({}).empty());
  EXPECT_TRUE(watch.reported().empty());
  const Process next{kA.pid, kA.start_ticks + 1};
  watch.Poll({next});
  EXPECT_EQ(watch.Poll({next}), Processes{next});
}

TEST(OutsideWatchTest, NoMoreThanItsMost) {
  OutsideWatch watch;
  std::set<Process> many;
  for (int64_t pid = 1; pid <= 100; ++pid) many.insert({pid, 1});
  watch.Poll(many);
  EXPECT_EQ(watch.Poll(many).size(), OutsideWatch::kMaxReported);
  EXPECT_TRUE(watch.Poll(many).empty());
  // Where one of them ends another is reported.
  many.erase(many.begin());
  EXPECT_EQ(watch.Poll(many).size(), 1u);
}

}  // namespace
}  // namespace prorata::policy
