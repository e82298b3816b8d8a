#include "base/fraction.h"

#include <gtest/gtest.h>

namespace prorata {
namespace {

TEST(ParseFraction, TakesDecimalsAndPercent) {
  EXPECT_EQ(ParseFraction("0.3").value().ppm, 300'000u);
  EXPECT_EQ(ParseFraction("1").value().ppm, 1'000'000u);
  EXPECT_EQ(ParseFraction("0").value().ppm, 0u);
  EXPECT_EQ(ParseFraction(".25").value().ppm, 250'000u);
  EXPECT_EQ(ParseFraction("30%").value().ppm, 300'000u);
  EXPECT_EQ(ParseFraction("0.000001").value().ppm, 1u);
}

TEST(ParseFraction, RefusesTheRest) {
  for (const char* text :
       {"", ".", "-0.1", "1.1", "101%", "0.3x", "1e-3", "0.0000001", "0.3.1", "nan"}) {
    EXPECT_FALSE(ParseFraction(text).has_value()) << text;
  }
}

TEST(FormatFraction, RoundTrips) {
  for (const uint32_t ppm : {0u, 1u, 125'000u, 300'000u, 999'999u, 1'000'000u}) {
    EXPECT_EQ(ParseFraction(FormatFraction({ppm})).value().ppm, ppm);
  }
  EXPECT_EQ(FormatFraction({300'000}), "0.3");
}

TEST(FormatPercent, RoundTrips) {
  for (const uint32_t ppm : {0u, 1u, 125'000u, 300'000u, 999'999u, 1'000'000u}) {
    EXPECT_EQ(ParseFraction(FormatPercent({ppm})).value().ppm, ppm);
  }
  EXPECT_EQ(FormatPercent({0}), "0%");
  EXPECT_EQ(FormatPercent({300'000}), "30%");
  EXPECT_EQ(FormatPercent({125'000}), "12.5%");
  EXPECT_EQ(FormatPercent({1'000'000}), "100%");
}

}  // namespace
}  // namespace prorata
