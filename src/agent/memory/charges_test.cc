#include "agent/memory/charges.h"

#include <gtest/gtest.h>

#include "agent/memory/claims_watch.h"
#include "agent/testing/testing_share.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

using testing::TestShares;
using testing::TestUsage;

TEST(ChargesTest, AMemberIsChargedForWhatItSaysAsFarAsItWasGranted) {
  TestShares shares;
  Share& share = shares.Add("a");
  TestUsage usage;
  Member* member = shares.Join(share, 11, &usage);
  ASSERT_NE(member, nullptr);
  share.TryGrant(*member, 0, 64 * kMiB);
  const uint64_t granted = share.ledger(0).grant_bytes(member->slot);
  ASSERT_GE(granted, 64 * kMiB);
  usage[0].used_bytes = 3 * kMiB;
  EXPECT_EQ(ChargedToLiving(shares.table(), 11, 0), 3 * kMiB);
  usage[0].used_bytes = ~uint64_t{0};
  EXPECT_EQ(ChargedToLiving(shares.table(), 11, 0), granted) << "a lie";
  EXPECT_EQ(ChargedToLiving(shares.table(), 12, 0), 0u);
  EXPECT_EQ(ChargedToLiving(shares.table(), 11, 1), 0u) << "not its device";
}

TEST(ChargesTest, AProcessOfTwoSharesIsChargedForBothWhileItsFormerSelfIsNoMore) {
  TestShares shares;
  Share& former = shares.Add("former");
  Share& now = shares.Add("now");
  TestUsage first, second;
  Member* dead = shares.Join(former, 11, &first);
  Member* living = shares.Join(now, 11, &second);
  ASSERT_TRUE(dead != nullptr && living != nullptr);
  former.TryGrant(*dead, 0, 8 * kMiB);
  now.TryGrant(*living, 0, 8 * kMiB);
  first[0].used_bytes = 5 * kMiB;
  second[0].used_bytes = 2 * kMiB;
  EXPECT_EQ(ChargedToLiving(shares.table(), 11, 0), 7 * kMiB);
  EXPECT_FALSE(HasDepartedTwin(shares.table(), 11, 0));
  former.Depart(*dead, 0);
  EXPECT_EQ(ChargedToLiving(shares.table(), 11, 0), 2 * kMiB);
  EXPECT_TRUE(HasDepartedTwin(shares.table(), 11, 0));
  EXPECT_GE(ChargedOn(shares.table(), 0), 7 * kMiB) << "its memory has not come back";
  ASSERT_TRUE(former.Release(*dead, 0));
  EXPECT_FALSE(HasDepartedTwin(shares.table(), 11, 0));
}

TEST(ClaimsWatchTest, WhoClaimsMoreThanWasGrantedIsReportedOnce) {
  boost::asio::io_context loop;
  const RealClock clock;
  Events events(clock, [] { return int64_t{0}; });
  TestShares shares;
  Share& share = shares.Add("a", {0, 1});
  TestUsage honest, liar;
  Member* one = shares.Join(share, 11, &honest);
  Member* other = shares.Join(share, 12, &liar);
  ASSERT_TRUE(one != nullptr && other != nullptr);
  honest[0].used_bytes = kGiB;  // the limit
  liar[1].used_bytes = 2 * kGiB;
  ClaimsWatch watch(loop, shares.table(), events);
  for (int i = 0; i < 10; ++i) watch.Poll();
  const auto seen = events.After(0).events;
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].kind, api::EventKind::kFalseUsage);
  EXPECT_EQ(seen[0].pid, 12);
  EXPECT_EQ(seen[0].used_bytes, 2 * kGiB);
  EXPECT_EQ(seen[0].gpu, 1u);
}

}  // namespace
}  // namespace prorata::agent
