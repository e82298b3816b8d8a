#include "policy/memory/memory_admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/bytes.h"
#include "base/units.h"

namespace prorata::policy {
namespace {

using Verdict = MemoryAdmission::Verdict;
using Terms = MemoryAdmission::Terms;

MemoryAdmission::Options Exact(WaitOrder order = WaitOrder::kFifo) {
  return {.order = order, .chunk_bytes = 1};
}

Terms Waiting(std::vector<uint64_t> limits) {
  return {.limit_bytes = std::move(limits), .on_full = OnFull::kWait};
}
Terms Failing(std::vector<uint64_t> limits) { return {.limit_bytes = std::move(limits)}; }
Terms Guaranteed(const std::vector<uint64_t>& limits) {
  return {.limit_bytes = limits, .request_bytes = limits};
}

// The deadlock of the literature: 5 GiB, two programs with a limit of 4 that take 2 and then 2
// more.
TEST(MemoryAdmission, TwoThatWaitForEachOtherRunOneAfterTheOther) {
  MemoryAdmission admission({5 * kGiB}, Exact());
  ASSERT_TRUE(admission.Add(1, Waiting({4 * kGiB})));
  ASSERT_TRUE(admission.Add(2, Waiting({4 * kGiB})));
  EXPECT_EQ(admission.Request(1, 1, 0, 2 * kGiB, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 2, 0, 2 * kGiB, 0), Verdict::kWaits);  // 3 GiB are free
  EXPECT_EQ(admission.Request(1, 3, 0, 4 * kGiB, 0), Verdict::kGiven);
  EXPECT_TRUE(admission.Decide(0).empty());
  admission.Remove(1);
  EXPECT_EQ(admission.Decide(0), std::vector<uint64_t>{2});
  EXPECT_EQ(admission.Request(2, 4, 0, 4 * kGiB, 0), Verdict::kGiven);
}

TEST(MemoryAdmission, WhereNobodyWaitsTheSecondIsRefused) {
  MemoryAdmission admission({5 * kGiB}, Exact());
  ASSERT_TRUE(admission.Add(1, Failing({4 * kGiB})));
  ASSERT_TRUE(admission.Add(2, Failing({4 * kGiB})));
  EXPECT_EQ(admission.Request(1, 1, 0, 2 * kGiB, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 2, 0, 2 * kGiB, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(1, 3, 0, 4 * kGiB, 0), Verdict::kFull);
  EXPECT_EQ(admission.Request(1, 4, 0, 3 * kGiB, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 5, 0, 4 * kGiB, 0), Verdict::kFull);
  EXPECT_EQ(admission.waiting(), 0u);
}

TEST(MemoryAdmission, BeyondItsOwnLimitNobodyWaits) {
  MemoryAdmission admission({5 * kGiB}, Exact());
  ASSERT_TRUE(admission.Add(1, Waiting({4 * kGiB})));
  EXPECT_EQ(admission.Request(1, 1, 0, 4 * kGiB + 1, 0), Verdict::kOverLimit);
  EXPECT_EQ(admission.Request(9, 1, 0, 1, 0), Verdict::kOverLimit);  // no such share
}

TEST(MemoryAdmission, GuaranteedMemoryIsSetAside) {
  MemoryAdmission admission({10}, Exact());
  ASSERT_TRUE(admission.Add(1, Guaranteed({4})));
  EXPECT_EQ(admission.free_bytes(0), 6u);
  EXPECT_FALSE(admission.Add(2, Guaranteed({7})));
  EXPECT_FALSE(admission.Add(2, Waiting({7})));  // could never be served
  ASSERT_TRUE(admission.Add(2, Waiting({6})));
  EXPECT_EQ(admission.Request(2, 1, 0, 6, 0), Verdict::kGiven);
  EXPECT_FALSE(admission.Add(3, Guaranteed({1})));  // its memory is in use
  EXPECT_EQ(admission.Request(1, 2, 0, 4, 0), Verdict::kGiven);
}

// 16, and two with a request of 4 and a limit of 12.
TEST(MemoryAdmission, WithinItsRequestEachIsGivenAtOnceAndTheRestWhileItIsThere) {
  for (const OnFull on_full : {OnFull::kFail, OnFull::kWait}) {
    MemoryAdmission admission({16}, Exact());
    const Terms terms{.limit_bytes = {12}, .request_bytes = {4}, .on_full = on_full};
    const Verdict full = on_full == OnFull::kFail ? Verdict::kFull : Verdict::kWaits;
    ASSERT_TRUE(admission.Add(1, terms));
    ASSERT_TRUE(admission.Add(2, terms));
    EXPECT_EQ(admission.free_bytes(0), 8u);
    EXPECT_EQ(admission.Request(1, 1, 0, 12, 0), Verdict::kGiven);
    EXPECT_EQ(admission.borrowed_bytes(0), 8u);
    EXPECT_EQ(admission.Request(2, 2, 0, 5, 0), full);
    // One of its requests waits: another within 4 does not.
    EXPECT_EQ(admission.Request(2, 3, 0, 4, 0), Verdict::kGiven);
    EXPECT_EQ(admission.Request(1, 4, 0, 13, 0), Verdict::kOverLimit);
    admission.GiveBack(1, 0, 0);
    EXPECT_EQ(admission.held(1, 0), 4u) << "set aside for it";
    EXPECT_EQ(admission.Decide(0).size(), on_full == OnFull::kWait ? 1u : 0u);
    EXPECT_EQ(admission.Request(2, 5, 0, 12, 0), Verdict::kGiven);
    EXPECT_EQ(admission.Request(1, 6, 0, 4, 0), Verdict::kGiven);
    EXPECT_EQ(admission.Request(1, 7, 0, 5, 0), full);
  }
}

// Each waits only for what the other borrowed; a request that is used never comes back.
TEST(MemoryAdmission, TheBankerCountsOnWhatIsBorrowedAlone) {
  MemoryAdmission admission({16}, Exact());
  const Terms terms{.limit_bytes = {12}, .request_bytes = {4}, .on_full = OnFull::kWait};
  ASSERT_TRUE(admission.Add(1, terms));
  ASSERT_TRUE(admission.Add(2, terms));
  EXPECT_EQ(admission.Request(1, 1, 0, 7, 0), Verdict::kGiven);
  // 5 are free; given 5 of them, neither could be sure of 12 before the other ends.
  EXPECT_EQ(admission.Request(2, 2, 0, 9, 0), Verdict::kWaits);
  EXPECT_EQ(admission.Request(1, 3, 0, 12, 0), Verdict::kGiven);
  // A third whose request is used for ever is no reason to wait, nor one to hope.
  EXPECT_FALSE(admission.Add(3, Guaranteed({1})));
  admission.GiveBack(1, 0, 4);
  EXPECT_EQ(admission.Decide(0), std::vector<uint64_t>{2});
  EXPECT_FALSE(admission.Add(3, Guaranteed({1}))) << "each waits for 8 of 8 beyond the requests";
}

// Only what is borrowed must come back for a leader; a share that uses its request is no holder.
TEST(MemoryAdmission, WhoUsesItsRequestAloneDoesNotPassALeader) {
  auto options = Exact();
  options.most_bypasses = 0;
  MemoryAdmission admission({16}, options);
  ASSERT_TRUE(
      admission.Add(1, {.limit_bytes = {5}, .request_bytes = {4}, .on_full = OnFull::kWait}));
  ASSERT_TRUE(admission.Add(2, Waiting({6})));
  ASSERT_TRUE(admission.Add(3, Waiting({8})));
  EXPECT_EQ(admission.Request(1, 1, 0, 4, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 2, 0, 6, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(3, 3, 0, 8, 0), Verdict::kWaits);  // 6 are free
  EXPECT_EQ(admission.Request(1, 4, 0, 5, 0), Verdict::kWaits);
  admission.Remove(2);
  EXPECT_EQ(admission.Decide(0), (std::vector<uint64_t>{3, 4}));
}

// What it waits for beyond its request is within reach: it leads.
TEST(MemoryAdmission, AShareWithARequestLeads) {
  auto options = Exact();
  options.most_bypasses = 0;
  MemoryAdmission admission({16}, options);
  ASSERT_TRUE(
      admission.Add(1, {.limit_bytes = {12}, .request_bytes = {8}, .on_full = OnFull::kWait}));
  ASSERT_TRUE(
      admission.Add(2, {.limit_bytes = {8}, .request_bytes = {4}, .on_full = OnFull::kWait}));
  ASSERT_TRUE(admission.Add(3, Waiting({1})));
  EXPECT_EQ(admission.Request(2, 1, 0, 6, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(1, 2, 0, 12, 0), Verdict::kWaits);
  EXPECT_EQ(admission.Request(3, 3, 0, 1, 0), Verdict::kWaits);
  EXPECT_EQ(admission.Request(1, 4, 0, 8, 0), Verdict::kGiven) << "its own request leads nobody";
}

TEST(MemoryAdmission, WhatAShareIsFoundToHoldIsNobodyElses) {
  MemoryAdmission admission({16}, Exact());
  ASSERT_TRUE(admission.Add(1, {.limit_bytes = {12}, .request_bytes = {4}}));
  ASSERT_TRUE(admission.Add(2, {.limit_bytes = {12}, .request_bytes = {4}}));
  admission.Acknowledge(1, 0, 3);
  EXPECT_EQ(admission.free_bytes(0), 8u) << "within its request";
  admission.Acknowledge(1, 0, 10);
  EXPECT_EQ(admission.free_bytes(0), 2u);
  admission.Acknowledge(1, 0, 5);
  EXPECT_EQ(admission.held(1, 0), 10u);
  EXPECT_EQ(admission.Request(2, 1, 0, 7, 0), Verdict::kFull);
  EXPECT_EQ(admission.Request(2, 2, 0, 6, 0), Verdict::kGiven);
}

TEST(MemoryAdmission, RequestsMove) {
  MemoryAdmission admission({16}, Exact());
  ASSERT_TRUE(admission.Add(1, {.limit_bytes = {12}, .request_bytes = {4}}));
  ASSERT_TRUE(admission.Add(2, {.limit_bytes = {12}, .request_bytes = {4}}));
  EXPECT_EQ(admission.Request(1, 1, 0, 10, 0), Verdict::kGiven);
  EXPECT_FALSE(admission.SetTerms(2, {.limit_bytes = {12}, .request_bytes = {7}}));
  EXPECT_EQ(admission.held(2, 0), 4u);
  EXPECT_TRUE(admission.SetTerms(2, {.limit_bytes = {12}, .request_bytes = {6}}));
  EXPECT_EQ(admission.Request(2, 2, 0, 6, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 3, 0, 7, 0), Verdict::kFull);
  // Lowered below what is held: the rest is borrowed, and comes back when it is given back.
  EXPECT_TRUE(admission.SetTerms(2, {.limit_bytes = {12}, .request_bytes = {1}}));
  EXPECT_EQ(admission.borrowed_bytes(0), 6u + 5u);
  admission.GiveBack(2, 0, 0);
  EXPECT_EQ(admission.free_bytes(0), 5u);
  // What it has by now is its own when the request comes to cover it.
  EXPECT_TRUE(admission.SetTerms(1, {.limit_bytes = {12}, .request_bytes = {10}}));
  EXPECT_EQ(admission.borrowed_bytes(0), 0u);
  EXPECT_TRUE(admission.AnyMayBorrow(0));
  EXPECT_TRUE(admission.SetTerms(1, Guaranteed({10})));
  EXPECT_TRUE(admission.SetTerms(2, Guaranteed({1})));
  EXPECT_FALSE(admission.AnyMayBorrow(0));
}

TEST(MemoryAdmission, AFailingShareNeedsNothingSaved) {
  MemoryAdmission admission({10}, Exact());
  ASSERT_TRUE(admission.Add(1, Failing({10})));
  ASSERT_TRUE(admission.Add(2, Waiting({10})));
  EXPECT_EQ(admission.Request(1, 1, 0, 6, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 2, 0, 4, 0), Verdict::kGiven);
  EXPECT_TRUE(admission.Safe());  // share 1 can end as it is
  EXPECT_EQ(admission.Request(2, 3, 0, 10, 0), Verdict::kWaits);
  admission.GiveBack(1, 0, 0);
  EXPECT_EQ(admission.Decide(0), std::vector<uint64_t>{3});
}

TEST(MemoryAdmission, GrowsInChunksWhileNobodyWaits) {
  MemoryAdmission admission({kGiB}, {});
  ASSERT_TRUE(admission.Add(1, Waiting({kGiB})));
  EXPECT_EQ(admission.Request(1, 1, 0, kMiB, 0), Verdict::kGiven);
  EXPECT_EQ(admission.held(1, 0), 64 * kMiB);
}

TEST(MemoryAdmission, TheFirstInLineIsPassedSoManyTimesAndNotOnceMore) {
  auto options = Exact();
  options.most_bypasses = 3;
  MemoryAdmission admission({10}, options);
  ASSERT_TRUE(admission.Add(1, Waiting({6})));
  EXPECT_EQ(admission.Request(1, 1, 0, 6, 0), Verdict::kGiven);
  ASSERT_TRUE(admission.Add(2, Waiting({8})));
  EXPECT_EQ(admission.Request(2, 2, 0, 8, 0), Verdict::kWaits);
  for (uint64_t small = 10; small < 13; ++small) {
    ASSERT_TRUE(admission.Add(small, Waiting({1})));
    EXPECT_EQ(admission.Request(small, small, 0, 1, 0), Verdict::kGiven) << small;
  }
  ASSERT_TRUE(admission.Add(13, Waiting({1})));
  EXPECT_EQ(admission.Request(13, 13, 0, 1, 0), Verdict::kWaits);  // 1 is free, and kept
  admission.Remove(1);
  admission.Remove(10);
  EXPECT_EQ(admission.Decide(0), std::vector<uint64_t>{2});
  admission.Remove(11);
  EXPECT_EQ(admission.Decide(0), std::vector<uint64_t>{13});
}

TEST(MemoryAdmission, TheFirstInLineIsPassedForSoLong) {
  MemoryAdmission admission({10}, Exact());
  ASSERT_TRUE(admission.Add(1, Waiting({6})));
  ASSERT_TRUE(admission.Add(2, Waiting({8})));
  ASSERT_TRUE(admission.Add(3, Waiting({1})));
  ASSERT_TRUE(admission.Add(4, Waiting({1})));
  admission.Request(1, 1, 0, 6, 0);
  EXPECT_EQ(admission.Request(2, 2, 0, 8, 0), Verdict::kWaits);
  EXPECT_EQ(admission.Request(3, 3, 0, 1, 59 * kS), Verdict::kGiven);
  EXPECT_EQ(admission.Request(4, 4, 0, 1, 60 * kS), Verdict::kWaits);
}

// The leader waits for a holder; the holder needs more to end: it gets it.
TEST(MemoryAdmission, HoldersGoOnBeforeALeader) {
  auto options = Exact();
  options.most_bypasses = 0;
  MemoryAdmission admission({10}, options);
  ASSERT_TRUE(admission.Add(1, Waiting({8})));
  ASSERT_TRUE(admission.Add(2, Waiting({8})));
  EXPECT_EQ(admission.Request(1, 1, 0, 4, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 2, 0, 6, 0), Verdict::kWaits);
  EXPECT_EQ(admission.Request(1, 3, 0, 8, 0), Verdict::kGiven);
}

TEST(MemoryAdmission, AWithdrawnRequestHoldsNobodyUp) {
  auto options = Exact();
  options.most_bypasses = 0;
  MemoryAdmission admission({10}, options);
  for (uint64_t share : {1, 2, 3}) ASSERT_TRUE(admission.Add(share, Waiting({9})));
  admission.Request(1, 1, 0, 2, 0);
  EXPECT_EQ(admission.Request(2, 2, 0, 9, 0), Verdict::kWaits);
  EXPECT_TRUE(admission.Cancel(2));
  EXPECT_FALSE(admission.Cancel(2));
  EXPECT_EQ(admission.waiting(), 0u);
  EXPECT_EQ(admission.Request(1, 4, 0, 9, 0), Verdict::kGiven);
}

TEST(MemoryAdmission, LimitsMove) {
  MemoryAdmission admission({10}, Exact());
  ASSERT_TRUE(admission.Add(1, Waiting({4})));
  ASSERT_TRUE(admission.Add(2, Waiting({8})));
  EXPECT_EQ(admission.Request(1, 1, 0, 4, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 2, 0, 6, 0), Verdict::kGiven);
  // Each would hold what the other needs: refused, and nothing has changed.
  EXPECT_FALSE(admission.SetTerms(1, Waiting({5})));
  EXPECT_EQ(admission.limit(1, 0), 4u);
  EXPECT_TRUE(admission.SetTerms(1, Waiting({2})));
  EXPECT_EQ(admission.held(1, 0), 4u);  // nothing is taken away
  EXPECT_EQ(admission.Request(1, 3, 0, 3, 0), Verdict::kOverLimit);
}

TEST(MemoryAdmission, AWaitingRequestIsNotServedBeyondALoweredLimit) {
  MemoryAdmission admission({10}, Exact());
  ASSERT_TRUE(admission.Add(1, Waiting({10})));
  ASSERT_TRUE(admission.Add(2, Waiting({10})));
  EXPECT_EQ(admission.Request(1, 1, 0, 4, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 2, 0, 8, 0), Verdict::kWaits);
  // What is refused keeps it where it is.
  EXPECT_FALSE(admission.SetTerms(2, {.limit_bytes = {7}, .request_bytes = {7}}));
  EXPECT_EQ(admission.waiting(), 1u);
  EXPECT_TRUE(admission.SetTerms(2, Waiting({5})));
  EXPECT_EQ(admission.waiting(), 0u);
  admission.Remove(1);
  EXPECT_TRUE(admission.Decide(0).empty());
  EXPECT_EQ(admission.held(2, 0), 0u);
}

TEST(MemoryAdmission, AWaitingRequestMayWantLessByNowAndKeepsItsPlace) {
  auto options = Exact();
  options.most_bypasses = 0;
  MemoryAdmission admission({10}, options);
  for (uint64_t share : {1, 2, 3}) ASSERT_TRUE(admission.Add(share, Waiting({9})));
  EXPECT_EQ(admission.Request(1, 1, 0, 6, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(2, 2, 0, 8, 0), Verdict::kWaits);
  EXPECT_EQ(admission.Request(3, 3, 0, 1, 0), Verdict::kWaits);
  EXPECT_FALSE(admission.Amend(2, 10)) << "beyond its limit";
  EXPECT_FALSE(admission.Amend(9, 1)) << "no such request";
  EXPECT_TRUE(admission.Decide(0).empty());
  EXPECT_TRUE(admission.Amend(2, 5));
  admission.Remove(1);
  EXPECT_EQ(admission.Decide(0), (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(admission.held(2, 0), 5u);
}

// --- Against brute force ------------------------------------------------------------------------

struct State {
  std::vector<int64_t> free;
  std::vector<Terms> terms;
  std::vector<std::vector<uint64_t>> held;
};

uint64_t Set(const State& state, size_t share, size_t device) {
  return state.terms[share].request_bytes[device];
}
uint64_t Taken(const State& state, size_t share, size_t device) {
  return std::max(state.held[share][device], Set(state, share, device));
}

// Whether there is an order in which all can end: by trying them all. `free` is less what is set
// aside, which comes back with nobody.
bool SafeByTrial(const State& state) {
  std::vector<size_t> order(state.terms.size());
  std::iota(order.begin(), order.end(), 0);
  do {
    std::vector<int64_t> free = state.free;
    bool good = true;
    for (const size_t share : order) {
      for (size_t device = 0; device < free.size(); ++device) {
        if (state.terms[share].on_full == OnFull::kFail) continue;
        const auto need = static_cast<int64_t>(state.terms[share].limit_bytes[device]) -
                          static_cast<int64_t>(Taken(state, share, device));
        good &= need <= 0 || need <= free[device];
      }
      for (size_t device = 0; device < free.size(); ++device) {
        free[device] += static_cast<int64_t>(Taken(state, share, device)) -
                        static_cast<int64_t>(Set(state, share, device));
      }
    }
    if (good) return true;
  } while (std::ranges::next_permutation(order).found);
  return false;
}

TEST(MemoryAdmission, SafeMeansThatSomeOrderWorks) {
  std::mt19937 random(7);
  int safe = 0;
  constexpr int kStates = 20'000;
  for (int round = 0; round < kStates; ++round) {
    const size_t devices = 1 + random() % 3;
    State state{.free = std::vector<int64_t>(devices, 12), .terms = {}, .held = {}};
    std::vector<uint64_t> capacity(devices, 12);
    MemoryAdmission admission(capacity, Exact());
    const size_t shares = 1 + random() % 5;
    for (size_t i = 0; i < shares; ++i) {
      std::vector<uint64_t> limit, request, held;
      const bool requests = random() % 2 == 0;
      for (size_t device = 0; device < devices; ++device) {
        const auto left = static_cast<uint64_t>(state.free[device]);
        request.push_back(requests ? std::min(random() % 4, left) : 0);
        limit.push_back(request[device] + random() % (13 - request[device]));
        held.push_back(std::min<uint64_t>(random() % (limit[device] + 1), left));
        state.free[device] -= static_cast<int64_t>(std::max(request[device], held[device]));
      }
      Terms terms = random() % 4 == 0 ? Failing(limit) : Waiting(limit);
      terms.request_bytes = request;
      state.terms.push_back(terms);
      state.held.push_back(held);
      ASSERT_TRUE(admission.Add(i, terms, held));
    }
    // A limit beyond what is left by all requests counts as that (ALimitBeyond...).
    for (size_t device = 0; device < devices; ++device) {
      uint64_t set_aside = 0;
      for (size_t i = 0; i < shares; ++i) set_aside += Set(state, i, device);
      for (size_t i = 0; i < shares; ++i) {
        uint64_t& limit = state.terms[i].limit_bytes[device];
        limit = std::min(limit, Set(state, i, device) + 12 - set_aside);
      }
    }
    const bool expected = SafeByTrial(state);
    ASSERT_EQ(admission.Safe(), expected) << "round " << round;
    safe += expected;
  }
  EXPECT_GT(safe, kStates / 10);
  EXPECT_LT(safe, kStates - kStates / 10);
}

// A share with the whole device for its limit is not to stop everybody because somebody outside
// took a little of it.
TEST(MemoryAdmission, ALimitBeyondAShrunkCapacityStopsNobody) {
  auto options = Exact();
  options.most_bypasses = 0;
  MemoryAdmission admission({10}, options);
  ASSERT_TRUE(admission.Add(1, Waiting({10})));
  ASSERT_TRUE(admission.Add(2, Waiting({4})));
  admission.SetCapacity(0, 9);
  EXPECT_TRUE(admission.Safe());
  EXPECT_EQ(admission.Request(1, 1, 0, 3, 0), Verdict::kGiven);
  EXPECT_EQ(admission.Request(1, 2, 0, 10, 0), Verdict::kWaits);
  EXPECT_EQ(admission.Request(2, 3, 0, 4, 0), Verdict::kGiven);
  admission.Remove(2);
  EXPECT_TRUE(admission.Decide(0).empty());
  admission.SetCapacity(0, 10);
  EXPECT_EQ(admission.Decide(0), std::vector<uint64_t>{2});
}

// A small request arrives in every round, runs for two rounds once it is served, and ends; two fit.
// The large one needs the whole device.
bool LargeIsServed(WaitOrder order, int rounds) {
  MemoryAdmission admission({6}, Exact(order));
  constexpr uint64_t kLarge = 1;
  std::vector<std::pair<uint64_t, int>> running;  // share (its ticket is the same number), its end
  EXPECT_TRUE(admission.Add(kLarge, Waiting({6})));
  for (int round = 0; round < rounds; ++round) {
    std::erase_if(running, [&](const auto& program) {
      if (program.second == round) admission.Remove(program.first);
      return program.second == round;
    });
    for (const uint64_t served : admission.Decide(0)) {
      if (served == kLarge) return true;
      running.emplace_back(served, round + 2);
    }
    const uint64_t small = 10 + static_cast<uint64_t>(round);
    EXPECT_TRUE(admission.Add(small, Waiting({3})));
    if (admission.Request(small, small, 0, 3, 0) == Verdict::kGiven) {
      running.emplace_back(small, round + 2);
    }
    if (round == 0) {
      EXPECT_EQ(admission.Request(kLarge, kLarge, 0, 6, 0), Verdict::kWaits);
    }
  }
  return false;
}

TEST(MemoryAdmission, ALargeRequestIsNotStarvedBySmallOnes) {
  EXPECT_TRUE(LargeIsServed(WaitOrder::kFifo, 40));
  EXPECT_FALSE(LargeIsServed(WaitOrder::kRecent, 1'000));  // what the bound is for
}

}  // namespace
}  // namespace prorata::policy
