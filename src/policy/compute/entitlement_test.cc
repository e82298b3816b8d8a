#include "policy/compute/entitlement.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace prorata::policy {
namespace {

ComputeTerms WeightedTerms(double request, double limit = 1, uint32_t weight = 100) {
  return {{static_cast<uint32_t>(request * 1e6)}, {static_cast<uint32_t>(limit * 1e6)}, weight};
}

void ExpectEntitled(std::vector<ComputeTerms> runnable, std::vector<double> expected) {
  const std::vector<double> entitled = Entitlements(runnable);
  ASSERT_EQ(entitled.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(entitled[i], expected[i], 1e-6) << i;
}

TEST(Entitlements, RequestsThatFillTheDeviceAreKept) {
  ExpectEntitled({WeightedTerms(0.5), WeightedTerms(0.3), WeightedTerms(0.2)}, {0.5, 0.3, 0.2});
}

TEST(Entitlements, SpareGoesByWeight) {
  ExpectEntitled({WeightedTerms(0.5), WeightedTerms(0.2)}, {0.65, 0.35});
  ExpectEntitled({WeightedTerms(0.5, 1, 200), WeightedTerms(0.2, 1, 100)}, {0.7, 0.3});
  ExpectEntitled({WeightedTerms(0), WeightedTerms(0)}, {0.5, 0.5});
}

TEST(Entitlements, LimitsCapAndPassOn) {
  ExpectEntitled({WeightedTerms(0, 0.1), WeightedTerms(0), WeightedTerms(0)}, {0.1, 0.45, 0.45});
  ExpectEntitled({WeightedTerms(0.3, 0.3)}, {0.3});
  ExpectEntitled({WeightedTerms(0.5, 0.5), WeightedTerms(0.2)}, {0.5, 0.5});
}

TEST(Entitlements, RequestsAboveTheDeviceAreScaled) {
  ExpectEntitled({WeightedTerms(1), WeightedTerms(1)}, {0.5, 0.5});
}

TEST(Entitlements, NobodyIsEntitledToNothing) {
  ExpectEntitled({WeightedTerms(1), WeightedTerms(0)}, {1 - kMinEntitled, kMinEntitled});
}

// Each of 60 had half a point, and a request of 0.9 was 0.7155 beside them.
TEST(Entitlements, ARequestIsKeptBesideHoweverManyWithoutOne) {
  std::vector<ComputeTerms> runnable = {WeightedTerms(0.98)};
  for (int others = 1; others <= 100; ++others) {
    runnable.push_back(WeightedTerms(0));
    const std::vector<double> entitled = Entitlements(runnable);
    EXPECT_GE(entitled[0], 0.96) << others;
    EXPECT_GE(entitled[1], 0.0002 - 1e-9) << others;
  }
  // Nor does a small weight beside a large one.
  runnable.assign(41, WeightedTerms(0, 1, 1));
  runnable[0].weight = 1000;
  EXPECT_NEAR(Entitlements(runnable)[0], 1000. / 1040, 1e-6);
}

TEST(Entitlements, OfAPartRequestsComeFirst) {
  const std::vector<ComputeTerms> runnable = {WeightedTerms(0.6), WeightedTerms(0)};
  EXPECT_NEAR(Entitlements(runnable, 0.7)[0], 0.65, 1e-6);
  EXPECT_NEAR(Entitlements(runnable, 0.7)[1], 0.05, 1e-6);
  EXPECT_NEAR(Entitlements(runnable, 0.4)[0], 0.4 * (1 - kMinEntitled), 1e-6)
      << "more than there is";
}

TEST(Entitlements, NeverAboveTheDeviceOrALimit) {
  for (uint32_t seed = 1; seed <= 5000; ++seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> unit(0, 1);
    std::vector<ComputeTerms> runnable(1 + random() % 12);
    for (ComputeTerms& terms : runnable) {
      terms = WeightedTerms(0, unit(random), 1 + random() % 1000);
      if (random() % 2 != 0) terms.request.ppm = random() % (terms.limit.ppm + 1);
    }
    const double part = random() % 2 != 0 ? unit(random) : 1;
    const std::vector<double> entitled = Entitlements(runnable, part);
    EXPECT_LE(std::accumulate(entitled.begin(), entitled.end(), 0.0), part + 1e-9)
        << "seed " << seed;
    for (size_t i = 0; i < runnable.size(); ++i) {
      EXPECT_LE(entitled[i], runnable[i].limit.value() + 1e-9) << "seed " << seed;
      EXPECT_GT(entitled[i] + (runnable[i].limit.ppm == 0), 0) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace prorata::policy
