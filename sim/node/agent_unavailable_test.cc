// A unavailable agent, stopped or killed under contention: programs go on, limits hold, and it has
// them back soon.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/units.h"
#include "sim/node/unmet.h"
#include "sim/node/world.h"

namespace prorata::simulation {
namespace {

constexpr int64_t kBeginsNs = 1'000 * kMs, kEndsNs = 3'000 * kMs, kDoneNs = 5'000 * kMs;
constexpr int64_t kPollNs = 5 * kMs;

// A sanitizer makes it twelve times slower, and judges what is run, not how often: two seeds of ten
// there, and of sixty those from one that breaks a promise when the agent is killed to one that
// does when it is stopped.
#ifdef PRORATA_SANITIZED
constexpr uint64_t kFrom = 9, kTo = 10, kManyFrom = 25, kManyTo = 52;
#else
constexpr uint64_t kFrom = 1, kTo = 10, kManyFrom = 1, kManyTo = 60;
#endif
// Of 400 seeds 15, stopped, and 16, killed: one that waited for its limit when the agent went, or
// one of three members that paid for what it had launched at once. With two of them, killed, the
// limited program has 0.073 and 0.075 meanwhile, below its bar of 0.08.
constexpr char kWhyItWaits[] = "with 4 seeds of 100 a limited program waits for 105 to 175 ms";

void AddProgram(Scenario* scenario, const std::string& name, int count, double kernel_ms,
                policy::ComputeTerms terms) {
  ProgramSpec program;
  program.name = program.share = name;
  program.count = count;
  program.stop_ns = kDoneNs;
  program.kernel = {
      static_cast<int64_t>(kernel_ms * 1e6), static_cast<int64_t>(kernel_ms * 1e6), {}};
  scenario->programs.push_back(program);
  ShareSpec share;
  share.name = name;
  share.compute = terms;
  scenario->shares.push_back(share);
}

// Three members that share a limit, another limited one, and one that takes the rest.
Scenario Contended() {
  Scenario scenario;
  scenario.name = "under contention";
  scenario.duration_ns = kDoneNs;
  AddProgram(&scenario, "three", 3, 0.2, {{100'000}, {300'000}, 1});
  AddProgram(&scenario, "limited", 1, 1, {{100'000}, {200'000}, 1});
  AddProgram(&scenario, "elastic", 1, 1, {Fraction::Zero(), Fraction::One(), 1});
  return scenario;
}

class Watched {
 public:
  Watched(const Scenario& scenario, uint64_t seed)
      : scenario_(scenario), world_(scenario_, WithSeed(seed)) {}

  World& world() { return world_; }
  // Runs on, looking often; answers each share's part of the time.
  std::map<std::string, double> RunUntil(int64_t end_ns) {
    const int64_t begin_ns = world_.now_ns();
    const std::map<std::string, int64_t> before = Busy();
    while (world_.now_ns() < end_ns) {
      world_.RunUntil(std::min(end_ns, world_.now_ns() + kPollNs));
      Poll();
    }
    std::map<std::string, double> parts;
    for (const auto& [share, busy_ns] : Busy()) {
      parts[share] =
          static_cast<double>(busy_ns - before.at(share)) / static_cast<double>(end_ns - begin_ns);
    }
    return parts;
  }
  // The longest time in which a program got nothing.
  int64_t longest_gap_ns() const { return longest_gap_ns_; }
  void ForgetGaps() { longest_gap_ns_ = 0; }

 private:
  std::map<std::string, int64_t> Busy() {
    std::map<std::string, int64_t> busy;
    for (size_t i = 0; i < scenario_.programs.size(); ++i) {
      busy[scenario_.programs[i].share] += world_.ProgramBusyNs(i);
    }
    return busy;
  }
  void Poll() {
    for (const auto& process : world_.processes()) {
      auto& [busy_ns, since_ns] = last_[process->id()];
      if (process->BusyNs() != busy_ns) {
        busy_ns = process->BusyNs();
        since_ns = world_.now_ns();
      }
      longest_gap_ns_ = std::max(longest_gap_ns_, world_.now_ns() - since_ns);
    }
  }

  const Scenario scenario_;
  World world_;
  std::map<uint32_t, std::pair<int64_t, int64_t>> last_;
  int64_t longest_gap_ns_ = 0;
};

void ExpectLimits(const std::map<std::string, double>& parts, const char* when) {
  EXPECT_LE(parts.at("three"), 0.33) << when;
  EXPECT_LE(parts.at("limited"), 0.23) << when;
}

// `begin` makes the agent unavailable until kEndsNs.
template <typename Begin>
void CheckAgentUnavailable(uint64_t seed, Begin&& begin) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Watched watched(Contended(), seed);
  const auto before = watched.RunUntil(kBeginsNs);
  ExpectLimits(before, "before");
  watched.ForgetGaps();
  begin(watched.world());
  const auto during = watched.RunUntil(kEndsNs);
  EXPECT_LE(watched.longest_gap_ns(), 100 * kMs) << "a program was stopped meanwhile";
  const int64_t gap_ns = watched.longest_gap_ns();
  EXPECT_LE(gap_ns, 175 * kMs) << "longer than was ever seen";
  ExpectLimits(during, "during");
  // Members go by what they knew of their kernels, which for those that ran side by side is a
  // little too much.
  EXPECT_GE(during.at("three"), 0.17) << "its part is not kept from it";
  EXPECT_GE(during.at("limited"), 0.08);
  watched.RunUntil(kEndsNs + 100 * kMs);
  watched.ForgetGaps();
  const auto after = watched.RunUntil(kDoneNs);
  ExpectLimits(after, "after");
  EXPECT_GE(after.at("three"), before.at("three") - 0.03) << "normal service, as it was before";
  EXPECT_GE(after.at("limited"), 0.17);
  EXPECT_GE(after.at("elastic"), 0.4);
  EXPECT_EQ(watched.world().failure(), "");
}

TEST(AgentUnavailable, StoppedUnderContention) {
  Unmet(kWhyItWaits, {"watched.longest_gap_ns()"}, [] {
    for (uint64_t seed = kManyFrom; seed <= kManyTo; ++seed) {
      CheckAgentUnavailable(seed, [](World& world) { world.agent()->Stop(kEndsNs); });
    }
  });
}

TEST(AgentUnavailable, KilledUnderContention) {
  Unmet(kWhyItWaits, {"watched.longest_gap_ns()"}, [] {
    for (uint64_t seed = kManyFrom; seed <= kManyTo; ++seed) {
      CheckAgentUnavailable(seed, [](World& world) { world.agent()->Kill(kEndsNs); });
    }
  });
}

// Service in the first tenth of a second after it is back: nobody pays for what it did by the rules
// of the outage.
TEST(AgentUnavailable, ServiceIsNormalAHundredMillisecondsAfterItsReturn) {
  for (const bool kill : {false, true}) {
    for (uint64_t seed = kFrom; seed <= kTo; ++seed) {
      SCOPED_TRACE((kill ? "killed, seed " : "stopped, seed ") + std::to_string(seed));
      Watched watched(Contended(), seed);
      watched.RunUntil(kBeginsNs);
      kill ? watched.world().agent()->Kill(kEndsNs) : watched.world().agent()->Stop(kEndsNs);
      watched.RunUntil(kEndsNs + 100 * kMs);
      const auto after = watched.RunUntil(kEndsNs + 600 * kMs);
      ExpectLimits(after, "right after");
      EXPECT_GE(after.at("three"), 0.24) << "a new agent does not charge it more than it can use";
      EXPECT_GE(after.at("limited"), 0.16);
      EXPECT_GE(after.at("elastic"), 0.4);
    }
  }
}

}  // namespace
}  // namespace prorata::simulation
