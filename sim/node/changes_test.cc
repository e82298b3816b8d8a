// What must hold from a change on: of a share's terms, of who wants the device, of who is done with
// it. Each is a bar of issue 5, judged at every moment after the change, over several seeds.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "sim/node/report.h"
#include "sim/node/series.h"
#include "sim/node/unmet.h"

namespace prorata::simulation {
namespace {

constexpr uint64_t kSeeds = 3;

double InMs(int64_t ns) { return static_cast<double>(ns) / kMs; }

// How far `part` is from `expected` in windows of a second, one beginning every 50 ms, at worst.
template <typename Part>
double Worst(const Series& seen, int64_t from_ns, int64_t to_ns, double expected, Part part) {
  double worst = 0;
  for (int64_t at_ns = from_ns; at_ns + kS <= to_ns; at_ns += 50 * kMs) {
    worst = std::max(worst, std::abs(part(seen.At(at_ns), seen.At(at_ns + kS)) - expected));
  }
  return worst;
}

// --- Limits -------------------------------------------------------------------------------------

// 0.3, then 0.6, then 0.3 again: in every second that begins 100 ms after a change or later it has
// what the terms are now (alone within a point, beside another within the three that a second's
// shares have); and at no moment after a change has it had more than the new limit gives, one
// slice, and what was queued before.
void CheckLimitChanges(const Kind& kind, bool beside_another) {
  constexpr int64_t kUp = 3 * kS, kDown = 6 * kS, kEnd = 9 * kS;
  double worst = 0, worst_over_ms = 0;
  for (uint64_t seed = 1; seed <= SeedsToTry(kSeeds); ++seed) {
    Scenario scenario;
    scenario.duration_ns = kEnd;
    kind.Make(AddProgram(scenario, 0.3, 0.3));
    if (beside_another) kind.Make(AddProgram(scenario, 0));
    AddUpdate(scenario, kUp, 0, 0.6, 0.6);
    AddUpdate(scenario, kDown, 0, 0.3, 0.3);
    const Series seen = RunSeries(scenario, WithSeed(seed), 1 * kMs);
    EXPECT_EQ(seen.failure, "");
    const auto part = [&](size_t from, size_t to) {
      return beside_another ? seen.Achieved(0, from, to) : seen.Part(0, from, to);
    };
    const struct {
      int64_t from_ns, to_ns;
      double limit;
    } phases[] = {{400 * kMs, kUp, 0.3}, {kUp, kDown, 0.6}, {kDown, kEnd, 0.3}};
    for (const auto& phase : phases) {
      const int64_t from_ns = phase.from_ns + 100 * kMs;
      worst = std::max(worst, Worst(seen, from_ns, phase.to_ns, phase.limit, part));
      const size_t begin = seen.At(phase.from_ns);
      for (size_t at = begin; at <= seen.At(phase.to_ns); ++at) {
        const double given_ms = phase.limit * static_cast<double>(at - begin);
        worst_over_ms = std::max(worst_over_ms, InMs(seen.Busy(0, begin, at)) - given_ms);
      }
    }
  }
  std::printf("limit 0.3, 0.6, 0.3, %-7s %s: %.2f points, at most %.1f ms ahead\n", kind.name,
              beside_another ? "beside another" : "alone         ", worst * 100, worst_over_ms);
  EXPECT_LE(worst, beside_another ? 0.03 : 0.01) << kind.name;
  // A quantum, what a limited share may have queued, and the launch that passes the bound.
  EXPECT_LE(worst_over_ms, 13 + 5 + InMs(kind.launch_ns())) << kind.name;
}

TEST(Changes, ALimitHoldsAndANewOneIsReachedWithin100Ms) {
  Unmet("in single seconds a limit is off by 1.7 points with kernels of 20 us, by 1.2 with 200 us",
        {"vs 0.01\n20 us", "vs 0.01\n200 us", "vs 0.01\n5 ms"}, [] {
          for (const Kind& kind : kKinds) CheckLimitChanges(kind, false);
        });
}
TEST(Changes, ALimitHoldsAndANewOneIsReachedWithin100MsBesideAnother) {
  for (const Kind& kind : kKinds) CheckLimitChanges(kind, true);
}

// --- Who comes and goes -------------------------------------------------------------------------

// For how long the device stood still after each request, while the other program waited.
std::vector<int64_t> IdleAfterRequests(const Series& seen) {
  std::vector<int64_t> idle_ns;
  auto gap = seen.gaps.begin();
  for (const Process::Request& request : seen.requests[0]) {
    while (gap != seen.gaps.end() && gap->end_ns < request.done_ns) ++gap;
    const bool stood = gap != seen.gaps.end() && gap->end_ns - gap->ns <= request.done_ns;
    idle_ns.push_back(stood ? gap->ns : 0);
  }
  return idle_ns;
}

// A holder works for a while and sleeps; another always wants the device. From the end of the
// holder's last kernel to the next running one it is at most a millisecond, where processors are
// free. One handover is five wake-ups, each up to a millisecond late where processors are busy
// now and then: then it is so in 95 of 100.
TEST(Changes, AfterAHolderGoesIdleTheNextRunsWithinAMillisecond) {
  Unmet("idleness is reported 0.2 ms after the last work, and polled",
        {"vs 1\n20 us", "vs 1\n200 us", "vs 1\n5 ms"}, [] {
          for (const Kind& kind : kKinds) {
            for (const bool calm : {true, false}) {
              std::vector<int64_t> idle_ns;
              for (uint64_t seed = 1; seed <= SeedsToTry(kSeeds); ++seed) {
                Scenario scenario;
                scenario.duration_ns = 4 * kS;
                ProgramSpec& sleepy = AddProgram(scenario, 0.5);
                kind.Make(sleepy);
                sleepy.per_sync = static_cast<int>(10 * kMs / kind.launch_ns());
                sleepy.every_ns = 41 * kMs;
                kind.Make(AddProgram(scenario, 0));
                WorldOptions options = WithSeed(seed);
                options.watch_gaps = true;
                if (calm) options.delays.wake_late = options.delays.preempted = 0;
                options.agent_delays = options.delays;
                const Series seen = RunSeries(scenario, options, kS);
                EXPECT_EQ(seen.failure, "");
                const std::vector<int64_t> more = IdleAfterRequests(seen);
                idle_ns.insert(idle_ns.end(), more.begin(), more.end());
              }
              const Spread spread = SpreadOf(idle_ns);
              const auto within = std::count_if(idle_ns.begin(), idle_ns.end(),
                                                [](int64_t idle) { return idle <= kMs; });
              const double part = static_cast<double>(within) / static_cast<double>(spread.count);
              std::printf(
                  "after a holder, %-7s %s: %zu, p50 %.3f ms, p99 %.3f ms, %.1f %% within 1 ms\n",
                  kind.name, calm ? "calm" : "busy", spread.count, InMs(spread.p50_ns),
                  InMs(spread.p99_ns), part * 100);
              EXPECT_GT(spread.count, 200u);
              EXPECT_GE(part, calm ? 1 : 0.95) << kind.name;
            }
          }
        });
}

// A program of `request` that now and then wakes and wants more than that, beside `others` that
// always want the device. Answers how far it was behind its request of what the device gave since
// it woke, at worst, from 50 ms after waking on; in milliseconds.
double BehindAfterWaking(const Kind& kind, double request, int others) {
  double worst_ms = -INFINITY;
  size_t wakings = 0;
  for (uint64_t seed = 1; seed <= SeedsToTry(kSeeds); ++seed) {
    Scenario scenario;
    scenario.duration_ns = 5 * kS;
    ProgramSpec& sleepy = AddProgram(scenario, request);
    kind.Make(sleepy);
    sleepy.every_ns = 730 * kMs;
    sleepy.per_sync = static_cast<int>(request * 400 * kMs / static_cast<double>(kind.launch_ns()));
    for (int i = 0; i < others; ++i) kind.Make(AddProgram(scenario, (1 - request) / others));
    const Series seen = RunSeries(scenario, WithSeed(seed), 1 * kMs);
    EXPECT_EQ(seen.failure, "");
    for (const Process::Request& work : seen.requests[0]) {
      const int64_t woke_ns = work.done_ns - work.latency_ns;
      if (woke_ns < 500 * kMs) continue;  // it learns its kernels
      ++wakings;
      const size_t woke = seen.At(woke_ns) + 1;
      for (size_t at = woke + 50; at <= seen.At(work.done_ns); ++at) {
        const auto given_ns = static_cast<double>(seen.device[at] - seen.device[woke]);
        const auto had_ns = static_cast<double>(seen.Busy(0, woke, at));
        worst_ms = std::max(worst_ms, (request * given_ns - had_ns) / kMs);
      }
    }
  }
  std::printf("woken, %-7s request %.1f beside %d: %zu times, at most %.2f ms behind\n", kind.name,
              request, others, wakings, worst_ms);
  EXPECT_GT(wakings, 12u);
  return worst_ms;
}

// Seen: a launch that was alone in its batch was charged, and its function learned, with all the
// sleep behind it, so that a program woke in debt.
TEST(Changes, AWokenNeighbourHasItsRequestFrom50MsOnButForOneLease) {
  Unmet("up to 19 ms behind beside seven others, and 13.6 beside one with kernels of 20 us",
        {"(kind, 0.8, 7)", "(kind, 0.1, 3)) <= (kLeaseMs), actual: 13.",
         "(kind, 0.5, 1)) <= (kLeaseMs), actual: 13."},
        [] {
          constexpr double kLeaseMs = 13;
          for (const Kind& kind : kKinds) {
            EXPECT_LE(BehindAfterWaking(kind, 0.5, 1), kLeaseMs) << kind.name;
            EXPECT_LE(BehindAfterWaking(kind, 0.1, 3), kLeaseMs) << kind.name;
            // Two of the seven may have their turns one after the other.
            EXPECT_LE(BehindAfterWaking(kind, 0.8, 7), kLeaseMs) << kind.name;
          }
        });
}

}  // namespace
}  // namespace prorata::simulation
