// The mixes of the issue and of shared/model/time, by name: everyone's speed is at least its
// request of its speed alone.

#include "sim/node/promises.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "sim/node/random_promises.h"
#include "sim/node/unmet.h"

namespace prorata::simulation {
namespace {

struct Mix {
  std::string name;
  Scenario scenario;
  double least = 0.97;  // of request x speed alone
};

ProgramSpec& Busy(Scenario& s, double request, int64_t kernel_ns, int per_sync = 16,
                  double limit = 1) {
  ProgramSpec& program = AddProgram(s, request, limit);
  program.kernel = {kernel_ns, kernel_ns, {}};
  program.per_sync = per_sync;
  return program;
}
// Waits for each of its kernels, and launches the next after so long.
ProgramSpec& Think(Scenario& s, double request, int64_t kernel_ns, int64_t host_ns) {
  ProgramSpec& program = Busy(s, request, kernel_ns, 1);
  program.gap_ns = host_ns;
  return program;
}
ProgramSpec& Bursts(Scenario& s, double request, int64_t work_ns, int64_t sleep_ns,
                    int64_t kernel_ns = 200 * kUs) {
  ProgramSpec& program = Busy(s, request, kernel_ns, static_cast<int>(work_ns / kernel_ns));
  program.gap_ns = sleep_ns;
  return program;
}

Scenario For(int64_t duration_ns, int64_t switch_ns = 100 * kUs) {
  Scenario scenario;
  scenario.duration_ns = duration_ns;
  scenario.machine.devices[0].switch_cost_ns = switch_ns;
  return scenario;
}

std::vector<Mix> Mixes() {
  std::vector<Mix> mixes;
  const auto mix = [&](const char* name, int64_t duration_ns, int64_t switch_ns,
                       double least = 0.97) -> Scenario& {
    mixes.push_back({name, For(duration_ns, switch_ns), least});
    return mixes.back().scenario;
  };
  const int64_t usual = 100 * kUs;
  {
    Scenario& s = mix("0.5 0.3 0.2 busy", 6 * kS, usual);
    for (const double r : {0.5, 0.3, 0.2}) Busy(s, r, kMs);
  }
  {
    Scenario& s = mix("0.9 0.1 busy 200 us", 6 * kS, usual);
    for (const double r : {0.9, 0.1}) Busy(s, r, 200 * kUs);
  }
  {
    Scenario& s = mix("0.7 busy 750 us, 0.3 5 us with a sync each", 6 * kS, usual);
    Busy(s, 0.7, 750 * kUs, 32);
    Think(s, 0.3, 5 * kUs, 0);
  }
  {
    Scenario& s = mix("the same, 25 us on the host", 6 * kS, usual);
    Busy(s, 0.7, 750 * kUs, 32);
    Think(s, 0.3, 5 * kUs, 25 * kUs);
  }
  for (const int64_t kernel_ns : {300 * kMs, kS, 3 * kS}) {
    Scenario& s = mix("0.9 busy, 0.1 long kernels", 61 * kS, usual, 0.95);
    Busy(s, 0.9, kMs);
    Busy(s, 0.1, kernel_ns, 1);
  }
  for (const int64_t switch_ns : {usual, 10 * kUs}) {
    Scenario& s = mix("0.5 0.5 bursts and gaps of 50 us", 6 * kS, switch_ns);
    for (int i = 0; i < 2; ++i) Bursts(s, 0.5, 50 * kUs, 50 * kUs, 50 * kUs);
  }
  {
    Scenario& s = mix("0.5 0.5, 6 ms of work, 4 ms asleep", 6 * kS, usual);
    for (int i = 0; i < 2; ++i) Bursts(s, 0.5, 6 * kMs, 4 * kMs);
  }
  {
    Scenario& s = mix("8 x 0.125", 6 * kS, usual);
    for (int i = 0; i < 8; ++i) Busy(s, 0.125, kMs);
  }
  {
    Scenario& s = mix("0.2 poisson 4 ms each 40 ms, 0.8 busy 2 ms", 6 * kS, usual);
    ProgramSpec& poisson = Busy(s, 0.2, 4 * kMs, 1);
    poisson.every_ns = 44 * kMs;
    poisson.poisson = true;
    Busy(s, 0.8, 2 * kMs);
  }
  return mixes;
}

TEST(Promises, EverybodyRunsAtItsRequestOfItsSpeedAlone) {
  Unmet("kernels of 1 and 3 s: 0.092 of 0.1 in 60 s; one of eight shares 0.964 of its request",
        {"0.1 long kernels, program 1", "8 x 0.125, program 4"}, [] {
          for (const Mix& mix : Mixes()) {
            const Promises seen = Judge(mix.scenario);
            EXPECT_EQ(seen.failure, "") << mix.name;
            std::printf("%-44s use %.3f, idle %.3f", mix.name.c_str(), seen.use, seen.idle_waited);
            for (size_t i = 0; i < seen.programs.size(); ++i) {
              const Promise& promise = seen.programs[i];
              const double request = mix.scenario.shares[i].compute.request.value();
              std::printf(" | %.3f (r %.2f) busy %.3f charged %.3f", promise.speed, request,
                          promise.busy, promise.charged);
            }
            std::printf("\n");
            for (size_t i = 0; i < seen.programs.size(); ++i) {
              EXPECT_GE(seen.programs[i].speed,
                        mix.least * mix.scenario.shares[i].compute.request.value())
                  << mix.name << ", program " << i;
            }
            // A program that waits for each kernel, or sleeps, leaves gaps in its own slices.
            const bool gaps =
                std::any_of(mix.scenario.programs.begin(), mix.scenario.programs.end(),
                            [](const ProgramSpec& program) {
                              return program.gap_ns > 0 || program.per_sync == 1;
                            });
            if (!gaps) {
              EXPECT_LE(seen.idle_waited, 0.02) << mix.name;
            }
          }
        });
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// Of a program that sleeps, each waking may cost a backlog bound (1 ms) and one of others' kernels.
double LeastSpeed(const Scenario& scenario, size_t i, double request) {
  const ProgramSpec& program = scenario.programs[i];
  if (program.gap_ns < 200 * kUs && program.every_ns == 0) return 0.97 * request;
  int64_t longest_ns = 0;
  for (const ProgramSpec& other : scenario.programs) {
    if (&other != &program) longest_ns = std::max(longest_ns, other.kernel.high_ns);
  }
  const int64_t own_ns = program.kernel.high_ns * program.per_sync;
  const int64_t round_ns = std::max(program.every_ns, own_ns + program.gap_ns);
  const auto waking_ns = static_cast<double>(1 * kMs + longest_ns);
  const double slowed = static_cast<double>(round_ns) / (static_cast<double>(round_ns) + waking_ns);
  return 0.97 * request * std::max(slowed, 0.5);
}

TEST(Promises, RandomMixesWithRequests) {
  const uint64_t from = FromEnvironment("FROM", 0), count = FromEnvironment("COUNT", 40);
  int shares = 0, short_of = 0, undercharged = 0;
  double least = 10;
  for (uint64_t seed = from; seed < from + count; ++seed) {
    const RandomMix mix = MakeRandomMix(seed, true);
    const Promises seen = Judge(mix.scenario, {.seed = seed});
    EXPECT_EQ(seen.failure, "") << "seed " << seed;
    for (size_t i = 0; i < seen.programs.size(); ++i) {
      const double request = mix.scenario.shares[i].compute.request.value();
      const Promise& promise = seen.programs[i];
      const double bar = LeastSpeed(mix.scenario, i, request);
      ++shares;
      least = std::min(least, promise.speed / request);
      short_of += promise.speed < bar;
      if (promise.speed < bar) {
        std::printf("seed %llu, %zu: %.3f of request x alone (bar %.3f), charged %.3f, busy %.3f\n",
                    static_cast<unsigned long long>(seed), i, promise.speed / request,
                    bar / request, promise.charged, promise.busy);
        for (size_t k = 0; k < mix.words.size(); ++k) {
          std::printf("     %zu: %s: %.3f\n", k, mix.words[k].c_str(), seen.programs[k].speed);
        }
      }
      if (promise.charged >= 0.99 * promise.busy - 0.002) continue;
      ++undercharged;
      std::printf("seed %llu, %zu: charged %.3f, busy %.3f\n",
                  static_cast<unsigned long long>(seed), i, promise.charged, promise.busy);
    }
  }
  std::printf("%d shares: least %.3f of request x alone, %d below their bar\n", shares, least,
              short_of);
  Unmet("four of 141 shares are below 0.97 of request x their speed alone",
        [short_of] { EXPECT_EQ(short_of, 0); });
  // Of shares that hold leases together nobody knows how they divided the device, NVML neither
  // (docs/design/decisions/audits.md). Seen are four; more than eight is new.
  EXPECT_LE(undercharged, 8);
  Unmet("of shares that leave gaps some are charged less than 0.99 of what they used",
        [undercharged] { EXPECT_EQ(undercharged, 0); });
}

TEST(Promises, RandomMixesWithoutRequestsLoseNothing) {
  const uint64_t from = FromEnvironment("FROM", 0), count = FromEnvironment("COUNT", 40);
  double least = 10;
  for (uint64_t seed = from; seed < from + count; ++seed) {
    const RandomMix mix = MakeRandomMix(seed, false);
    Scenario without = mix.scenario;
    without.prorata = false;
    const double use = RunPromises(mix.scenario, {.seed = seed}).use;
    const double bare = RunPromises(without, {.seed = seed}).use;
    least = std::min(least, use / bare);
    EXPECT_GE(use, 0.99 * bare) << "seed " << seed;
  }
  std::printf("without requests: at least %.4f of no prorata\n", least);
}

TEST(Promises, ALimitAloneHolds) {
  for (const double limit : {0.1, 0.3, 0.5}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      RandomMix mix = MakeRandomMix(seed, false);
      mix.scenario.programs.resize(1);
      mix.scenario.shares.resize(1);
      mix.scenario.shares[0].compute.limit.ppm = static_cast<uint32_t>(limit * 1e6);
      mix.scenario.duration_ns = 11 * kS;
      const Promises seen = Judge(mix.scenario, {.seed = seed});
      const Promise& one = seen.programs[0];
      Scenario alone = mix.scenario;
      alone.prorata = false;
      const double busy_alone = RunPromises(alone, {.seed = seed}).programs[0].busy;
      EXPECT_LE(one.busy, limit + 0.01) << mix.words[0] << ", limit " << limit;
      EXPECT_LE(one.charged, limit + 0.01) << mix.words[0] << ", limit " << limit;
      // One that asks for more than its limit has it.
      if (busy_alone >= 0.97) {
        EXPECT_GE(one.busy, limit - 0.01) << mix.words[0];
      }
    }
  }
}

}  // namespace
}  // namespace prorata::simulation
