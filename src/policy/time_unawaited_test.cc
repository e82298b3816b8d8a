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

  // It waits for its next turn, says that it has drained, and what it is charged stands as it is.
  void Drain(LeasePolicy::Key key) {
    charged_at_ns_ = now_ns_;
    sharing_.Report(key, charged_[key], 0);
    sharing_.Wanted(key, now_ns_);
    sharing_.Drained(key, now_ns_);
    sharing_.Decide(now_ns_);
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

// One that used its turn to the end wants another as a rule: whether it does is seen when that of
// the next one ends.
TEST_F(Unawaited, OfOneThatWasBusyThoughNobodyKnowsThatItWaits) {
  Begin();
  Run(1, 20 * kMs);
  now_ns_ += 1'960 * kUs;
  Look(1, 40 * kUs);
  ASSERT_TRUE(sharing_.State(2).open);
  EXPECT_TRUE(sharing_.DrainUnawaited(1));
  sharing_.Idle(2, now_ns_);
  EXPECT_FALSE(sharing_.DrainUnawaited(1)) << "it has the device as soon as it asks";
}

TEST_F(Unawaited, NotOfOneThatLeftItsTurnUnused) {
  Begin();
  // The other one has a claim, and is let in at once.
  sharing_.Report(1, 20 * kUs, 40 * kUs);
  sharing_.ExpectEnd(1, now_ns_ + 40 * kUs);
  sharing_.Decide(now_ns_);
  ASSERT_TRUE(sharing_.Draining(1));
  sharing_.Decide(now_ns_);
  ASSERT_TRUE(sharing_.State(2).open);
  EXPECT_FALSE(sharing_.DrainUnawaited(1)) << "the word of its draining tells whether it waits";
  sharing_.Wanted(1, now_ns_);
  EXPECT_TRUE(sharing_.DrainUnawaited(1));
}

// Seen when this was new: with nobody who could be let in at once, the holder's turn had no end.
TEST_F(Unawaited, TheNextTurnEndsInTime) {
  Begin();
  HandOver();
  constexpr int64_t kTurnNs = 16'250 * kUs;  // of two
  EXPECT_LE(decisions_.next_ns, now_ns_ + kTurnNs);
  const int64_t opened_ns = now_ns_;
  while (sharing_.State(2).open && now_ns_ < opened_ns + 100 * kMs) {
    now_ns_ = std::max(now_ns_ + 1, decisions_.next_ns);
    sharing_.DrainedSince(1, opened_ns + 40 * kUs);
    if (sharing_.Draining(1)) sharing_.Drained(1, now_ns_);
    decisions_ = Look(2, 2 * kMs);
  }
  EXPECT_LE(now_ns_, opened_ns + kTurnNs);
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

// Nothing depends on its word: the next one is let in by when it should have drained.
TEST_F(Unawaited, IsForeseenWhileItsEndIsKnown) {
  Begin();
  Run(1, 20 * kMs);
  ASSERT_TRUE(sharing_.Draining(1));
  EXPECT_TRUE(sharing_.DrainForeseen(1));
  EXPECT_FALSE(sharing_.DrainForeseen(2));
  sharing_.Report(1, charged_[1], kMs);
  sharing_.ExpectEnd(1, LeasePolicy::kNever);
  sharing_.Decide(now_ns_);
  EXPECT_FALSE(sharing_.DrainForeseen(1)) << "it does not say when";
}

TEST_F(Unawaited, IsNotForeseenOfAGangOrForNobody) {
  Begin();
  Run(1, 20 * kMs);
  ASSERT_TRUE(sharing_.DrainForeseen(1));
  sharing_.SetGang(1, LeasePolicy::GangTurn::kAway, now_ns_);
  EXPECT_FALSE(sharing_.DrainForeseen(1)) << "it has drained when all of it has";
  TimeSharing alone;
  ComputeTerms terms;
  terms.limit.ppm = 300'000;
  alone.Add(1, terms, 0, 0);
  alone.Wanted(1, 0);
  for (int64_t now_ns = 0; now_ns < kMs * 100 && !alone.Draining(1); now_ns += 100 * kUs) {
    alone.Report(1, static_cast<uint64_t>(now_ns), 2 * kMs);
    alone.ExpectEnd(1, now_ns + 2 * kMs);
    alone.Decide(now_ns);
  }
  ASSERT_TRUE(alone.Draining(1)) << "its limit is used up";
  EXPECT_FALSE(alone.DrainForeseen(1)) << "nobody is let in then";
}

// Late for once, its next drain is waited for, and no other; late again and again, more of them.
TEST_F(Unawaited, IsTrustedAgainTheSoonerTheRarerItIsLate) {
  Begin();
  // One that is trusted ends so much later than expected. Was it?
  const auto turn = [this](LeasePolicy::Key key, int64_t late_ns) {
    Run(key, now_ns_ + 40 * kMs);
    const bool foreseen = sharing_.DrainForeseen(key);
    now_ns_ += 2 * kMs + (foreseen ? late_ns : 0);
    charged_[key] += static_cast<uint64_t>(now_ns_ - charged_at_ns_);
    Drain(key);
    return foreseen;
  };
  const auto waited_for = [&](int64_t late_ns) {
    int turns = 0;
    for (; !turn(1, late_ns) && turns < 100; ++turns) turn(2, 0);
    turn(2, 0);
    return turns;
  };
  EXPECT_EQ(waited_for(0), 0);
  for (const int turns : {0, 1, 2, 4, 8, 8}) EXPECT_EQ(waited_for(kMs), turns);
  EXPECT_EQ(waited_for(0), 8);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(waited_for(0), 0);
  EXPECT_EQ(waited_for(kMs), 0);
  EXPECT_EQ(waited_for(0), 1) << "what was long ago does not count";
}

// It had the device for long, used little of it and said late that it has drained. In its next turn
// two members run side by side and each counts the other's time: it pays for what passes, no more.
TEST_F(Unawaited, WhatATurnLeftUnusedIsNotChargedInTheNext) {
  Begin();
  Run(1, 20 * kMs);
  now_ns_ += 30 * kMs;
  Drain(1);
  ASSERT_TRUE(sharing_.State(2).open);
  Run(2, now_ns_ + 40 * kMs);
  now_ns_ += 2 * kMs;
  Drain(2);
  ASSERT_TRUE(sharing_.State(1).open);
  const double before_ns = sharing_.State(1).lag_ns;
  now_ns_ += 5 * kMs;
  sharing_.Report(1, charged_[1] + 15 * kMs, 0);
  sharing_.Decide(now_ns_);
  const double paid_ns = before_ns - sharing_.State(1).lag_ns;
  EXPECT_GE(paid_ns, static_cast<double>(2 * kMs));
  EXPECT_LE(paid_ns, static_cast<double>(3 * kMs + kMs / 10)) << "half of what it pays it earns";
}

}  // namespace
}  // namespace prorata::policy
