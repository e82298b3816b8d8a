// Random traces of shares that ask, give back, wait and end: the state stays safe, everybody is
// served, and within its request at once; and with terms and capacities that move, nothing is given
// that is not there.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "policy/memory/memory_admission.h"

namespace prorata::policy {
namespace {

using Verdict = MemoryAdmission::Verdict;
using Terms = MemoryAdmission::Terms;

MemoryAdmission::Options ExactOptions(WaitOrder order) {
  return {.order = order, .chunk_bytes = 1};
}

// Programs that ask for more in steps, hold it, and end; on some devices, waiting or not.
class Trace {
 public:
  // `changes`: terms and capacities change too.
  Trace(uint64_t seed, WaitOrder order, bool changes = false) : random_(seed), changes_(changes) {
    const size_t devices = 1 + Pick(3);
    auto options = ExactOptions(order);
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

  // How often a share took of its request; while another of its requests waited.
  std::array<int, 2> OfRequests() const { return {within_request_, while_it_waits_}; }

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
    SetRequests(program.terms);
    program.terms.on_full = Pick(4) == 0 ? OnFull::kFail : OnFull::kWait;
    if (admission_->Add(program.key, program.terms)) programs_.push_back(program);
  }

  // Nothing, a part of the limit, or all of it.
  void SetRequests(Terms& terms) {
    const uint64_t kind = Pick(8);
    terms.request_bytes.clear();
    for (const uint64_t limit : terms.limit_bytes) {
      terms.request_bytes.push_back(kind == 0 ? limit : kind < 4 ? Pick(limit + 1) / 2 : 0);
    }
  }

  // Whoever waits for more and however full the device is: what is within the request is there.
  void TakeOfRequest(Program& program) {
    const size_t device = Pick(admission_->devices());
    const uint64_t bytes = Pick(program.terms.request_bytes[device] + 1);
    if (bytes <= program.held[device] || (program.ticket != 0 && program.device == device)) return;
    const uint64_t taken = admission_->held(program.key, device);
    ASSERT_EQ(admission_->Request(program.key, ++tickets_, device, bytes, now_), Verdict::kGiven);
    ASSERT_EQ(admission_->held(program.key, device), taken) << "it was set aside";
    program.held[device] = bytes;
    ++within_request_;
    if (program.ticket != 0) ++while_it_waits_;
  }

  void Act(Program& program) {
    if (Pick(4) == 0) return TakeOfRequest(program);
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
      const bool within = program.wanted <= program.terms.request_bytes[device];
      const auto verdict =
          admission_->Request(program.key, ++tickets_, device, program.wanted, now_);
      ASSERT_TRUE(!within || verdict == Verdict::kGiven) << "within its request";
      switch (verdict) {
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
        const uint64_t request = program.terms.request_bytes[device];
        largest = std::max(largest, program.terms.limit_bytes[device] - request);
        set_aside += request;
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
    SetRequests(terms);
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
        ASSERT_GE(held, program.terms.request_bytes[device]);
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
  int within_request_ = 0, while_it_waits_ = 0;
};

TEST(MemoryAdmission, OnRandomTracesTheStateStaysSafeAndEverybodyIsServed) {
#ifdef PRORATA_SANITIZED
  constexpr int kSeeds = 200;
#else
  constexpr int kSeeds = 1'000;
#endif
  int within_request = 0, while_it_waits = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trace trace(seed, static_cast<WaitOrder>(seed % 4));
    trace.Run(60);
    if (HasFatalFailure()) return;
    within_request += trace.OfRequests()[0];
    while_it_waits += trace.OfRequests()[1];
  }
  EXPECT_GT(within_request, kSeeds);
  EXPECT_GT(while_it_waits, kSeeds / 10);
}

TEST(MemoryAdmission, OnRandomTracesWithMovingTermsAndCapacitiesNothingIsGivenThatIsNotThere) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trace trace(seed, static_cast<WaitOrder>(seed % 4), true);
    trace.Run(60);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace prorata::policy
