#include "policy/memory/audit.h"

#include <gtest/gtest.h>

#include <random>

#include "base/bytes.h"
#include "base/clock.h"

namespace prorata::policy {
namespace {

TEST(OverheadAudit, WhatIsThereAllTheTimeIsOverhead) {
  OverheadAudit audit;
  EXPECT_EQ(audit.Sample(130, 100, 100), 0u);
  EXPECT_EQ(audit.Sample(150, 120, 120), 0u);
  EXPECT_EQ(audit.Sample(135, 100, 100), 30u) << "the least of all";
  EXPECT_EQ(audit.Sample(135, 100, 100), 30u);
  EXPECT_EQ(audit.Sample(135, 100, 100), 35u);
}

TEST(OverheadAudit, LessIsBelievedAtOnce) {
  OverheadAudit audit;
  for (int i = 0; i < 5; ++i) audit.Sample(200, 100, 100);
  EXPECT_EQ(audit.overhead_bytes(), 100u);
  EXPECT_EQ(audit.Sample(110, 100, 100), 10u);
  audit.Set(50);
  EXPECT_EQ(audit.Sample(120, 100, 100), 20u) << "after another agent too";
  audit.Set(50);
  EXPECT_EQ(audit.Sample(300, 100, 100), 50u);
}

TEST(OverheadAudit, ARecheckOnlyLowers) {
  OverheadAudit audit;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(audit.Recheck(200, 100, 100), 0u);
  for (int i = 0; i < 3; ++i) audit.Sample(200, 100, 100);
  EXPECT_EQ(audit.Recheck(300, 100, 100), 100u);
  EXPECT_EQ(audit.Recheck(160, 130, 120), 30u);
  EXPECT_EQ(audit.Sample(200, 100, 100), 30u) << "more must be seen again and again";
  EXPECT_EQ(audit.Sample(200, 100, 100), 30u);
  EXPECT_EQ(audit.Sample(200, 100, 100), 100u);
}

TEST(OverheadAudit, OneSampleBetweenTwoReadingsIsNone) {
  OverheadAudit audit;
  for (int i = 0; i < 100; ++i) {
    // Every third figure caught an allocation that both readings of the ledger missed.
    EXPECT_EQ(audit.Sample(i % 3 == 0 ? 500 : 100, 100, 100), 0u);
  }
}

TEST(OverheadAudit, ALedgerAboveTheDeviceGivesNoCredit) {
  OverheadAudit audit;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(audit.Sample(40, 100, 100), 0u);
}

TEST(ClaimWatch, ThreeLooksOfTheLastTwentyAreEnough) {
  using Verdict = ExcessWatch::Verdict;
  ClaimWatch watch;
  const uint64_t far = ExcessWatch::FarAbove(kGiB) + 1;
  EXPECT_EQ(watch.Poll(far, kGiB), Verdict::kNothing);
  EXPECT_EQ(watch.Poll(0, kGiB), Verdict::kNothing);
  EXPECT_EQ(watch.Poll(~uint64_t{0}, kGiB), Verdict::kNothing);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(watch.Poll(kGiB, kGiB), Verdict::kNothing);
  EXPECT_EQ(watch.Poll(far, kGiB), Verdict::kBegan) << "the third, at the twentieth look";
  // Once an episode, whatever it says meanwhile; the episode is over after twenty looks without.
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(watch.Poll(i % 10 == 0 ? far : 0, kGiB), Verdict::kNothing) << i;
  }
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(watch.Poll(0, kGiB), Verdict::kNothing) << i;
  EXPECT_EQ(watch.Poll(0, kGiB), Verdict::kEnded);
}

TEST(ClaimWatch, RarelyOrNearTheLimitIsHonest) {
  ClaimWatch watch;
  for (int i = 0; i < 1'000; ++i) {
    // Two of any twenty looks, and the rest at the mark.
    const bool far = i % 20 == 0 || i % 20 == 7;
    EXPECT_EQ(watch.Poll(far ? ~uint64_t{0} : ExcessWatch::FarAbove(kGiB), kGiB),
              ExcessWatch::Verdict::kNothing)
        << i;
  }
}

// Ten looks a second: the claim of a liar that writes anything at all, far above in two of five.
TEST(ClaimWatch, ALiarAtRandomIsFoundWithinThreeSeconds) {
  uint32_t missed = 0;
  for (uint32_t seed = 1; seed <= 1'000; ++seed) {
    std::mt19937 random(seed);
    ClaimWatch watch;
    bool found = false;
    for (int look = 0; look < 29 && !found; ++look) {
      const uint64_t claimed = random() % 5 < 2 ? ~uint64_t{0} : random() % kGiB;
      found = watch.Poll(claimed, kGiB) == ExcessWatch::Verdict::kBegan;
    }
    missed += !found;
  }
  EXPECT_LE(missed, 1u);
}

TEST(Standstill, IsTimeAndLooksWithoutALesserFigure) {
  constexpr int64_t kStepNs = 10 * kNsPerMs;
  Standstill left;
  int64_t now_ns = 0;
  // It falls, however slowly, for longer than the time; what others have comes and goes beside it.
  for (uint64_t bytes = 1000; bytes > 0; --bytes) {
    for (uint64_t i = 0; i < 20; ++i) {
      EXPECT_FALSE(left.Poll(bytes + (i % 5) * 100, now_ns += kStepNs)) << bytes;
    }
  }
  const int64_t begin_ns = now_ns - 19 * kStepNs;  // the first look that saw the least
  while (!left.Poll(1, now_ns += kStepNs)) {
  }
  EXPECT_EQ(now_ns - begin_ns, Standstill::kNs);
}

TEST(Standstill, ALookAfterALongSleepIsOneLook) {
  Standstill left;
  EXPECT_FALSE(left.Poll(5, 0));
  for (uint32_t i = 2; i < Standstill::kPolls; ++i) {
    EXPECT_FALSE(left.Poll(5, Standstill::kNs + i));
  }
  EXPECT_TRUE(left.Poll(5, 2 * Standstill::kNs));
}

// Threads allocate and free while the figures are read at different moments. The audit's answer
// must not be above what nobody charged at the moment, or at one of the moments of its window.
TEST(OverheadAudit, InRandomRunsItIsWithinWhatThereWas) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    OverheadAudit audit;
    uint64_t hidden = 0;
    std::array<uint64_t, OverheadAudit::kSamples> of_samples{};
    uint64_t charged = 0;
    uint64_t on_device = 0;
    // One step of the program: a charge, then its allocation; a free, then its uncharge. At most
    // one of each in flight, so that a whole allocation cannot come and go within a few steps.
    uint64_t allocating = 0;
    uint64_t freeing = 0;
    auto step = [&] {
      if (allocating > 0) {
        on_device += std::exchange(allocating, 0);
      } else if (freeing > 0) {
        charged -= std::exchange(freeing, 0);
      } else if (random() % 2 == 0) {
        allocating = 1 + random() % 100;
        charged += allocating;
      } else if (on_device > 100) {
        freeing = 1 + random() % 100;
        on_device -= freeing;
      }
    };
    for (int sample = 0; sample < 400; ++sample) {
      if (random() % 50 == 0) hidden = random() % 1'000;
      for (uint32_t i = random() % 20; i > 0; --i) step();
      const uint64_t before = charged;
      if (random() % 2 == 0) step();
      const uint64_t seen = on_device + hidden;
      if (random() % 2 == 0) step();
      of_samples[sample % of_samples.size()] = hidden;
      const uint64_t found = audit.Sample(seen, before, charged);
      const uint64_t most = *std::max_element(of_samples.begin(), of_samples.end());
      ASSERT_LE(found, most) << "seed " << seed << ", sample " << sample;
    }
    // Quiet at last: exact.
    while (allocating > 0 || freeing > 0) step();
    for (uint32_t i = 0; i < OverheadAudit::kSamples; ++i) {
      audit.Sample(on_device + hidden, charged, charged);
    }
    ASSERT_EQ(audit.overhead_bytes(), hidden) << "seed " << seed;
  }
}

TEST(DeviceBaseline, IsTheLeastThatWasThereWhileNobodyWas) {
  DeviceBaseline baseline;
  EXPECT_FALSE(baseline.OfMembers(100).has_value());
  baseline.LearnIdle(30);
  baseline.LearnIdle(20);
  baseline.LearnIdle(90);
  EXPECT_EQ(baseline.OfMembers(100), 80u);
  EXPECT_EQ(baseline.OfMembers(10), 0u);
}

TEST(ExcessWatch, OnceAnEpisode) {
  using Verdict = ExcessWatch::Verdict;
  ExcessWatch watch;
  const uint64_t limit = 8 * kGiB;
  const uint64_t far = ExcessWatch::FarAbove(limit);
  EXPECT_EQ(far, 9 * kGiB);
  EXPECT_EQ(watch.Poll(far, limit), Verdict::kNothing) << "overhead up to a size is honest";
  EXPECT_EQ(watch.Poll(far + 1, limit), Verdict::kNothing);
  EXPECT_EQ(watch.Poll(far + 1, limit), Verdict::kNothing);
  EXPECT_EQ(watch.Poll(far, limit), Verdict::kNothing) << "not in a row";
  EXPECT_EQ(watch.Poll(far + 1, limit), Verdict::kNothing);
  EXPECT_EQ(watch.Poll(far + 1, limit), Verdict::kNothing);
  EXPECT_EQ(watch.Poll(far + 1, limit), Verdict::kBegan);
  EXPECT_TRUE(watch.on());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(watch.Poll(far + 5 - i, limit), Verdict::kNothing);
  EXPECT_EQ(watch.Poll(limit, limit), Verdict::kEnded);
  EXPECT_FALSE(watch.on());
  EXPECT_EQ(watch.Poll(limit, limit), Verdict::kNothing);
  EXPECT_EQ(ExcessWatch::FarAbove(kMiB), 65 * kMiB) << "a small share may have a context";
  EXPECT_EQ(ExcessWatch::FarAbove(~uint64_t{0}), ~uint64_t{0});
}

}  // namespace
}  // namespace prorata::policy
