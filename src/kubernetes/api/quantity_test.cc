#include "kubernetes/api/quantity.h"

#include <gtest/gtest.h>

namespace prorata::kubernetes {
namespace {

TEST(Quantity, ReadsWhatKubernetesWrites) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"30", 30},
      {"100", 100},
      {"8Gi", 8ull << 30},
      {"256Mi", 256ull << 20},
      {"0.5Gi", 1ull << 29},
      {"1500m", 2},
      {"1", 1},
      {"1k", 1000},
      {"1e3", 1000},
      {"1E3", 1000},
      {"2E", 2'000'000'000'000'000'000ull},
      {"1Ei", 1ull << 60},
      {"17179869184", 17179869184ull},
      {".5k", 500},
      {"1n", 1},
      {"12e-1", 2},
      {"9223372036854775807", 9223372036854775807ull},
  };
  for (const auto& [text, value] : cases) {
    const auto read = ParseQuantity(text);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(*read, value) << text;
  }
}

TEST(Quantity, RefusesEverythingElse) {
  for (const char* text : {"", "-1", "Gi", "8GiB", "8 Gi", "1.2.3", "0x10", "8gi", "1e", "1e99",
                           "8Ei", "1e3Gi", "nan", "inf", "9223372036854775808", "+1", "."}) {
    const auto read = ParseQuantity(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code, "bad_quantity") << text;
    EXPECT_NE(read.error().message.find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(Quantity, WritesTheCanonicalForm) {
  EXPECT_EQ(FormatBinaryQuantity(0), "0");
  EXPECT_EQ(FormatBinaryQuantity(1000), "1000");
  EXPECT_EQ(FormatBinaryQuantity(8ull << 30), "8Gi");
  EXPECT_EQ(FormatBinaryQuantity((16ull << 30) - (256ull << 20)), "16128Mi");
  for (uint64_t value = 1; value < uint64_t{1} << 62; value = value * 3 + 1) {
    EXPECT_EQ(*ParseQuantity(FormatBinaryQuantity(value)), value);
  }
}

}  // namespace
}  // namespace prorata::kubernetes
