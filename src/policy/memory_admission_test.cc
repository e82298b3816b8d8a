#include "policy/memory_admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "base/bytes.h"

namespace prorata::policy {
namespace {

using Verdict = MemoryAdmission::Verdict;
using Terms = MemoryAdmission::Terms;

constexpr int64_t kS = 1'000'000'000;

MemoryAdmission::Options Exact(WaitOrder order = WaitOrder::kFifo) {
  return {.order = order, .chunk_bytes = 1};
}

Terms Waiting(std::vector<uint64_t> limits) {
  return {.limit_bytes = std::move(limits), .on_full = OnFull::kWait};
}
Terms Failing(std::vector<uint64_t> limits) { return {.limit_bytes = std::move(limits)}; }
Terms Guaranteed(std::vector<uint64_t> limits) {
  return {.limit_bytes = std::move(limits), .guaranteed = true};
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
  EXPECT_FALSE(admission.SetTerms(2, Waiting({5})));
  EXPECT_TRUE(admission.Cancel(2));
  EXPECT_TRUE(admission.SetTerms(2, Waiting({5})));
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

// Whether there is an order in which all can end: by trying them all.
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
                          static_cast<int64_t>(state.held[share][device]);
        good &= need <= 0 || need <= free[device];
      }
      for (size_t device = 0; device < free.size(); ++device) {
        free[device] += static_cast<int64_t>(state.held[share][device]);
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
      std::vector<uint64_t> limit, held;
      for (size_t device = 0; device < devices; ++device) {
        limit.push_back(random() % 13);
        held.push_back(std::min<uint64_t>(random() % (limit[device] + 1),
                                          static_cast<uint64_t>(state.free[device])));
        state.free[device] -= static_cast<int64_t>(held[device]);
      }
      const Terms terms = random() % 4 == 0 ? Failing(limit) : Waiting(limit);
      state.terms.push_back(terms);
      state.held.push_back(held);
      ASSERT_TRUE(admission.Add(i, terms, held));
    }
    const bool expected = SafeByTrial(state);
    ASSERT_EQ(admission.Safe(), expected) << "round " << round;
    safe += expected;
  }
  EXPECT_GT(safe, kStates / 10);
  EXPECT_LT(safe, kStates - kStates / 10);
}

// --- Random traces ------------------------------------------------------------------------------

// Programs that ask for more in steps, hold it, and end; on some devices, waiting or not.
class Trace {
 public:
  // `changes`: terms and capacities change too.
  Trace(uint64_t seed, WaitOrder order, bool changes = false) : random_(seed), changes_(changes) {
    const size_t devices = 1 + Pick(3);
    auto options = Exact(order);
    options.most_bypasses = static_cast<uint32_t>(Pick(5));
    options.longest_bypass_ns = static_cast<int64_t>(1 + Pick(200));
    if (Pick(2) == 0) options.chunk_bytes = 4;
    options.seed = seed;
    admission_ = std::make_unique<MemoryAdmission>(std::vector<uint64_t>(devices, 20), options);
  }

  void Run(int arrivals) {
    while (arrivals > 0 || !programs_.empty()) {
      ASSERT_LT(++steps_, 100'000) << "somebody is never served";
      ++now_;
      was_safe_ = admission_->Safe() && !BeyondReach();
      if (changes_ && Pick(8) == 0) {
        Change();
      } else if (arrivals > 0 && programs_.size() < 12 && Pick(3) == 0) {
        Arrive();
        --arrivals;
      } else if (!programs_.empty()) {
        Act(programs_[Pick(programs_.size())]);
      }
      Serve();
      Check();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(admission_->waiting(), 0u);
    for (size_t device = 0; device < admission_->devices(); ++device) {
      EXPECT_EQ(admission_->free_bytes(device), admission_->capacity(device));
    }
  }

 private:
  struct Program {
    uint64_t key;
    Terms terms;
    std::vector<uint64_t> held;  // by what it was answered
    uint64_t ticket = 0;         // waits
    size_t device = 0;
    uint64_t wanted = 0;
  };

  uint64_t Pick(uint64_t below) { return random_() % below; }

  void Arrive() {
    Program program{.key = ++keys_, .terms = {}, .held = {}};
    for (size_t device = 0; device < admission_->devices(); ++device) {
      program.terms.limit_bytes.push_back(Pick(21));
    }
    program.held.assign(admission_->devices(), 0);
    program.terms.guaranteed = Pick(8) == 0;
    program.terms.on_full = Pick(4) == 0 ? OnFull::kFail : OnFull::kWait;
    if (admission_->Add(program.key, program.terms)) programs_.push_back(program);
  }

  void Act(Program& program) {
    if (program.ticket != 0) {
      if (Pick(50) == 0) {  // it times out
        EXPECT_TRUE(admission_->Cancel(program.ticket));
        program.ticket = 0;
      }
      return;
    }
    const size_t device = Pick(admission_->devices());
    const uint64_t limit = program.terms.limit_bytes[device];
    if (Pick(5) == 0) {
      admission_->Remove(program.key);
      std::erase_if(programs_, [key = program.key](const Program& p) { return p.key == key; });
    } else if (Pick(6) == 0) {
      program.held[device] = Pick(program.held[device] + 1);
      admission_->GiveBack(program.key, device, program.held[device]);
    } else if (program.held[device] < limit) {
      program.wanted = program.held[device] + 1 + Pick(limit - program.held[device]);
      program.device = device;
      switch (admission_->Request(program.key, ++tickets_, device, program.wanted, now_)) {
        case Verdict::kGiven:
          program.held[device] = program.wanted;
          break;
        case Verdict::kWaits:
          ASSERT_EQ(program.terms.on_full, OnFull::kWait);
          program.ticket = tickets_;
          break;
        case Verdict::kFull:
          ASSERT_EQ(program.terms.on_full, OnFull::kFail);
          break;
        case Verdict::kOverLimit:
          FAIL() << "within its limit";
      }
    }
  }

  // Whether some limit is beyond what can be given, or more is held than there is: then safety is
  // not kept by what is given back.
  bool BeyondReach() const {
    for (size_t device = 0; device < admission_->devices(); ++device) {
      if (held_sum_[device] > admission_->capacity(device)) return true;
      uint64_t largest = 0, set_aside = 0;
      for (const Program& program : programs_) {
        const uint64_t limit = program.terms.limit_bytes[device];
        if (program.terms.guaranteed) {
          set_aside += admission_->held(program.key, device);
        } else {
          largest = std::max(largest, limit);
        }
      }
      if (largest + set_aside > admission_->capacity(device)) return true;
    }
    return false;
  }

  // Other programs take memory or give it back; or a share's terms change.
  void Change() {
    if (Pick(2) == 0 || programs_.empty()) {
      const size_t device = Pick(admission_->devices());
      const uint64_t capacity = Pick(3) == 0 ? 20 : 8 + Pick(13);
      was_safe_ &= capacity >= admission_->capacity(device);
      admission_->SetCapacity(device, capacity);
      return;
    }
    Program& program = programs_[Pick(programs_.size())];
    Terms terms = program.terms;
    for (uint64_t& limit : terms.limit_bytes) limit = Pick(21);
    if (Pick(3) == 0)
      terms.on_full = terms.on_full == OnFull::kWait ? OnFull::kFail : OnFull::kWait;
    // As the agent does: what waits for more than the new terms allow is refused first.
    if (program.ticket != 0 &&
        (program.wanted > terms.limit_bytes[program.device] || terms.on_full == OnFull::kFail)) {
      EXPECT_TRUE(admission_->Cancel(program.ticket));
      program.ticket = 0;
    }
    const bool was_safe = admission_->Safe();
    if (admission_->SetTerms(program.key, terms)) program.terms = terms;
    ASSERT_TRUE(admission_->Safe() || !was_safe);
  }

  void Serve() {
    for (const uint64_t ticket : admission_->Decide(now_)) {
      const auto served =
          std::ranges::find_if(programs_, [&](const Program& p) { return p.ticket == ticket; });
      ASSERT_NE(served, programs_.end());
      served->held[served->device] = served->wanted;
      served->ticket = 0;
    }
  }

  void Check() {
    ASSERT_TRUE(admission_->Safe() || !was_safe_);
    for (size_t device = 0; device < admission_->devices(); ++device) {
      uint64_t sum = 0;
      for (const Program& program : programs_) {
        ASSERT_GE(admission_->held(program.key, device), program.held[device]);
        const uint64_t held = admission_->held(program.key, device);
        if (!changes_) {
          ASSERT_LE(held, program.terms.limit_bytes[device]);
        }
        sum += held;
      }
      // Beyond a capacity that shrank nothing more is given.
      ASSERT_LE(sum, std::max(admission_->capacity(device), held_sum_[device]));
      held_sum_[device] = sum;
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<MemoryAdmission> admission_;
  std::vector<Program> programs_;
  uint64_t keys_ = 0, tickets_ = 0;
  std::array<uint64_t, 3> held_sum_{};
  int64_t now_ = 0;
  int steps_ = 0;
  bool changes_ = false;
  bool was_safe_ = true;
};

TEST(MemoryAdmission, OnRandomTracesTheStateStaysSafeAndEverybodyIsServed) {
  for (uint64_t seed = 1; seed <= 1'000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trace trace(seed, static_cast<WaitOrder>(seed % 4));
    trace.Run(60);
    if (HasFatalFailure()) return;
  }
}

TEST(MemoryAdmission, OnRandomTracesWithMovingTermsAndCapacitiesNothingIsGivenThatIsNotThere) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trace trace(seed, static_cast<WaitOrder>(seed % 4), true);
    trace.Run(60);
    if (HasFatalFailure()) return;
  }
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
