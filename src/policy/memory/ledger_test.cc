#include "policy/memory/ledger.h"

#include <gtest/gtest.h>

#include <random>

#include "base/bytes.h"

namespace prorata::policy {
namespace {

using LedgerVerdict = Ledger::Verdict;

TEST(Ledger, GrowsInChunksWhileThereIsRoom) {
  Ledger ledger(4 * kGiB, 4);
  ledger.Admit(0);
  const std::vector<uint64_t> used(4, 0);
  EXPECT_EQ(ledger.Request(0, kMiB, used).grant_bytes, 64 * kMiB);
  EXPECT_EQ(ledger.Request(0, 2 * kMiB, used).grant_bytes, 64 * kMiB);
  EXPECT_EQ(ledger.Request(0, kGiB, used).grant_bytes, kGiB);
  EXPECT_EQ(ledger.granted_bytes(), kGiB);
}

TEST(Ledger, GrantsTheVeryLastByteAndNotOneMore) {
  Ledger ledger(kGiB, 2);
  ledger.Admit(0);
  const std::vector<uint64_t> used = {kGiB - 1, 0};
  EXPECT_EQ(ledger.Request(0, kGiB - 1, used).verdict, LedgerVerdict::kGranted);
  EXPECT_EQ(ledger.Request(0, kGiB, used).verdict, LedgerVerdict::kGranted);
  EXPECT_EQ(ledger.Request(0, kGiB + 1, used).verdict, LedgerVerdict::kRefused);
}

TEST(Ledger, AChargeThatPassesTakesItsGrantAlong) {
  Ledger ledger(100, 3);
  for (uint32_t i = 0; i < 3; ++i) ledger.Admit(i);
  const std::vector<uint64_t> used = {0, 0, 0};
  ledger.Request(0, 60, used);
  ledger.Move(0, 1, 50);
  EXPECT_EQ(ledger.grant_bytes(0), 10u);
  EXPECT_EQ(ledger.grant_bytes(1), 50u);
  ledger.Move(0, 1, 50);  // whatever a member says, the sum stays
  EXPECT_EQ(ledger.granted_bytes(), 60u);
  ledger.Acknowledge(2, 70);  // nobody was charged, and the device has it
  EXPECT_TRUE(ledger.OverLimit());
  EXPECT_EQ(ledger.Request(1, 61, std::vector<uint64_t>{10, 50, 70}).verdict,
            LedgerVerdict::kRefused);
}

TEST(Ledger, RecallsTheLargestSlackAndOnlyThat) {
  Ledger ledger(100, 3);
  for (uint32_t i = 0; i < 3; ++i) ledger.Admit(i);
  std::vector<uint64_t> used = {0, 0, 0};
  EXPECT_EQ(ledger.Request(0, 60, used).verdict, LedgerVerdict::kGranted);
  EXPECT_EQ(ledger.Request(1, 34, used).verdict, LedgerVerdict::kGranted);
  used = {10, 30, 0};
  const auto decision = ledger.Request(2, 40, used);
  ASSERT_EQ(decision.verdict, LedgerVerdict::kRecall);
  EXPECT_EQ(decision.recall, std::vector<uint32_t>{0});
  const uint64_t target = ledger.RecallTarget(0, used[0]);
  EXPECT_EQ(target, 10u);
  EXPECT_EQ(ledger.FinishRecall(0, target, 12), 12u);  // it charged 2 in between
  EXPECT_EQ(ledger.Request(2, 40, used).grant_bytes, 40u);
}

TEST(Ledger, KeepsWhatADepartedMemberHeldUntilTheDeviceShowsItGone) {
  Ledger ledger(100, 2);
  ledger.Admit(0);
  ledger.Admit(1);
  const std::vector<uint64_t> used = {0, 0};
  EXPECT_EQ(ledger.Request(0, 80, used).verdict, LedgerVerdict::kGranted);
  ledger.Depart(0);
  EXPECT_EQ(ledger.Request(1, 50, used).verdict, LedgerVerdict::kRefused);
  EXPECT_GE(ledger.Release(0), 80u);
  EXPECT_EQ(ledger.Request(1, 100, used).verdict, LedgerVerdict::kGranted);
}

TEST(Ledger, ALimitLoweredBelowUseGrantsNothingUntilUseFell) {
  Ledger ledger(100, 2);
  ledger.Admit(0);
  ledger.Admit(1);
  std::vector<uint64_t> used = {60, 30};
  EXPECT_EQ(ledger.Request(0, 60, used).verdict, LedgerVerdict::kGranted);
  EXPECT_EQ(ledger.Request(1, 30, used).verdict, LedgerVerdict::kGranted);
  ledger.SetLimit(50);
  for (const uint32_t slot : ledger.RecallsOverLimit(used)) {
    ledger.FinishRecall(slot, ledger.RecallTarget(slot, used[slot]), used[slot]);
  }
  EXPECT_EQ(ledger.granted_bytes(), 90u);
  EXPECT_EQ(ledger.Request(1, 31, used).verdict, LedgerVerdict::kRefused);
  used[0] = 10;
  auto decision = ledger.Request(1, 40, used);
  ASSERT_EQ(decision.verdict, LedgerVerdict::kRecall);
  ledger.FinishRecall(0, ledger.RecallTarget(0, 10), 10);
  EXPECT_EQ(ledger.Request(1, 40, used).verdict, LedgerVerdict::kGranted);
  EXPECT_EQ(ledger.Request(1, 41, used).verdict, LedgerVerdict::kRefused);
}

TEST(Ledger, ALieCannotRaiseAGrant) {
  Ledger ledger(100, 2);
  ledger.Admit(0);
  const std::vector<uint64_t> used = {0, 0};
  const uint64_t grant = ledger.Request(0, 20, used).grant_bytes;
  EXPECT_EQ(ledger.RecallTarget(0, ~uint64_t{0}), grant);
  EXPECT_EQ(ledger.FinishRecall(0, 0, ~uint64_t{0}), grant);
  EXPECT_EQ(ledger.granted_bytes(), grant);
}

TEST(Ledger, GrantsNothingBeyondWhatTheDeviceGave) {
  Ledger ledger(100, 3);
  std::vector<uint64_t> used(3, 0);
  ledger.Admit(0);
  ledger.Admit(1);
  ledger.SetCeiling(0);
  auto decision = ledger.Request(0, 40, used);
  EXPECT_EQ(decision.verdict, LedgerVerdict::kBeyond);
  EXPECT_EQ(decision.sum_bytes, 40u);
  EXPECT_TRUE(decision.recall.empty());
  ledger.SetCeiling(60);
  EXPECT_EQ(ledger.Request(0, 40, used).verdict, LedgerVerdict::kGranted);
  // Its own slack helps a little, which the caller may take or leave.
  used[0] = 30;
  decision = ledger.Request(1, 50, used);
  EXPECT_EQ(decision.verdict, LedgerVerdict::kBeyond);
  EXPECT_EQ(decision.sum_bytes, ledger.granted_bytes() + 50);
  EXPECT_EQ(decision.recall, std::vector<uint32_t>{0});
  // Beyond the limit it is refused, whatever the device would give.
  EXPECT_EQ(ledger.Request(1, 71, used).verdict, LedgerVerdict::kRefused);
  ledger.SetCeiling(1000);
  EXPECT_EQ(ledger.Request(1, 60, used).verdict, LedgerVerdict::kGranted);
  EXPECT_EQ(ledger.granted_bytes(), 100u);
}

// Members allocate, free, die and come; limits change; one member lies. `kUnknownUse` too.
class RandomRun {
 public:
  explicit RandomRun(uint32_t seed) : random_(seed), ledger_(Pick(1, 1 << 20), kSlots) {
    used_.assign(kSlots, 0);
  }

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      Step();
      Check();
      if (::testing::Test::HasFailure()) return;
    }
  }

 private:
  static constexpr uint32_t kSlots = 12;
  static constexpr uint32_t kLiar = 3;

  uint64_t Pick(uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(random_);
  }

  void Recall(uint32_t slot) {
    const uint64_t target = ledger_.RecallTarget(slot, used_[slot]);
    // The member goes on between A1 and A2: it frees, or charges up to its old grant (before A1).
    if (Pick(0, 3) == 0) used_[slot] = Pick(0, ledger_.grant_bytes(slot));
    ledger_.FinishRecall(slot, target, used_[slot]);
  }

  void Request(uint32_t slot) {
    const uint64_t needed = used_[slot] + Pick(1, ledger_.limit_bytes());
    for (int round = 0; round < 64; ++round) {
      const bool was_over = ledger_.OverLimit();
      const uint64_t before = ledger_.granted_bytes();
      const auto decision = ledger_.Request(slot, needed, used_);
      if (was_over) {
        EXPECT_LE(ledger_.granted_bytes(), before);
      }
      if (decision.verdict == LedgerVerdict::kGranted) {
        EXPECT_GE(ledger_.grant_bytes(slot), needed);
        if (slot != kLiar) used_[slot] = needed;
        return;
      }
      if (decision.verdict == LedgerVerdict::kRefused) {
        ExpectReallyFull(slot, needed, ledger_.limit_bytes());
        return;
      }
      if (decision.verdict == LedgerVerdict::kBeyond) {
        EXPECT_GT(decision.sum_bytes, ledger_.ceiling_bytes());
        EXPECT_LE(decision.sum_bytes, ledger_.limit_bytes());
        if (Pick(0, 1) == 0) {  // the device has it
          ledger_.SetCeiling(decision.sum_bytes);
        } else if (decision.recall.empty()) {
          ExpectReallyFull(slot, needed, ledger_.ceiling_bytes());
          return;
        }
        for (const uint32_t other : decision.recall) Recall(other);
        continue;
      }
      ASSERT_FALSE(decision.recall.empty());
      for (const uint32_t other : decision.recall) Recall(other);
    }
  }

  // Refused only if the share is full: what others use and the dead hold leaves no room.
  void ExpectReallyFull(uint32_t slot, uint64_t needed, uint64_t bound) {
    uint64_t others = 0;
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (i == slot || ledger_.state(i) == Ledger::SlotState::kFree) continue;
      const bool dead = ledger_.state(i) == Ledger::SlotState::kDeparted;
      others += dead ? ledger_.grant_bytes(i) : std::min(used_[i], ledger_.grant_bytes(i));
    }
    EXPECT_GT(others + needed, bound);
  }

  void Step() {
    const auto slot = static_cast<uint32_t>(Pick(0, kSlots - 1));
    switch (ledger_.state(slot)) {
      case Ledger::SlotState::kFree:
        ledger_.Admit(slot);
        used_[slot] = slot == kLiar ? Pick(0, ~uint64_t{0}) : 0;
        return;
      case Ledger::SlotState::kDeparted:
        ledger_.Release(slot);
        return;
      case Ledger::SlotState::kAlive:
        break;
    }
    switch (Pick(0, 10)) {
      case 0:
        ledger_.Depart(slot);
        return;
      case 10:
        ledger_.SetCeiling(Pick(0, 1 << 20));
        return;
      case 1:
        ledger_.SetLimit(Pick(1, 1 << 20));
        for (const uint32_t i : ledger_.RecallsOverLimit(used_)) Recall(i);
        return;
      case 2:
      case 3:
      case 4:
        used_[slot] = slot == kLiar ? Pick(0, ~uint64_t{0}) : Pick(0, used_[slot]);
        return;
      default:
        if (slot != kLiar) return Request(slot);
        if (Pick(0, 1) == 0) used_[slot] = Ledger::kUnknownUse;
        ledger_.Request(slot, Pick(0, 1 << 20), used_);
    }
  }

  void Check() {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < kSlots; ++i) {
      sum += ledger_.grant_bytes(i);
      if (i != kLiar && ledger_.state(i) == Ledger::SlotState::kAlive) {
        EXPECT_LE(used_[i], ledger_.grant_bytes(i)) << "slot " << i;
      }
    }
    EXPECT_EQ(sum, ledger_.granted_bytes());
    if (sum > ledger_.ceiling_bytes()) {
      EXPECT_LE(sum, sum_before_);
    }
    sum_before_ = sum;
  }

  std::mt19937 random_;
  Ledger ledger_;
  std::vector<uint64_t> used_;
  uint64_t sum_before_ = 0;
};

TEST(Ledger, HoldsItsInvariantsInRandomRuns) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun(seed).Run(400);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace prorata::policy
