#include "sim/policies/gemini_tokens.h"
#include "base/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace prorata::policy {
namespace {

ComputeTerms LimitTerms(double request, double limit = 1) {
  return {{static_cast<uint32_t>(request * 1e6 + 0.5)}, {static_cast<uint32_t>(limit * 1e6 + 0.5)}};
}

class GeminiTokensTest : public ::testing::Test {
 protected:
  // The scheduler was started a second before the tests' time 0: who used all of the time there was
  // has no right to more even with a limit of 1 (rule A).
  static int64_t At(int64_t ms) { return (ms + 1000) * kMs; }
  void SetUp() override {
    policy_.Add(9, LimitTerms(0), {}, 0);
    policy_.Remove(9, 0);
  }
  void Add(LeasePolicy::Key key, double request, double limit = 1, int64_t now_ms = 0) {
    policy_.Add(key, LimitTerms(request, limit), {}, At(now_ms));
  }
  void Wants(LeasePolicy::Key key, int64_t now_ms) {
    policy_.Wanted(key, At(now_ms));
    Decide(now_ms);
  }
  // Its lease has ended, and the device is done with what it launched.
  void Drained(LeasePolicy::Key key, int64_t now_ms) {
    ASSERT_EQ(policy_.State(key).phase, LeasePolicy::Phase::kDraining);
    policy_.Drained(key, At(now_ms), At(now_ms));
    Decide(now_ms);
  }
  void Charged(LeasePolicy::Key key, int64_t total_ms) {
    policy_.Observe(key, {.busy_total_ns = static_cast<uint64_t>(total_ms * kMs)});
  }
  void Idle(LeasePolicy::Key key, int64_t now_ms) {
    policy_.Idle(key, At(now_ms));
    Decide(now_ms);
  }
  void Decide(int64_t now_ms) { next_ns_ = policy_.Decide(At(now_ms)).next_ns; }
  int64_t next_ms() const { return next_ns_ / kMs - 1000; }
  bool Open(LeasePolicy::Key key) const {
    return policy_.State(key).phase == LeasePolicy::Phase::kRunning;
  }
  double QuotaMs(LeasePolicy::Key key) const { return policy_.QuotaNs(key) / kMs; }
  double UsedMs(LeasePolicy::Key key, int64_t now_ms) const {
    return policy_.UsedNs(key, At(now_ms)) / kMs;
  }
  // A whole turn of one that is busy throughout, drains at once and asks again in time.
  void BusySlice(LeasePolicy::Key key, int64_t* now_ms, int64_t* charged_ms) {
    ASSERT_TRUE(Open(key));
    const int64_t until_ms = next_ms() + 1;
    EXPECT_NEAR(static_cast<double>(until_ms - *now_ms), QuotaMs(key), 3);
    *charged_ms += until_ms - *now_ms;
    *now_ms = until_ms;
    Charged(key, *charged_ms);
    Decide(*now_ms);
    EXPECT_FALSE(Open(key));
    Drained(key, *now_ms);
    Wants(key, *now_ms);
  }

  GeminiTokens policy_;
  int64_t next_ns_ = 0;
};

// Rule E: what Gemini is worst at.
TEST_F(GeminiTokensTest, AnIdleHolderKeepsTheTokenUntilItsQuotaIsOver) {
  Add(1, 0.5);
  Add(2, 0.5);
  Wants(1, 0);
  EXPECT_TRUE(Open(1));
  EXPECT_EQ(QuotaMs(1), 300);
  Wants(2, 1);
  Charged(1, 5);
  Idle(1, 6);
  EXPECT_TRUE(Open(1));
  for (const int64_t ms : {50, 150, 294}) {
    Decide(ms);
    EXPECT_FALSE(Open(2)) << ms;
  }
  Decide(300);
  EXPECT_TRUE(Open(2));
  EXPECT_FALSE(Open(1));
  EXPECT_EQ(UsedMs(1, 300), 300) << "and it is charged for it";
}

// Rules H and E: what asks again before its quota is over gives the rest back.
TEST_F(GeminiTokensTest, WhoseNextBurstDoesNotFitAsksAgain) {
  Add(1, 0.5);
  Add(2, 0.5);
  Wants(1, 0);
  Wants(2, 0);
  Charged(1, 40);
  Idle(1, 40);
  EXPECT_EQ(next_ms(), 260) << "a burst of 40 ms fits until then";
  Decide(260);
  EXPECT_FALSE(Open(1));
  EXPECT_FALSE(Open(2)) << "the token is still the first's";
  Drained(1, 260);
  EXPECT_FALSE(Open(2));
  Wants(1, 270);
  EXPECT_TRUE(Open(2));
  EXPECT_EQ(UsedMs(1, 270), 270) << "rule F";
}

TEST_F(GeminiTokensTest, ABurstThatHasBegunRunsUntilTheQuotasEnd) {
  Add(1, 0.5);
  Add(2, 0.5);
  Wants(1, 0);
  Wants(2, 0);
  Charged(1, 40);
  Idle(1, 40);
  Charged(1, 41);
  Decide(297);
  EXPECT_TRUE(Open(1));
}

// Rule I, and F: beyond its quota is charged too.
TEST_F(GeminiTokensTest, TheNextDoesNotWaitForTheDrainAndTheDrainIsCharged) {
  Add(1, 0.5);
  Add(2, 0.5);
  Wants(1, 0);
  Wants(2, 0);
  Charged(1, 300);
  Decide(300);
  EXPECT_TRUE(Open(2)) << "while the first drains";
  Wants(1, 310);
  Charged(1, 340);
  Drained(1, 340);
  // 300 ms of its own, and 40 ms at once with the other: half each.
  EXPECT_EQ(UsedMs(1, 340), 320);
}

// Rule B.
TEST_F(GeminiTokensTest, WhoMissesTheLargerPartOfItsRequestGoesFirst) {
  Add(1, 0.6);
  Add(2, 0.2);
  Add(3, 0.2);
  int64_t now_ms = 0;
  int64_t charged_ms[4] = {};
  for (const LeasePolicy::Key key : {1, 2, 3}) Wants(key, 0);
  for (const LeasePolicy::Key key : {1, 2, 3}) BusySlice(key, &now_ms, &charged_ms[key]);
  ASSERT_NEAR(static_cast<double>(now_ms), 900, 10);
  EXPECT_TRUE(Open(1)) << "300 of 1140; the others have 300 of 380";
}

TEST_F(GeminiTokensTest, WhoUsedLessGoesFirstWhereNobodyMissesAnything) {
  Add(1, 0);
  Add(2, 0);
  int64_t now_ms = 0;
  int64_t charged_ms[3] = {};
  Wants(1, 0);
  BusySlice(1, &now_ms, &charged_ms[1]);
  Wants(2, 310);
  ASSERT_TRUE(Open(1)) << "it was alone";
  Charged(1, 900);
  Decide(300 + static_cast<int64_t>(QuotaMs(1)));
  EXPECT_TRUE(Open(2));
}

// Rule A: what is left of the limit does not bound a quota, and the window is a long one.
TEST_F(GeminiTokensTest, ALimitIsKeptOverTheWindowAndNotBefore) {
  Add(1, 0.2, 0.2);
  Wants(1, 0);
  int64_t now_ms = 0;
  int64_t charged_ms = 0;
  BusySlice(1, &now_ms, &charged_ms);
  EXPECT_FALSE(Open(1)) << "300 ms of 260";
  EXPECT_NEAR(static_cast<double>(next_ms()), 10'300, 3) << "when its grant leaves the window";
  Decide(5'000);
  EXPECT_FALSE(Open(1)) << "it sleeps, though 300 ms of 1200 would do";
  Add(2, 0.5, 1, 5'000);
  Wants(2, 5'000);
  EXPECT_TRUE(Open(2));
  Decide(5'300);
  EXPECT_TRUE(Open(1)) << "somebody else's asking woke it";
}

// Rules D and G.
TEST_F(GeminiTokensTest, TheQuotaFollowsTheBurst) {
  Add(1, 0.5);
  Add(2, 0.5);
  Wants(1, 0);
  int64_t now_ms = 0;
  int64_t charged_ms = 0;
  double expected_ms = 300;
  for (int turn = 0; turn < 6; ++turn) {
    ASSERT_TRUE(Open(1));
    EXPECT_NEAR(QuotaMs(1), expected_ms, 1e-6);
    // One burst of 10 ms, a gap until its quota is over, and it asks again.
    charged_ms += 10;
    Charged(1, charged_ms);
    Idle(1, now_ms + 10);
    now_ms += static_cast<int64_t>(QuotaMs(1)) + 1;
    Decide(now_ms);
    Drained(1, now_ms);
    Wants(1, now_ms);
    expected_ms = std::max(20.0, (expected_ms + 10) / 2);
  }
  EXPECT_EQ(expected_ms, 20) << "the least quota";
}

TEST_F(GeminiTokensTest, BurstsOnAMomentApartAreOne) {
  Add(1, 0.5);
  Wants(1, 0);
  Charged(1, 10);
  Idle(1, 10);
  Charged(1, 30);
  Idle(1, 31);  // after a gap of 1 ms
  Charged(1, 40);
  Idle(1, 101);  // after one of 60
  Decide(300);
  Drained(1, 300);
  Wants(1, 300);
  EXPECT_NEAR(QuotaMs(1), (31 + 300) / 2.0, 1e-6);
}

TEST_F(GeminiTokensTest, TheQuotaOfOneThatIsAlwaysBusyGrowsByHalfUpToItsLimitOfTheWindow) {
  Add(1, 0.5);
  Add(2, 0.5);
  int64_t now_ms = 0;
  int64_t charged_ms[3] = {};
  Wants(1, 0);
  Wants(2, 0);
  std::vector<double> quotas_ms;
  for (int turn = 0; turn < 12; ++turn) {
    const LeasePolicy::Key key = Open(1) ? 1 : 2;
    quotas_ms.push_back(QuotaMs(key));
    BusySlice(key, &now_ms, &charged_ms[key]);
  }
  EXPECT_EQ(quotas_ms[0], 300);
  EXPECT_EQ(quotas_ms[1], 300);
  EXPECT_NEAR(quotas_ms[2], 450, 5);
  EXPECT_NEAR(quotas_ms[4], 675, 10);
  EXPECT_LE(*std::max_element(quotas_ms.begin(), quotas_ms.end()), 10'000);
}

TEST_F(GeminiTokensTest, TheShortestTurnsItCanMake) {
  GeminiOptions options;
  options.always_least_quota = true;
  GeminiTokens policy(options);
  policy.Add(1, LimitTerms(0.5), {}, 0);
  policy.Wanted(1, 0);
  EXPECT_EQ(policy.Decide(0).next_ns, 18 * kMs) << "to be ranked when its 20 are over";
}

// Else the token of one that is always busy would go to whoever else waits, whatever it misses.
TEST_F(GeminiTokensTest, AHolderAsksAgainInTimeToBeRanked) {
  Add(1, 0.9);
  Add(2, 0.1);
  Wants(1, 0);
  Wants(2, 0);
  int64_t now_ms = 0;
  int64_t charged_ms[3] = {};
  BusySlice(1, &now_ms, &charged_ms[1]);
  ASSERT_TRUE(Open(2)) << "rule C: it has not run at all";
  BusySlice(2, &now_ms, &charged_ms[2]);
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_TRUE(Open(1)) << turn;
    BusySlice(1, &now_ms, &charged_ms[1]);
  }
}

// Rule J.
TEST_F(GeminiTokensTest, WhoIsGoneKeepsTheTokenUntilTheQuotaIsOver) {
  Add(1, 0.5);
  Add(2, 0.5);
  Wants(1, 0);
  Wants(2, 0);
  policy_.Remove(1, At(10));
  Decide(10);
  EXPECT_FALSE(Open(2));
  Decide(300);
  EXPECT_TRUE(Open(2));
}

// Rule C.
TEST_F(GeminiTokensTest, WhoHasNotRunLatelyGoesFirstIfItAskedFirst) {
  Add(1, 0.9);
  Add(2, 0);
  Wants(1, 0);
  Wants(2, 10);
  Charged(1, 300);
  Decide(300);
  EXPECT_TRUE(Open(2));
}

}  // namespace
}  // namespace prorata::policy
