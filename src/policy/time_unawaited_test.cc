// Drains of which nobody waits to hear: the next share was let in as the work was about to be done.

#include <gtest/gtest.h>

#include "policy/time_sharing.h"

namespace prorata::policy {
namespace {

constexpr int64_t kUs = 1'000, kMs = 1'000'000;

// Share 1 has the device and is called back for share 2, which is let in a moment before share 1
// has drained.
class Unawaited : public testing::Test {
 protected:
  void Begin(int32_t priority_of_1 = 0, double limit_of_1 = 1, double request_of_1 = 0.5) {
    for (const LeasePolicy::Key key : {1, 2}) {
      ComputeTerms terms;
      const double request = key == 1 ? request_of_1 : 1 - request_of_1;
      terms.request.ppm = static_cast<uint32_t>(request * Fraction::kOne);
      if (key == 1) terms.priority = priority_of_1;
      if (key == 1) terms.limit.ppm = static_cast<uint32_t>(limit_of_1 * Fraction::kOne);
      sharing_.Add(key, terms, 0, 0);
    }
    sharing_.Wanted(1, 0);
    sharing_.Decide(0);
    sharing_.Wanted(2, 0);
  }
  void Run(LeasePolicy::Key key, int64_t until_ns) {
    for (; now_ns_ < until_ns && sharing_.State(key).open; now_ns_ += 100 * kUs) Look(key, 2 * kMs);
  }
  LeasePolicy::Decisions Look(LeasePolicy::Key key, int64_t backlog_ns) {
    charged_[key] += static_cast<uint64_t>(now_ns_ - charged_at_ns_);
    charged_at_ns_ = now_ns_;
    sharing_.Report(key, charged_[key], backlog_ns);
    sharing_.ExpectEnd(key, backlog_ns > 0 ? now_ns_ + backlog_ns : LeasePolicy::kNever);
    return sharing_.Decide(now_ns_);
  }
  void HandOver() {
    Run(1, 20 * kMs);
    ASSERT_TRUE(sharing_.Draining(1));
    EXPECT_FALSE(sharing_.DrainUnawaited(1)) << "the next one is not in yet";
    sharing_.Wanted(1, now_ns_);
    now_ns_ += 1'960 * kUs;
    decisions_ = Look(1, 40 * kUs);
    ASSERT_TRUE(sharing_.State(2).open);
  }

  TimeSharing sharing_;
  LeasePolicy::Decisions decisions_;
  int64_t now_ns_ = 100 * kUs;
  int64_t charged_at_ns_ = 0;
  uint64_t charged_[3] = {};
};

TEST_F(Unawaited, OnceTheNextIsInAndTheWaitIsKnown) {
  Begin();
  HandOver();
  EXPECT_TRUE(sharing_.DrainUnawaited(1));
  sharing_.Drained(1, now_ns_ + kMs);
  EXPECT_FALSE(sharing_.DrainUnawaited(1));
}

TEST_F(Unawaited, NotWhileNobodyKnowsThatItWaits) {
  Begin();
  Run(1, 20 * kMs);
  now_ns_ += 1'960 * kUs;
  Look(1, 40 * kUs);
  ASSERT_TRUE(sharing_.State(2).open);
  EXPECT_FALSE(sharing_.DrainUnawaited(1)) << "the word of its draining tells of it";
}

// Seen when this was new: with nobody who could be let in at once, the holder's turn had no end.
TEST_F(Unawaited, TheNextTurnEndsInTime) {
  Begin();
  HandOver();
  EXPECT_LE(decisions_.next_ns, now_ns_ + 13 * kMs);
  const int64_t opened_ns = now_ns_;
  while (sharing_.State(2).open && now_ns_ < opened_ns + 100 * kMs) {
    now_ns_ = std::max(now_ns_ + 1, decisions_.next_ns);
    sharing_.DrainedSince(1, opened_ns + 40 * kUs);
    if (sharing_.Draining(1)) sharing_.Drained(1, now_ns_);
    decisions_ = Look(2, 2 * kMs);
  }
  EXPECT_LE(now_ns_, opened_ns + 13 * kMs);
}

TEST_F(Unawaited, NotOfOneThatWokeAndHasAClaim) {
  Begin();
  // It is idle, the other is let in, and it wakes while its last kernel is still on the device.
  sharing_.Report(1, 100 * kUs, 0);
  sharing_.Idle(1, now_ns_);
  sharing_.Decide(now_ns_);
  ASSERT_TRUE(sharing_.State(2).open);
  EXPECT_FALSE(sharing_.DrainUnawaited(1));
  sharing_.Wanted(1, now_ns_);
  ASSERT_TRUE(sharing_.Draining(1));
  EXPECT_LE(sharing_.State(1).lag_ns, 0);
  EXPECT_FALSE(sharing_.DrainUnawaited(1)) << "it is let in as soon as it has drained";
}

TEST_F(Unawaited, NotOfOneThatIsAboveTheOther) {
  Begin(/*priority_of_1=*/1, /*limit_of_1=*/0.3);
  Run(1, 100 * kMs);
  ASSERT_TRUE(sharing_.Draining(1)) << "its limit is used up";
  sharing_.Wanted(1, now_ns_);
  now_ns_ += 1'960 * kUs;
  Look(1, 40 * kUs);
  ASSERT_TRUE(sharing_.State(2).open);
  EXPECT_FALSE(sharing_.DrainUnawaited(1));
}

// It had but a moment, and is owed most of the device: it is not made to wait for a whole turn.
TEST_F(Unawaited, NotOfOneThatIsOwed) {
  Begin(0, 1, /*request_of_1=*/0.9);
  HandOver();
  sharing_.Report(2, charged_[2] + 9 * kMs, 0);
  sharing_.Decide(now_ns_ + 9 * kMs);
  ASSERT_TRUE(sharing_.State(2).open);
  ASSERT_TRUE(sharing_.Draining(1));
  EXPECT_GT(sharing_.State(1).lag_ns, 0);
  EXPECT_FALSE(sharing_.DrainUnawaited(1));
}

// The word comes with the next look, a turn later: the share was let in until it had drained, and
// can have used no more than that.
TEST_F(Unawaited, WhatItMayBeChargedForEndsWhenItHadDrained) {
  Begin();
  HandOver();
  const double before_ns = sharing_.State(2).lag_ns - sharing_.State(1).lag_ns;
  const int64_t drained_ns = now_ns_ + 40 * kUs;
  now_ns_ += 10 * kMs;
  sharing_.Report(1, charged_[1] + 10 * kMs, 0);  // two members count each other's time
  sharing_.DrainedSince(1, drained_ns);
  sharing_.Drained(1, now_ns_);
  const double after_ns = sharing_.State(2).lag_ns - sharing_.State(1).lag_ns;
  EXPECT_LE(after_ns - before_ns, static_cast<double>(2 * kMs));
}

// An end that was told late is not a late end: the next drain is gone by again.
TEST_F(Unawaited, IsNotDistrustedForIt) {
  Begin();
  HandOver();
  const int64_t drained_ns = now_ns_ + 40 * kUs;
  now_ns_ += 11 * kMs;
  sharing_.DrainedSince(1, drained_ns);
  sharing_.Drained(1, now_ns_);
  charged_at_ns_ = drained_ns;
  Run(2, now_ns_ + 20 * kMs);
  sharing_.Wanted(2, now_ns_);
  sharing_.Drained(2, now_ns_);
  Look(1, 0);
  ASSERT_TRUE(sharing_.State(1).open);
  Run(1, now_ns_ + 20 * kMs);
  now_ns_ += 1'960 * kUs;
  Look(1, 40 * kUs);
  EXPECT_TRUE(sharing_.State(2).open);
}

}  // namespace
}  // namespace prorata::policy
