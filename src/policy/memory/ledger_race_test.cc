// The race of shm/usage_file.h as a model: every interleaving of two charging threads of one
// member, a second member, and an agent that recalls twice and gives what it recalled to the second
// member. Steps are single atomic accesses, seq_cst, so interleavings are all there is.

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "policy/memory/ledger.h"

namespace prorata::policy {
namespace {

constexpr int kLimit = 4;

// What may be left out, to show that the model notices.
struct Protocol {
  bool member_reads_again = true;  // M2, M3
  bool agent_reads_used = true;    // A2, A3
  bool agent_clamps = true;        // FinishRecall never raises a grant
};

struct Thread {
  int8_t member = 0;
  int8_t want = 0;
  int8_t step = 0;  // 0 read, 1 CAS (M1), 2 read again (M2), 3 holds, 4 freed, 5 gave up
  int8_t seen_used = 0;
  int8_t seen_grant = 0;
  auto operator<=>(const Thread&) const = default;
};

struct RaceState {
  std::array<int8_t, 2> used{};
  std::array<int8_t, 2> grant{static_cast<int8_t>(kLimit), 0};
  std::array<int8_t, 2> ledger_grant{static_cast<int8_t>(kLimit), 0};
  std::array<Thread, 3> threads{};
  int8_t agent_step = 0;
  int8_t target = 0;
  int8_t read = 0;
  auto operator<=>(const RaceState&) const = default;
};

class Model {
 public:
  Model(Protocol protocol, std::array<int8_t, 3> wants) : protocol_(protocol) {
    for (int i = 0; i < 3; ++i) {
      first_.threads[i].member = i == 2 ? 1 : 0;
      first_.threads[i].want = wants[i];
    }
  }

  // Visits every reachable state; answers what went wrong, or nothing.
  std::string Explore() {
    Visit(first_);
    return wrong_;
  }
  size_t states() const { return seen_.size(); }

 private:
  static constexpr int8_t kAgentDone = 9;

  void Visit(const RaceState& state) {
    if (!wrong_.empty() || !seen_.insert(state).second) return;
    Judge(state);
    for (size_t i = 0; i < state.threads.size(); ++i) {
      RaceState next = state;
      if (StepThread(next, next.threads[i])) Visit(next);
    }
    RaceState next = state;
    if (StepAgent(next)) Visit(next);
  }

  void Judge(const RaceState& state) {
    int proceeds = 0;
    std::array<int, 2> held{};
    for (const Thread& t : state.threads) {
      if (t.step == 3) held[t.member] += t.want, proceeds += t.want;
    }
    if (proceeds > kLimit) wrong_ = "use above the limit";
    const bool settled = state.agent_step % 4 == 0 || state.agent_step == kAgentDone;
    for (int m = 0; settled && m < 2; ++m) {
      if (held[m] > state.grant[m]) wrong_ = "use above the grant";
    }
    if (state.ledger_grant[0] + state.ledger_grant[1] > kLimit) wrong_ = "grants above the limit";
  }

  bool StepThread(RaceState& s, Thread& t) {
    int8_t& used = s.used[t.member];
    switch (t.step) {
      case 0:
        t.seen_used = used;
        t.seen_grant = s.grant[t.member];
        t.step = t.seen_used + t.want <= t.seen_grant ? 1 : 5;
        if (t.step == 5 && t.member == 1) t.step = 0;  // the second member waits for its grant
        return true;
      case 1:
        if (used != t.seen_used) {
          t.step = 0;
          return true;
        }
        used += t.want;
        t.step = protocol_.member_reads_again ? 2 : 3;
        return true;
      case 2:
        if (t.seen_used + t.want <= s.grant[t.member]) {
          t.step = 3;
        } else {
          used -= t.want;
          t.step = 5;
        }
        return true;
      case 3:
        if (t.member == 1) return false;  // holds for ever
        used -= t.want;
        t.step = 4;
        return true;
      default:
        return false;
    }
  }

  // Steps 0-3: recall; 4-7: recall again; 8: everything recalled goes to the second member. The
  // arithmetic is Ledger's own.
  bool StepAgent(RaceState& s) {
    Ledger ledger(kLimit, 2);
    ledger.Admit(0, s.ledger_grant[0]);
    ledger.Admit(1, s.ledger_grant[1]);
    if (s.agent_step == kAgentDone) return false;
    switch (s.agent_step % 4) {
      case 0:
        if (s.agent_step == 8) {
          s.ledger_grant[1] = s.grant[1] = static_cast<int8_t>(kLimit - s.ledger_grant[0]);
          break;
        }
        s.target = static_cast<int8_t>(ledger.RecallTarget(0, s.used[0]));
        break;
      case 1:  // A1
        s.grant[0] = s.target;
        break;
      case 2:  // A2
        s.read = protocol_.agent_reads_used ? s.used[0] : s.target;
        break;
      case 3:  // A3
        s.ledger_grant[0] = static_cast<int8_t>(
            protocol_.agent_clamps ? ledger.FinishRecall(0, s.target, s.read) : s.read);
        s.grant[0] = s.ledger_grant[0];
        break;
    }
    ++s.agent_step;
    return true;
  }

  Protocol protocol_;
  RaceState first_;
  std::set<RaceState> seen_;
  std::string wrong_;
};

std::string ExploreAll(Protocol protocol) {
  for (int8_t a = 1; a <= 4; ++a) {
    for (int8_t b = 1; b <= 4; ++b) {
      for (int8_t c = 1; c <= 4; ++c) {
        Model model(protocol, {a, b, c});
        if (std::string wrong = model.Explore(); !wrong.empty()) {
          return wrong + " with charges of " + std::to_string(a) + ", " + std::to_string(b) +
                 " and " + std::to_string(c);
        }
        EXPECT_GT(model.states(), 100u);
      }
    }
  }
  return "";
}

TEST(LedgerRace, NoInterleavingExceedsTheLimit) { EXPECT_EQ(ExploreAll({}), ""); }

TEST(LedgerRace, WithoutReadingTheGrantAgainItWould) {
  EXPECT_NE(ExploreAll({.member_reads_again = false}), "");
}

TEST(LedgerRace, WithoutReadingUseAfterTheRecallItWould) {
  EXPECT_NE(ExploreAll({.agent_reads_used = false}), "");
}

TEST(LedgerRace, WithoutTheClampItWould) { EXPECT_NE(ExploreAll({.agent_clamps = false}), ""); }

}  // namespace
}  // namespace prorata::policy
