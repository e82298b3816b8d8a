#include "base/bytes.h"

#include <gtest/gtest.h>

namespace prorata {
namespace {

TEST(ParseBytes, TakesUnits) {
  EXPECT_EQ(ParseBytes("4GiB").value(), 4 * kGiB);
  EXPECT_EQ(ParseBytes("512 MiB").value(), 512 * kMiB);
  EXPECT_EQ(ParseBytes("1.5G").value(), kGiB + kGiB / 2);
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_EQ(ParseBytes("1TiB").value(), 1024 * kGiB);
}

TEST(ParseBytes, TakesEachUnitAsAPersonWritesIt) {
  const std::pair<char, uint64_t> letters[] = {
      {'K', kKiB}, {'M', kMiB}, {'G', kGiB}, {'T', 1024 * kGiB}};
  for (const auto& [letter, bytes] : letters) {
    const std::string big(1, letter);
    const std::string small(1, static_cast<char>(letter + 'a' - 'A'));
    for (const std::string& unit : {big, big + "B", big + "i", big + "iB", small, small + "b",
                                    small + "i", small + "ib", small + "B", small + "iB"}) {
      EXPECT_EQ(ParseBytes("4" + unit), 4 * bytes) << unit;
      EXPECT_EQ(ParseBytes("4 " + unit), 4 * bytes) << unit;
    }
    EXPECT_FALSE(ParseBytes("4" + big + "b")) << "bits";
    EXPECT_FALSE(ParseBytes("4" + big + "ib")) << "bits";
  }
  EXPECT_EQ(ParseBytes("7b"), 7u);
  EXPECT_EQ(ParseBytes("7B"), 7u);
}

TEST(ParseBytes, NamesAllUnitsWhenItKnowsOneNot) {
  const std::string message = ParseBytes("4X").error().message;
  for (const char* unit : {"'X'", " B,", " K,", " M,", " G,", " T ", "KB", "Ki,", "KiB"}) {
    EXPECT_NE(message.find(unit), std::string::npos) << unit << " is not in " << message;
  }
}

TEST(ParseBytes, RefusesWhatIsNotASize) {
  for (const char* text :
       {"",           "-1",    "+1",     "4Gib", "0",    "0GiB",
        "GiB",        "1.GiB", "4 GiB ", "1e9",  "0x10", "9999999999999999999999",
        "8388608TiB", "0.1B",  "4GG",    "4iB",  "4Gx",  "4GBi",
        "4P",         "4Mb"}) {
    EXPECT_FALSE(ParseBytes(text).has_value()) << text;
    EXPECT_EQ(ParseBytes(text).error().code, "bad_size") << text;
  }
}

TEST(FormatBytes, RoundTripsWholeUnits) {
  EXPECT_EQ(FormatBytes(kGiB), "1 GiB");
  EXPECT_EQ(FormatBytes(1536 * kMiB), "1.50 GiB");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(ParseBytes(FormatBytes(7 * kMiB)).value(), 7 * kMiB);
}

}  // namespace
}  // namespace prorata
