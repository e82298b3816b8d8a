#include "agent/config/metrics_address.h"

#include <gtest/gtest.h>

namespace prorata::agent {
namespace {

TEST(MetricsAddressTest, APortAloneIsOnTheLoopback) {
  for (const char* text : {"9400", "127.0.0.1:9400", "localhost:9400"}) {
    const auto where = ParseMetricsAddress(text);
    ASSERT_TRUE(where) << text;
    EXPECT_EQ(where->address, "127.0.0.1") << text;
    EXPECT_EQ(where->port, 9400) << text;
  }
}

TEST(MetricsAddressTest, AnotherAddressIsWhatWasWritten) {
  const auto all = ParseMetricsAddress("0.0.0.0:0");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->address, "0.0.0.0");
  EXPECT_EQ(all->port, 0);
  const auto six = ParseMetricsAddress("[::1]:65535");
  ASSERT_TRUE(six);
  EXPECT_EQ(six->address, "::1");
  EXPECT_EQ(six->port, 65535);
}

TEST(MetricsAddressTest, WhatIsNoAddressIsRefusedWithWhatToWrite) {
  for (const char* text : {"", ":", ":9400", "9400:", "host:9400", "127.0.0.1", "::1:9400",
                           "[127.0.0.1]:9400", "[::1]9400", "127.0.0.1:65536", "127.0.0.1:-1",
                           "127.0.0.1: 9400", "127.0.0.1:9400/metrics", "[:1", "]:1"}) {
    const auto where = ParseMetricsAddress(text);
    ASSERT_FALSE(where) << text;
    EXPECT_EQ(where.error().code, "bad_metrics");
    EXPECT_NE(where.error().message.find("write for example"), std::string::npos);
  }
}

}  // namespace
}  // namespace prorata::agent
