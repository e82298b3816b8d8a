#include "agent/config/of_gpu.h"

#include <gtest/gtest.h>

#include "agent/config/elastic_ceiling.h"
#include "agent/config/overcommit.h"

namespace prorata::agent {
namespace {

TEST(OfGpu, IsOfEveryOneOrOfTheOneThatIsNamed) {
  EXPECT_EQ(SplitOfGpu("0.9")->gpu, "");
  EXPECT_EQ(SplitOfGpu("0.9")->value, "0.9");
  EXPECT_EQ(SplitOfGpu("GPU-1=a=b")->gpu, "GPU-1");
  EXPECT_EQ(SplitOfGpu("GPU-1=a=b")->value, "a=b");
  EXPECT_EQ(SplitOfGpu("0=")->value, "");
  EXPECT_FALSE(SplitOfGpu("=0.9"));
}

TEST(ElasticCeiling, IsAFractionAboveNothing) {
  EXPECT_EQ(ParseElasticCeiling("0.9")->ceiling.ppm, 900'000u);
  EXPECT_EQ(ParseElasticCeiling("0.9")->gpu, "");
  EXPECT_EQ(ParseElasticCeiling("1=1")->gpu, "1");
  EXPECT_EQ(ParseElasticCeiling("1=1")->ceiling.ppm, 1'000'000u);
  for (const char* bad : {"", "=", "=0.5", "0=", "0", "0.0", "1.1", "-0.5", "0=x", "0.5 ", "1=0"}) {
    const auto parsed = ParseElasticCeiling(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code, "bad_elastic_ceiling");
    EXPECT_NE(parsed.error().message.find("write for example 0.9"), std::string::npos) << bad;
  }
}

TEST(Overcommit, IsARatioFromOneToAHundred) {
  EXPECT_EQ(ParseOvercommit("1.5")->ratio, 1.5);
  EXPECT_EQ(ParseOvercommit("GPU-1=2")->gpu, "GPU-1");
  EXPECT_EQ(ParseOvercommit("GPU-1=2")->ratio, 2);
  for (const char* bad : {"", "=", "=2", "0=", "0.9", "101", "nan", "inf", "2x", "0=1=2"}) {
    EXPECT_FALSE(ParseOvercommit(bad)) << bad;
  }
}

}  // namespace
}  // namespace prorata::agent
