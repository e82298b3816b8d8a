#include "kubernetes/pods/wish.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace prorata::kubernetes {
namespace {

const std::vector<std::string> kOne = {"gpu"};
const std::vector<std::string> kTwo = {"left", "right"};

std::string WhyNot(const Annotations& annotations, const std::vector<std::string>& entries = kOne) {
  const auto wishes = ReadWishes(annotations, entries);
  return wishes ? "" : wishes.error().message;
}

TEST(Wish, ReadsAllFields) {
  const auto wishes = ReadWishes({{"prorata.dev/memory", "12Gi"},
                                  {"prorata.dev/compute", "50"},
                                  {"prorata.dev/compute-limit", "80%"},
                                  {"prorata.dev/weight", "200"},
                                  {"prorata.dev/priority", "-5"},
                                  {"prorata.dev/yield-within", "5ms"},
                                  {"prorata.dev/on-full", "wait=30s"},
                                  {"prorata.dev/gang", "always"},
                                  {"prorata.dev/assigned", "not ours to judge"},
                                  {"example.com/memory", "1"}},
                                 kOne);
  ASSERT_TRUE(wishes) << wishes.error().message;
  ShareWish wish;
  wish.memory_bytes = 12 * kGiB;
  wish.compute_percent = 50;
  wish.compute_limit_percent = 80;
  wish.weight = 200;
  wish.priority = -5;
  wish.yield_within_ns = 5'000'000;
  wish.on_full = *api::ParseOnFull("wait=30s");
  wish.gang = api::Gang::kAlways;
  EXPECT_EQ(*wishes, (std::map<std::string, ShareWish>{{"gpu", wish}}));
}

TEST(Wish, RoundsMemoryUpAsClaimsAre) {
  EXPECT_EQ(ReadWishes({{"prorata.dev/memory", "1"}}, kOne)->at("gpu").memory_bytes, 256 * kMiB);
  EXPECT_EQ(ReadWishes({{"prorata.dev/memory", "257Mi"}}, kOne)->at("gpu").memory_bytes,
            512 * kMiB);
}

TEST(Wish, SaysWhatIsWrong) {
  EXPECT_EQ(WhyNot({{"prorata.dev/memory", "8 GB"}}),
            "annotation prorata.dev/memory is '8 GB', and must be an amount of memory above 0 such "
            "as 8Gi or 512Mi");
  for (const char* value : {"0", "-1Gi", "8GiB", "", "lots"}) {
    EXPECT_NE(WhyNot({{"prorata.dev/memory", value}}), "") << value;
  }
  for (const char* value : {"101", "-1", "0.5", "", "50 %"}) {
    EXPECT_EQ(WhyNot({{"prorata.dev/compute", value}}),
              std::string("annotation prorata.dev/compute is '") + value +
                  "', and must be whole hundredths of a GPU, from 0 to 100");
  }
  EXPECT_NE(WhyNot({{"prorata.dev/compute-limit", "0"}}), "");
  EXPECT_NE(WhyNot({{"prorata.dev/weight", "0"}}), "");
  EXPECT_NE(WhyNot({{"prorata.dev/on-full", "maybe"}}), "");
}

TEST(Wish, NamesTheClaimWhereThereAreSeveral) {
  EXPECT_EQ(WhyNot({{"prorata.dev/memory", "1Gi"}}, kTwo),
            "annotation prorata.dev/memory: the pod has several claims for prorata (left, right); "
            "say which one is meant, as in prorata.dev/memory.left");
  EXPECT_EQ(WhyNot({{"prorata.dev/memory.middle", "1Gi"}}, kTwo),
            "annotation prorata.dev/memory.middle: the pod has no claim for prorata 'middle'; it "
            "has left, right");
  const auto wishes =
      ReadWishes({{"prorata.dev/memory.left", "1Gi"}, {"prorata.dev/compute.right", "20"}}, kTwo);
  ASSERT_TRUE(wishes);
  EXPECT_EQ(wishes->at("left").memory_bytes, kGiB);
  EXPECT_EQ(wishes->at("left").compute_percent, std::nullopt);
  EXPECT_EQ(wishes->at("right").compute_percent, 20u);
  EXPECT_EQ(ReadWishes({{"prorata.dev/memory.gpu", "1Gi"}}, kOne)->at("gpu").memory_bytes, kGiB);
  EXPECT_NE(WhyNot({{"prorata.dev/memory", "1Gi"}, {"prorata.dev/memory.gpu", "2Gi"}}), "");
  EXPECT_TRUE(ReadWishes({{"prorata.dev/memory", "nonsense"}}, {})->empty());
}

TEST(Wish, PodsOfOneClaimMayNotContradictEachOther) {
  ShareWish wish, same, more, other;
  wish.weight = same.weight = 3;
  more.priority = 1;
  other.weight = 4;
  EXPECT_TRUE(MergeWish(same, &wish));
  EXPECT_TRUE(MergeWish(more, &wish));
  const ShareWish before = wish;
  const auto refused = MergeWish(other, &wish);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, "wishes_differ");
  EXPECT_EQ(wish, before);
}

}  // namespace
}  // namespace prorata::kubernetes
