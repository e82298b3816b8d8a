// The word in which threads that allocate from a pool meet: who may end without the pool's lock;
// and the count of frees that a synchronisation is still to settle.

#include "client/memory/pool_charge.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "client/memory/pool_table.h"

namespace prorata::client {
namespace {

constexpr uint64_t kChunk = uint64_t{32} << 20;

void SettleTo(PoolCharge& charge, uint64_t settled, uint64_t mine) {
  ASSERT_TRUE(charge.BeginSettling(charge.word()));
  charge.Settle(mine, [&](uint64_t) { return settled; });
}

TEST(PoolCharge, WhatIsPendingIsTakenByItsOwner) {
  PoolCharge charge{};
  charge.AddPending(kChunk);
  charge.AddPending(2 * kChunk);
  EXPECT_EQ(charge.Charged(), 3 * kChunk);
  const uint64_t noted = charge.word();
  EXPECT_TRUE(charge.TakePending(noted, kChunk));
  EXPECT_EQ(charge.Charged(), 2 * kChunk);
  EXPECT_TRUE(charge.TakePending(noted, 2 * kChunk)) << "taking changes nothing that is settled";
  EXPECT_EQ(charge.Charged(), 0u);
}

TEST(PoolCharge, NobodyTakesByWhatWasSettledBefore) {
  PoolCharge charge{};
  charge.AddPending(kChunk);
  const uint64_t noted = charge.word();
  SettleTo(charge, kChunk, 0);
  EXPECT_FALSE(charge.TakePending(noted, kChunk));
  EXPECT_TRUE(charge.TakePending(charge.word(), kChunk));
  EXPECT_EQ(charge.settled(), kChunk);
}

TEST(PoolCharge, NobodySettlesByAFigureFromBeforeAnothersGrowth) {
  PoolCharge charge{};
  charge.AddPending(kChunk);
  uint64_t noted = charge.word();
  ASSERT_TRUE(charge.TakePending(noted, kChunk));
  EXPECT_FALSE(charge.BeginSettling(noted));
  noted = charge.word();
  SettleTo(charge, kChunk, 0);
  EXPECT_FALSE(charge.BeginSettling(noted));
}

TEST(PoolCharge, NobodyTakesWhileOneSettlesAndMoreMayBecomePending) {
  PoolCharge charge{};
  charge.AddPending(kChunk);
  const uint64_t noted = charge.word();
  ASSERT_TRUE(charge.BeginSettling(noted));
  EXPECT_FALSE(charge.TakePending(noted, kChunk));
  EXPECT_FALSE(charge.TakePending(charge.word(), kChunk));
  charge.AddPending(2 * kChunk);
  charge.Settle(kChunk, [](uint64_t pending) {
    EXPECT_EQ(pending, 3 * kChunk);
    return kChunk;
  });
  EXPECT_EQ(charge.Charged(), 3 * kChunk);
  EXPECT_FALSE(PoolCharge::IsBusy(charge.word()));
  EXPECT_TRUE(charge.TakePending(charge.word(), 2 * kChunk));
}

TEST(PoolCharge, WhatOthersMayStillGrowByStaysCharged) {
  // Mine was a chunk, and the pool has grown by it; another's chunk is pending.
  EXPECT_EQ(PoolCharge::TotalOf(5 * kChunk, 6 * kChunk, kChunk), 6 * kChunk);
  // The pool was trimmed meanwhile: the other's chunk stays.
  EXPECT_EQ(PoolCharge::TotalOf(kChunk, 6 * kChunk, kChunk), 2 * kChunk);
  // Nobody grows by more than was charged for it.
  EXPECT_EQ(PoolCharge::TotalOf(5 * kChunk, 5 * kChunk, 3 * kChunk), 5 * kChunk);
  // A driver whose pool grew by more than a chunk has taken it all the same.
  EXPECT_EQ(PoolCharge::TotalOf(7 * kChunk, 5 * kChunk, kChunk), 7 * kChunk);
}

TEST(PoolCharge, WhoGoesByNoEarlierFigureAlwaysBegins) {
  PoolCharge charge{};
  charge.AddPending(kChunk);
  charge.BeginSettling();
  EXPECT_FALSE(charge.TakePending(charge.word(), kChunk));
  charge.Settle(0, [](uint64_t) { return kChunk; });
  EXPECT_FALSE(PoolCharge::IsBusy(charge.word()));
  EXPECT_EQ(charge.Charged(), 2 * kChunk);
}

TEST(PoolCharge, ItsCountsRunOverWithoutTouchingWhatIsPending) {
  PoolCharge charge{};
  charge.AddPending(3 * kChunk);
  for (int i = 0; i < (1 << 18) + 1; ++i) {
    ASSERT_TRUE(charge.TakePending(charge.word(), 0));
    SettleTo(charge, kChunk, 0);
    ASSERT_EQ(charge.Charged(), 4 * kChunk);
  }
}

TEST(PoolCharge, ManyThreadsLeaveNothingPending) {
  PoolCharge charge{};
  std::atomic<uint64_t> others{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50'000; ++round) {
        charge.AddPending(kChunk);
        if (!charge.TakePending(charge.word(), kChunk)) others.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(charge.Charged(), 0u);
  EXPECT_EQ(others.load(), 0u) << "without anybody who settles, everybody takes";
}

TEST(FreeCount, WhatWasFreedBeforeALookIsDoneByIt) {
  FreeCount frees{};
  EXPECT_TRUE(frees.AllDone());
  frees.CountFree();
  frees.CountFree();
  EXPECT_FALSE(frees.AllDone());
  const uint64_t looked = frees.BeginPoll();
  EXPECT_FALSE(frees.AllDone()) << "nothing is settled before the look ends";
  frees.Done(looked);
  EXPECT_TRUE(frees.AllDone());
}

TEST(FreeCount, WhatIsFreedDuringALookIsNotDoneByIt) {
  FreeCount frees{};
  frees.CountFree();
  const uint64_t looked = frees.BeginPoll();
  frees.CountFree();
  frees.Done(looked);
  EXPECT_FALSE(frees.AllDone());
  frees.Done(frees.BeginPoll());
  EXPECT_TRUE(frees.AllDone());
}

TEST(FreeCount, ALookThatBeganEarlierNeverHidesALaterFree) {
  FreeCount frees{};
  frees.CountFree();
  const uint64_t slow = frees.BeginPoll();
  frees.CountFree();
  const uint64_t quick = frees.BeginPoll();
  frees.Done(quick);
  frees.CountFree();
  frees.Done(slow);
  EXPECT_FALSE(frees.AllDone());
}

// A free whose word no later look sees would be memory that stays charged until the helper comes.
TEST(FreeCount, NoFreeOfManyThreadsIsLost) {
  FreeCount frees{};
  std::atomic<uint64_t> freed{0};  // what a look that begins now must find
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50'000; ++round) {
        freed.fetch_add(1);
        frees.CountFree();
      }
    });
  }
  uint64_t found = 0;
  std::thread looks([&] {
    while (!over || !frees.AllDone()) {
      const uint64_t looked = frees.BeginPoll();
      found = freed.load();
      frees.Done(looked);
    }
  });
  for (std::thread& thread : threads) thread.join();
  over = true;
  looks.join();
  EXPECT_EQ(found, 150'000u);
}

}  // namespace
}  // namespace prorata::client
