#include "policy/memory/shared_blocks.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace prorata::policy {
namespace {

using Kind = SharedBlocks::Action::Kind;
using Opened = SharedBlocks::Opened;
constexpr SharedBlocks::Block kBlock = {0, 100};
constexpr uint64_t kShare = 1, kOther = 2;

TEST(SharedBlocks, TheChargePassesToTheOldestHolderAndOnlyThenIsTheFirstSettled) {
  SharedBlocks blocks;
  ASSERT_TRUE(blocks.Note(kShare, 0, 7, kBlock, {1, 1}, true));
  EXPECT_EQ(blocks.Open(kShare, 1, {1, 1}).opened, Opened::kHeld);
  EXPECT_EQ(blocks.Open(kShare, 2, {1, 1}).number, 7u);
  auto actions = blocks.LetGo(kShare, 0, 7, 33, true);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kAsk);
  EXPECT_EQ(actions[0].slot, 1u);
  EXPECT_TRUE(blocks.Owes(kShare, 0));
  actions = blocks.Taken(kShare, 1, 7, true, true);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].kind, Kind::kMoved);
  EXPECT_EQ(actions[0].from, 0u);
  EXPECT_EQ(actions[0].slot, 1u);
  EXPECT_EQ(actions[0].bytes, 100u);
  EXPECT_EQ(actions[1].kind, Kind::kSettled);
  EXPECT_EQ(actions[1].slot, 0u);
  EXPECT_EQ(actions[1].id, 33u);
  EXPECT_FALSE(blocks.Owes(kShare, 0));
  EXPECT_TRUE(blocks.Owes(kShare, 1));
}

TEST(SharedBlocks, OneThatClosedMeanwhileIsSkipped) {
  SharedBlocks blocks;
  blocks.Note(kShare, 0, 7, kBlock, {1, 1}, true);
  blocks.Open(kShare, 1, {1, 1});
  blocks.Open(kShare, 2, {1, 1});
  blocks.LetGo(kShare, 0, 7, 33, true);
  auto actions = blocks.Taken(kShare, 1, 7, false, true);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kAsk);
  EXPECT_EQ(actions[0].slot, 2u);
  // The one that is asked dies: nobody is left, and the payer is settled.
  actions = blocks.Depart(kShare, 2, true);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kSettled);
  EXPECT_EQ(actions[0].id, 33u);
  EXPECT_EQ(blocks.blocks(), 0u);
  EXPECT_EQ(blocks.names(), 0u);
}

TEST(SharedBlocks, ADeadPayerOwesUntilAHolderHasTaken) {
  SharedBlocks blocks;
  blocks.Note(kShare, 0, 7, kBlock, {1, 1}, true);
  blocks.Open(kShare, 1, {1, 1});
  const auto actions = blocks.Depart(kShare, 0, true);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kAsk);
  EXPECT_TRUE(blocks.Owes(kShare, 0));
  blocks.Taken(kShare, 1, 7, true, true);
  EXPECT_FALSE(blocks.Owes(kShare, 0));
}

TEST(SharedBlocks, AnotherShareDoesNotHoldIt) {
  SharedBlocks blocks;
  blocks.Note(kShare, 0, 7, kBlock, {1, 1}, true);
  EXPECT_EQ(blocks.Open(kOther, 5, {1, 1}).opened, Opened::kForeign);
  EXPECT_EQ(blocks.Open(kOther, 5, {1, 2}).opened, Opened::kUnknown);
  EXPECT_TRUE(blocks.Depart(kShare, 0, true).at(0).kind == Kind::kSettled) << "nobody is asked";
  EXPECT_EQ(blocks.blocks(), 0u);
}

TEST(SharedBlocks, ANameCannotBeTakenAway) {
  SharedBlocks blocks;
  blocks.Note(kShare, 0, 7, kBlock, {1, 1}, true);
  blocks.Note(kOther, 3, 8, kBlock, {1, 1}, true);
  EXPECT_EQ(blocks.Open(kShare, 1, {1, 1}).number, 7u);
  EXPECT_EQ(blocks.Open(kOther, 4, {1, 1}).opened, Opened::kForeign);
}

TEST(SharedBlocks, NothingIsSettledBeforeAllHaveJoinedAgain) {
  SharedBlocks blocks;
  blocks.Note(kShare, 0, 7, kBlock, {1, 1}, true);
  EXPECT_TRUE(blocks.LetGo(kShare, 0, 7, 33, false).empty()) << "who else holds it is not known";
  blocks.Note(kShare, 1, 7, kBlock, SharedBlocks::kNoName, false);
  const auto actions = blocks.Resume(kShare, true);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kAsk);
  EXPECT_EQ(actions[0].slot, 1u);
}

TEST(SharedBlocks, APayerThatDiedWithTheAgentIsFollowed) {
  SharedBlocks blocks;
  blocks.Note(kShare, 1, 7, kBlock, SharedBlocks::kNoName, false);
  EXPECT_TRUE(blocks.Owes(kShare, 0)) << "it may be the departed one's";
  EXPECT_EQ(blocks.Resume(kShare, true).at(0).slot, 1u);
  const auto actions = blocks.Taken(kShare, 1, 7, true, true);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kMoved);
  EXPECT_FALSE(blocks.Owes(kShare, 0));
}

TEST(SharedBlocks, AMemberCanOnlyMakeSoMany) {
  SharedBlocks blocks;
  for (uint64_t i = 1; i <= SharedBlocks::kMaxBlocks; ++i) {
    ASSERT_TRUE(blocks.Note(kShare, 0, i, kBlock, {i, 0}, true));
  }
  EXPECT_FALSE(blocks.Note(kShare, 0, 99999, kBlock, {99999, 0}, true));
  EXPECT_TRUE(blocks.Note(kShare, 1, 99999, kBlock, {99999, 0}, true));
  blocks.LetGo(kShare, 0, 1, 1, true);
  EXPECT_TRUE(blocks.Note(kShare, 0, 99998, kBlock, {99998, 0}, true)) << "one ended";
  for (uint64_t i = 2; i <= SharedBlocks::kMaxNames; ++i) {
    ASSERT_TRUE(blocks.Note(kShare, 0, 2, kBlock, {200000 + i, 0}, true));
  }
  EXPECT_FALSE(blocks.Note(kShare, 0, 2, kBlock, {300000, 0}, true));
  blocks.ForgetShare(kShare);
  EXPECT_EQ(blocks.blocks(), 0u);
  EXPECT_EQ(blocks.names(), 0u);
}

// Members open, close, free and die at random; answers come late and in any order. At every moment
// a block that somebody holds is charged to somebody.
class RandomMembers {
 public:
  explicit RandomMembers(unsigned seed) : random_(seed) {}

  void Step() {
    const auto slot = static_cast<uint32_t>(random_() % kMembers);
    const uint64_t number = 1 + random_() % kBlocks;
    const uint64_t action = random_() % 10;
    if (action < 3) {
      Make(slot, number);
    } else if (action < 6) {
      Open(slot, number);
    } else if (action < 8) {
      Close(slot, number);
    } else if (action < 9) {
      Answer();
    } else if (random_() % 5 == 0) {
      Die(slot);
    }
    Check();
  }
  void Finish() {
    for (uint32_t slot = 0; slot < kMembers; ++slot) Die(slot);
    EXPECT_EQ(blocks_.blocks(), 0u);
    EXPECT_EQ(blocks_.names(), 0u);
  }

 private:
  static constexpr uint32_t kMembers = 5;
  static constexpr uint64_t kBlocks = 3;

  void Do(const SharedBlocks::Actions& actions) {
    for (const auto& action : actions) {
      if (action.kind == Kind::kAsk) asked_.emplace_back(action.slot, action.number);
      if (action.kind == Kind::kSettled) charged_[action.number].erase(action.slot);
    }
  }
  void Make(uint32_t slot, uint64_t number) {
    if (!holders_[number].empty() || !charged_[number].empty()) return;
    ASSERT_TRUE(blocks_.Note(kShare, slot, number, kBlock, {number, 1}, true));
    holders_[number].insert(slot);
    charged_[number].insert(slot);
  }
  void Open(uint32_t slot, uint64_t number) {
    if (holders_[number].empty() || holders_[number].contains(slot)) return;
    if (charged_[number].contains(slot)) return;  // it is letting go just now
    if (blocks_.Open(kShare, slot, {number, 1}).opened == Opened::kHeld) {
      holders_[number].insert(slot);
    }
  }
  void Close(uint32_t slot, uint64_t number) {
    if (holders_[number].erase(slot) == 0) return;
    Do(blocks_.LetGo(kShare, slot, number, 1, true));
  }
  void Answer() {
    if (asked_.empty()) return;
    const auto [slot, number] = asked_.front();
    asked_.pop_front();
    const bool taken = holders_[number].contains(slot);
    if (taken) charged_[number].insert(slot);
    Do(blocks_.Taken(kShare, slot, number, taken, true));
  }
  void Die(uint32_t slot) {
    std::erase_if(asked_, [slot](const auto& ask) { return ask.first == slot; });
    for (auto& [number, holders] : holders_) holders.erase(slot);
    Do(blocks_.Depart(kShare, slot, true));
    // Its grant stands until nothing is owed any more; here that is: until it is settled.
    if (blocks_.Owes(kShare, slot)) return;
    for (auto& [number, charged] : charged_) charged.erase(slot);
  }
  void Check() {
    for (const auto& [number, holders] : holders_) {
      EXPECT_TRUE(holders.empty() || !charged_[number].empty()) << "block " << number;
    }
  }

  std::mt19937 random_;
  SharedBlocks blocks_;
  std::map<uint64_t, std::set<uint32_t>> holders_, charged_;
  std::deque<std::pair<uint32_t, uint64_t>> asked_;
};

TEST(SharedBlocks, SomebodyIsAlwaysCharged) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    RandomMembers members(seed);
    for (int i = 0; i < 200 && !HasFailure(); ++i) members.Step();
    members.Finish();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace prorata::policy
