#include "agent/share/shares.h"

#include <gtest/gtest.h>

#include "agent/testing/testing_share.h"

namespace prorata::agent {
namespace {

using testing::TestShares;
using testing::TestUsage;

TEST(SharesTest, AShareWithoutANameGetsTheFirstThatIsFree) {
  TestShares shares;
  EXPECT_EQ(shares.table().FreeName(), "share-1");
  Share& first = shares.Add("share-1");
  shares.Add("share-3");
  EXPECT_EQ(shares.table().FreeName(), "share-2");
  shares.table().Remove(first.id());
  EXPECT_EQ(shares.table().FreeName(), "share-1");
}

TEST(SharesTest, AnIdIsNeverThatOfAnother) {
  TestShares shares;
  const uint64_t gone = shares.Add("a").id();
  shares.table().Remove(gone);
  EXPECT_TRUE(shares.table().empty());
  EXPECT_NE(shares.Add("a").id(), gone);
  EXPECT_EQ(shares.table().Find(gone), nullptr);
}

TEST(SharesTest, AShareIsFoundOnItsDevicesByItsOwnOrder) {
  TestShares shares;
  Share& both = shares.Add("both", {2, 0});
  Share& one = shares.Add("one", {0});
  const auto on = shares.table().On(0);
  ASSERT_EQ(on.size(), 2u);
  EXPECT_EQ(on[0].share, &both);
  EXPECT_EQ(on[0].index, 1u);
  EXPECT_EQ(on[1].share, &one);
  EXPECT_EQ(on[1].index, 0u);
  EXPECT_TRUE(shares.table().On(1).empty());
}

TEST(SharesTest, AnAnswerThatComesLateIsNotTheNextMembersOfTheSlot) {
  TestShares shares;
  Share& share = shares.Add("a");
  TestUsage usage;
  Member* first = shares.Join(share, 11, &usage);
  ASSERT_NE(first, nullptr);
  const uint32_t slot = first->slot;
  const ProcessId process = first->process;
  EXPECT_EQ(shares.table().FindMember(share.id(), slot, process), first);
  share.Depart(*first, 0);
  ASSERT_TRUE(share.Release(*first, 0));
  Member* second = shares.Join(share, 12, &usage);
  ASSERT_NE(second, nullptr);
  ASSERT_EQ(second->slot, slot);
  EXPECT_EQ(shares.table().FindMember(share.id(), slot, process), nullptr);
  EXPECT_EQ(shares.table().FindMember(share.id() + 1, slot, second->process), nullptr);
}

}  // namespace
}  // namespace prorata::agent
