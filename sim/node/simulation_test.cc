// The one-process simulation: it repeats, it knows what time slices do, it is fast enough, and what
// must be true of every world is.

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "sim/node/random_world.h"
#include "sim/node/report.h"
#include "sim/node/unmet.h"

namespace prorata::simulation {
namespace {

#ifdef PRORATA_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

Scenario Read(const std::string& name) {
  auto scenario = ReadScenario(std::string(SCENARIOS) + "/" + name + ".toml");
  if (!scenario) {
    ADD_FAILURE() << scenario.error().message;
    std::abort();
  }
  return *scenario;
}

void ExpectMet(const std::string& name, uint64_t seed = 1) {
  const Scenario scenario = Read(name);
  WorldOptions options;
  options.seed = seed;
  const Report report = RunScenario(scenario, options);
  EXPECT_EQ(report.failure, "");
  for (const ExpectationReport& expect : report.expectations) {
    EXPECT_TRUE(expect.met) << expect.of << ": " << expect.seen << ", expected " << expect.expected
                            << "\nto see it again: build/bin/simulation tests/scenarios/" << name
                            << ".toml --seed " << seed;
  }
}

std::string TraceOf(uint64_t seed) {
  std::ostringstream trace;
  CheckRandomWorld(seed, WorldKind::kFew, &trace);
  return trace.str();
}

TEST(Simulation, TheSameSeedGivesTheSameTrace) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::string trace = TraceOf(seed);
    EXPECT_GT(trace.size(), 500u);
    EXPECT_TRUE(trace == TraceOf(seed)) << "seed " << seed;
  }
  EXPECT_FALSE(TraceOf(1) == TraceOf(2));
}

// What the device does by itself.
TEST(WithoutProrata, TwoBusyProgramsGetHalfEach) { ExpectMet("two_busy_without"); }
TEST(WithoutProrata, TimeSlicesGiveALongKernelItsThird) { ExpectMet("long_kernel_without"); }
TEST(WithoutProrata, APairWithGapsInterleavesToNearlyFullUse) { ExpectMet("gaps_without"); }
TEST(WithoutProrata, SharesMeanNothing) { ExpectMet("shares_532_without"); }

TEST(WithoutProrata, ALongKernelAloneIsNotCutUp) {
  Scenario scenario = Read("long_kernel_without");
  scenario.programs.erase(scenario.programs.begin(), scenario.programs.begin() + 2);
  scenario.expect.clear();
  const Report report = RunScenario(scenario, {});
  EXPECT_GT(report.device_use, 0.999);
  EXPECT_EQ(report.switching, 0);
}

TEST(WithProrata, SharesGetTheirParts) {
  for (const uint64_t seed : {1, 2, 3}) ExpectMet("shares_532", seed);
}
TEST(WithProrata, ACeilingHoldsWhenARequestIsRaised) { ExpectMet("ceiling_and_update"); }
TEST(WithProrata, TheHighestPriorityIsFirst) {
  for (const uint64_t seed : {1, 2, 3}) ExpectMet("priorities", seed);
}
TEST(WithProrata, APairWithGapsKeepsTheDeviceBusy) { ExpectMet("gaps"); }
TEST(WithProrata, TwoBusyProgramsGetHalfEach) {
  const Report report = RunScenario(Read("two_busy"), {});
  EXPECT_EQ(report.failure, "");
  EXPECT_NEAR(report.programs[0].gpu_time, 0.5, 0.01);
  EXPECT_NEAR(report.programs[0].charged, 1, 0.03);
}

// The laboratory must be able to find: a policy that is wrong is seen.
TEST(WithProrata, AnotherExpectationIsNotMet) {
  Scenario scenario = Read("shares_532");
  scenario.expect[0].gpu_time = 0.45;
  EXPECT_FALSE(RunScenario(scenario, {}).met());
}

// Three seconds of a program with kernels of its own, and one that is busy all along.
Scenario BesideABusyOne(double kernel_us, int streams, int per_sync) {
  Scenario scenario = Read("two_busy");
  scenario.expect.clear();
  scenario.duration_ns = 3'000'000'000;
  for (ProgramSpec& each : scenario.programs) each.stop_ns = scenario.duration_ns;
  ProgramSpec& program = scenario.programs[0];
  program.kernel.low_ns = program.kernel.high_ns = static_cast<int64_t>(kernel_us * 1e3);
  program.streams = streams;
  program.per_sync = per_sync;
  return scenario;
}

TEST(WithProrata, ChargesAreTheDevicesAccount) {
  struct Kind {
    const char* name;
    double kernel_us;
    int streams, per_sync, graph;
    bool gaps = false;  // it waits for its kernels every millisecond or so: that is charged, too
  };
  std::vector<double> unmet;
  for (const Kind& kind :
       {Kind{"one stream", 200, 1, 16, 0}, Kind{"long kernels", 5'000, 1, 4, 0},
        Kind{"several streams", 200, 4, 0, 0}, Kind{"several that wait", 200, 4, 16, 0, true},
        Kind{"never synchronises", 20, 2, 0, 0}, Kind{"graphs", 20, 1, 4, 20, true},
        Kind{"short kernels in six streams", 9, 6, 20, 0, true}}) {
    SCOPED_TRACE(kind.name);
    Scenario scenario = BesideABusyOne(kind.kernel_us, kind.streams, kind.per_sync);
    scenario.programs[0].graph = kind.graph;
    for (const bool alone : {false, true}) {
      if (alone) {
        scenario.programs.resize(1);
        scenario.shares.resize(1);
      }
      const Report report = RunScenario(scenario, {});
      EXPECT_EQ(report.failure, "");
      for (const ProgramReport& each : report.programs) {
        EXPECT_GE(each.charged, 0.99) << each.name << (alone ? ", alone" : "");
        if (kind.gaps) continue;
        if (kind.streams > 1 && !alone) {
          unmet.push_back(each.charged);
        } else {
          EXPECT_LE(each.charged, 1.03) << each.name << (alone ? ", alone" : "");
        }
      }
    }
  }
  Unmet("several streams: up to 5 % too much, for the device idles at the ends of slices",
        [&unmet] {
          for (const double charged : unmet) EXPECT_LE(charged, 1.03);
        });
}

// What a stream's kernels take beside other streams' was taken for their own, and a device waited
// for work that was long done: in use for 92 to 95 % of the time.
TEST(WithProrata, SeveralStreamsLeaveNoGapsAtTheirTurnsEnds) {
  Unmet("handovers leave up to 4 % of the device unused with several streams, which pay for it",
        {"\n1000 us, 6", "\n200 us, 2, charged", "\n200 us, 3", "\n50 us, 3"}, [] {
          struct Kind {
            double kernel_us;
            int streams, per_sync;
            double in_use;
          };
          for (const Kind& kind :
               {Kind{1'000, 2, 0, 0.98}, Kind{1'000, 6, 20, 0.98}, Kind{200, 2, 20, 0.97},
                Kind{200, 3, 0, 0.97}, Kind{50, 3, 0, 0.96}}) {
            const Scenario scenario = BesideABusyOne(kind.kernel_us, kind.streams, kind.per_sync);
            const Report report = RunScenario(scenario, {});
            EXPECT_EQ(report.failure, "");
            EXPECT_GE(report.device_use, kind.in_use) << kind.kernel_us << " us, " << kind.streams;
            EXPECT_NEAR(report.programs[0].charged, 1, 0.04)
                << kind.kernel_us << " us, " << kind.streams << ", charged";
            if (kind.kernel_us == 200 && kind.streams == 2) {
              EXPECT_NEAR(report.programs[0].charged, 1, 0.042) << "more than with any of 12 seeds";
            }
          }
        });
}

TEST(WithProrata, ALimitHoldsAlone) {
  Scenario scenario = Read("two_busy");
  scenario.programs.pop_back();
  scenario.shares.pop_back();
  scenario.expect.clear();
  scenario.shares[0].compute = {Fraction::Zero(), {300'000}, 1};
  const Report report = RunScenario(scenario, {});
  EXPECT_NEAR(report.device_use, 0.3, 0.01);
}

// A function that was learned to be short and then takes 20 ms, launched by a host that waits for
// it: charged as learned, the share used all of the device (seed 3).
TEST(WithProrata, ALimitHoldsForAFunctionThatGrows) {
  const Scenario scenario = Read("unmet/mixed_kernels_at_a_limit");
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    WorldOptions options;
    options.seed = seed;
    EXPECT_LT(RunScenario(scenario, options).device_use, 0.35) << "seed " << seed;
  }
}

Scenario EightBusyShares() {
  Scenario scenario;
  scenario.name = "eight busy programs";
  scenario.duration_ns = 10'000'000'000;
  for (int i = 0; i < 8; ++i) {
    ProgramSpec program;
    program.name = program.share = "p" + std::to_string(i);
    program.stop_ns = scenario.duration_ns;
    scenario.programs.push_back(program);
    ShareSpec share;
    share.name = program.name;
    scenario.shares.push_back(share);
  }
  return scenario;
}

TEST(Speed, FiftySimulatedSecondsOfEightProgramsInOneSecond) {
#ifndef NDEBUG
  GTEST_SKIP() << "a build without optimisation says nothing of speed";
#endif
  if (kSanitized) GTEST_SKIP() << "a sanitized build says nothing of speed";
  // What this machine did without prorata when the bar was set, 773, less a third. A processor that
  // does less just now (its other half is busy, its clock is down) cannot be judged by the bar.
  constexpr double kFastEnough = 500;
  double without_per_s = 0;
  for (const bool prorata : {false, true}) {
    Scenario scenario = EightBusyShares();
    scenario.prorata = prorata;
    // The fastest of three: others on the machine (caches, a CPU's other thread) only make it
    // slower.
    Report report;
    double cpu_s = 0;
    for (int i = 0; i < 3; ++i) {
      report = RunScenario(scenario, {});
      EXPECT_EQ(report.failure, "");
      EXPECT_GT(report.device_use, 0.9);
      cpu_s = i == 0 ? report.cpu_s : std::min(cpu_s, report.cpu_s);
    }
    const double simulated_per_s = 10 / cpu_s;
    RecordProperty(prorata ? "with" : "without", static_cast<int>(simulated_per_s));
    std::printf("%s prorata: %.0f simulated seconds in one of the processor's, %lu events\n",
                prorata ? "with" : "without", simulated_per_s,
                static_cast<unsigned long>(report.events));
    if (!prorata) without_per_s = simulated_per_s;
    if (simulated_per_s < 50 && without_per_s < kFastEnough) {
      GTEST_SKIP() << "too slow a processor to judge: " << simulated_per_s
                   << ", and without prorata " << without_per_s;
    }
    EXPECT_GE(simulated_per_s, 50);
  }
}

TEST(Requests, OfAnOpenLoopComeWhetherTheLastIsDoneOrNot) {
  Scenario scenario = Read("two_busy_without");
  scenario.programs.resize(1);
  scenario.expect.clear();
  ProgramSpec& program = scenario.programs[0];
  program.per_sync = 1;
  program.every_ns = 20'000'000;
  const Report calm = RunScenario(scenario, {});
  EXPECT_NEAR(static_cast<double>(calm.programs[0].latency.count), 250, 2);
  EXPECT_GT(calm.programs[0].latency.p50_ns, 1'000'000);
  EXPECT_LT(calm.programs[0].latency.p99_ns, 3'000'000);
  program.kernel = {30'000'000, 30'000'000, {}};  // more than there is time for: they pile up
  const Report late = RunScenario(scenario, {});
  EXPECT_NEAR(static_cast<double>(late.programs[0].latency.count), 167, 2);
  EXPECT_GT(late.programs[0].latency.most_ns, 1'500'000'000);
}

TEST(Requests, SpreadsAreByNearestRank) {
  EXPECT_EQ(SpreadOf({}).count, 0u);
  std::vector<int64_t> sample;
  for (int64_t i = 200; i > 0; --i) sample.push_back(i);
  const Spread spread = SpreadOf(sample);
  EXPECT_EQ(spread.p50_ns, 100);
  EXPECT_EQ(spread.p99_ns, 198);
  EXPECT_EQ(spread.most_ns, 200);
  EXPECT_EQ(SpreadOf({7}).p99_ns, 7);
}

TEST(Gaps, AreFromWhenTheDeviceIdlesAndSomebodyWaitsToTheNextKernel) {
  GapWatch watch;
  watch.Step(10, 10, true);  // busy
  watch.Step(15, 10, false);
  watch.Step(18, 10, true);
  watch.Step(20, 10, false);  // woken, and about to launch
  watch.Step(30, 20, false);
  watch.Step(40, 20, false);  // nobody waits
  watch.Step(50, 30, false);
  ASSERT_EQ(watch.gaps().size(), 1u);
  EXPECT_EQ(watch.gaps()[0].ns, 5);
  EXPECT_EQ(watch.gaps()[0].end_ns, 20);
}

// The policies to compare with: what each is known for, with the same programs.
Report RunWith(const std::string& policy, const std::string& name) {
  const Scenario scenario = Read(name);
  WorldOptions options;
  options.policy = policy;
  Report report = RunScenario(scenario, options);
  EXPECT_EQ(report.failure, "") << policy << ", " << name;
  return report;
}

TEST(OtherPolicies, RoundRobinGivesEqualTurnsWhateverTheRequestsAre) {
  for (const ProgramReport& program : RunWith("round-robin", "shares_532").programs) {
    EXPECT_NEAR(program.gpu_time, 1.0 / 3, 0.02) << program.name;
  }
}

TEST(OtherPolicies, GeminisShortestTurnsFollowTheRequests) {
  const Report report = RunWith("gemini-least", "shares_532");
  EXPECT_NEAR(report.programs[0].gpu_time, 0.5, 0.03);
  EXPECT_NEAR(report.programs[1].gpu_time, 0.3, 0.03);
  EXPECT_NEAR(report.programs[2].gpu_time, 0.2, 0.03);
}

// A token is held through its holder's gaps: half of the device's time is nobody's.
TEST(OtherPolicies, GeminisIdleQuantaWasteWhatAPairWithGapsCouldShare) {
  EXPECT_GT(RunWith("default", "gaps_without").device_use, 0.9);
  EXPECT_LT(RunWith("gemini", "gaps").device_use, 0.6);
}

}  // namespace
}  // namespace prorata::simulation
