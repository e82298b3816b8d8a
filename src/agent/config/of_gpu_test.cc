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

TEST(OfGpu, AListSaysEachOnce) {
  const auto list = SplitGpuList("4GiB,2=6GiB,GPU-1=a=b", "x");
  ASSERT_TRUE(list);
  ASSERT_EQ(list->size(), 3u);
  EXPECT_EQ((*list)[0].gpu, "");
  EXPECT_EQ((*list)[0].value, "4GiB");
  EXPECT_EQ((*list)[1].gpu, "2");
  EXPECT_EQ((*list)[1].value, "6GiB");
  EXPECT_EQ((*list)[2].gpu, "GPU-1");
  EXPECT_EQ((*list)[2].value, "a=b");
  EXPECT_EQ(SplitGpuList("", "x")->size(), 1u) << "the value is wrong, not the list";
  for (const char* bad : {"1,2", "0=1,0=2", "=1", "1,=2", ","}) {
    const auto refused = SplitGpuList(bad, "4GiB,2=6GiB");
    ASSERT_FALSE(refused) << bad;
    EXPECT_NE(refused.error().message.find("for example 4GiB,2=6GiB"), std::string::npos) << bad;
  }
}

TEST(OfGpu, TheAgentsOptionsAreListsToo) {
  const auto ratios = ParseOvercommit("1.5,0=2");
  ASSERT_TRUE(ratios);
  ASSERT_EQ(ratios->size(), 2u);
  EXPECT_EQ((*ratios)[1].gpu, "0");
  EXPECT_EQ((*ratios)[1].ratio, 2);
  EXPECT_EQ(ParseElasticCeiling("1,GPU-1=0.9")->back().ceiling.ppm, 900'000u);
}

TEST(ElasticCeiling, IsAFractionAboveNothing) {
  EXPECT_EQ(ParseElasticCeiling("0.9")->front().ceiling.ppm, 900'000u);
  EXPECT_EQ(ParseElasticCeiling("0.9")->front().gpu, "");
  EXPECT_EQ(ParseElasticCeiling("1=1")->front().gpu, "1");
  EXPECT_EQ(ParseElasticCeiling("1=1")->front().ceiling.ppm, 1'000'000u);
  for (const char* bad : {"", "=", "=0.5", "0=", "0", "0.0", "1.1", "-0.5", "0=x", "0.5 ", "1=0"}) {
    const auto parsed = ParseElasticCeiling(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code, "bad_elastic_ceiling");
    EXPECT_NE(parsed.error().message.find("write for example 0.9"), std::string::npos) << bad;
  }
}

TEST(Overcommit, IsARatioFromOneToAHundred) {
  EXPECT_EQ(ParseOvercommit("1.5")->front().ratio, 1.5);
  EXPECT_EQ(ParseOvercommit("GPU-1=2")->front().gpu, "GPU-1");
  EXPECT_EQ(ParseOvercommit("GPU-1=2")->front().ratio, 2);
  for (const char* bad : {"", "=", "=2", "0=", "0.9", "101", "nan", "inf", "2x", "0=1=2"}) {
    EXPECT_FALSE(ParseOvercommit(bad)) << bad;
  }
}

}  // namespace
}  // namespace prorata::agent
