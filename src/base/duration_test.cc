#include "base/duration.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace prorata {
namespace {

TEST(Duration, Parses) {
  EXPECT_EQ(ParseDuration("500us"), 500 * kNsPerUs);
  EXPECT_EQ(ParseDuration("500ms"), 500 * kNsPerMs);
  EXPECT_EQ(ParseDuration("30s"), 30 * kNsPerS);
  EXPECT_EQ(ParseDuration("5m"), 300 * kNsPerS);
  EXPECT_EQ(ParseDuration("2h"), 7200 * kNsPerS);
}

TEST(Duration, RefusesWhatIsNone) {
  for (const char* text : {"", "s", "30", "0s", "-1s", "1.5s", "1 s", "30S", "1d", "1sm", "+1s",
                           "99999999999999999999s", "9223372036854775807s", "0x1s"}) {
    EXPECT_FALSE(ParseDuration(text).has_value()) << text;
  }
}

TEST(Duration, SaysThatTheUnitIsMissing) {
  EXPECT_EQ(ParseDuration("5").error().message,
            "'5' is not a span of time: it has no unit, which is us, ms, s, m or h; write for "
            "example 30s or 5m");
}

TEST(Duration, FormatsWhatItParses) {
  for (const char* text : {"1us", "2500us", "1ms", "500ms", "1s", "90s", "5m", "2h", "25h"}) {
    EXPECT_EQ(FormatDuration(*ParseDuration(text)), text);
  }
  EXPECT_EQ(FormatDuration(0), "0s");
  EXPECT_EQ(FormatDuration(2 * kNsPerMs + 7), "2ms");
}

}  // namespace
}  // namespace prorata
