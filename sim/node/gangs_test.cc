// Two jobs on the same two GPUs whose kernels wait for their peer on the other one, on layer V.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <functional>
#include <utility>

#include "sim/node/bars.h"
#include "sim/node/unmet.h"

namespace prorata::simulation {
namespace {

// A launch that its peer does not follow gives nothing, however busy its device is: what counts is
// the launches that came to their end on both.
struct Job {
  const char* name;
  int64_t kernel_ns;
  int per_sync;
  int collective_every;
};
const Job kJobs[] = {
    {"collectives of 1 ms", 1 * kMs, 16, 1}, {"collectives of 200 us", 200 * kUs, 16, 1},
    {"never synchronises", 500 * kUs, 0, 1}, {"each tenth of 100 us", 100 * kUs, 20, 10},
    {"each fourth of 5 ms", 5 * kMs, 8, 4},
};

Scenario TwoJobs(const Job& job, size_t jobs, ShareSpec::Gang gang) {
  Scenario scenario;
  scenario.duration_ns = 11 * kS;
  scenario.machine.devices.push_back(scenario.machine.devices[0]);
  scenario.machine.devices[1].uuid = "GPU-2";
  for (size_t i = 0; i < jobs; ++i) {
    ProgramSpec& program = AddProgram(scenario, 0);
    program.kernel = {job.kernel_ns, job.kernel_ns, {}};
    program.per_sync = job.per_sync;
    program.devices = {0, 1};
    program.collective_every = job.collective_every;
  }
  for (ShareSpec& share : scenario.shares) share.gang = gang;
  FindDevices(&scenario);
  return scenario;
}

struct Done {
  double all = 0;    // device time of the launches that were made on both devices
  double least = 0;  // in the least of all windows of half a second, of one job
};

Done Measure(const Scenario& scenario, uint64_t seed) {
  constexpr int64_t kWindowNs = 500 * kMs;
  WorldOptions options;
  options.seed = seed;
  World world(scenario, options);
  world.RunUntil(1 * kS);
  const auto made = [&](size_t program) {
    uint64_t least = UINT64_MAX;
    for (const auto& process : world.processes()) {
      if (&process->spec() != &scenario.programs[program]) continue;
      least = std::min(least, process->launches());
    }
    return static_cast<double>(least) *
           static_cast<double>(scenario.programs[program].kernel.low_ns);
  };
  Done done;
  done.least = 1;
  std::vector<double> before;
  for (size_t i = 0; i < scenario.programs.size(); ++i) before.push_back(made(i));
  for (int64_t end_ns = 1 * kS + kWindowNs; end_ns <= scenario.duration_ns; end_ns += kWindowNs) {
    world.RunUntil(end_ns);
    for (size_t i = 0; i < before.size(); ++i) {
      const double now = made(i);
      done.least = std::min(done.least, (now - before[i]) / static_cast<double>(kWindowNs));
      done.all += (now - before[i]) / static_cast<double>(scenario.duration_ns - 1 * kS);
      before[i] = now;
    }
  }
  EXPECT_EQ(world.failure(), "");
  world.Finish();
  EXPECT_EQ(world.failure(), "");
  return done;
}

// The bar: what two of them make together, of what one makes alone.
void Compare(ShareSpec::Gang gang, double bar) {
  for (const Job& job : kJobs) {
    const Done alone = Measure(TwoJobs(job, 1, gang), 1);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const Done both = Measure(TwoJobs(job, 2, gang), seed);
      std::printf("%-24s alone %.3f, two %.3f (%.1f %%), in the worst half second %.3f\n", job.name,
                  alone.all, both.all, 100 * both.all / alone.all, both.least);
      EXPECT_GE(both.all, bar * alone.all) << job.name << ", seed " << seed;
      EXPECT_GT(both.least, 0) << job.name << ", seed " << seed;
    }
  }
}

// Nothing is done about it: what is stalled is waited for by nobody.
TEST(Gangs, LeasesOfEachDeviceAloneNeverStick) { Compare(ShareSpec::Gang::kNever, 0); }

TEST(Gangs, SharesThatStallBecomeOne) {
  Unmet("collectives of 200 us: 45 % with one seed of three, for it is seen late that they stall",
        {"collectives of 200 us"}, [] { Compare(ShareSpec::Gang::kAuto, 0.5); });
}

TEST(Gangs, RequestedLoseLittleToEachOther) { Compare(ShareSpec::Gang::kAlways, 0.95); }

// A job of two ranks by request, and beside it on each device a busy share with a request of 0.4.
// At one second something befalls its second rank. The least that each of these two had of a device
// in one of the next five.
std::array<double, 2> BesideAJob(uint64_t seed, const std::function<void(Process&)>& befalls) {
  Scenario scenario = TwoJobs(kJobs[0], 1, ShareSpec::Gang::kAlways);
  for (const int device : {0, 1}) AddProgram(scenario, 0.4).devices = {device};
  FindDevices(&scenario);
  WorldOptions options = WithSeed(seed);
  options.check = false;  // its first rank waits for ever
  World world(scenario, options);
  std::array<int64_t, 2> busy_ns{};
  std::array<double, 2> least = {1, 1};
  for (int64_t second = 1; second <= 6; ++second) {
    world.RunUntil(second * kS);
    for (size_t i = 0; i < 2; ++i) {
      const int64_t now_ns = world.ProgramBusyNs(i + 1);
      const auto had_ns = static_cast<double>(now_ns - std::exchange(busy_ns[i], now_ns));
      if (second > 1) least[i] = std::min(least[i], had_ns / kS);
    }
    if (second > 1) continue;
    for (const auto& process : world.processes()) {
      if (&process->spec() == scenario.programs.data() && process->device() == 1) befalls(*process);
    }
  }
  return least;
}

// The kernel of its peer never ends. It has what the device's time slices leave to the other.
TEST(Gangs, OneWithADeadRankIsNone) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto [beside, free] = BesideAJob(seed, [](Process& rank) { rank.Kill(); });
    EXPECT_GE(beside, 0.97 * 0.4) << "seed " << seed;
    EXPECT_GE(free, 0.97) << "seed " << seed;
  }
}

TEST(Gangs, OneWithAStoppedRankIdlesNoDevice) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto [beside, free] = BesideAJob(seed, [](Process& rank) { rank.Stop(100 * kS); });
    EXPECT_GE(beside, 0.97 * 0.4) << "seed " << seed;
    EXPECT_GE(free, 0.97) << "seed " << seed;
  }
}

// A job whose first rank evaluates, or saves, for so long after each synchronisation, while the
// other's kernel waits for it on its device. What a busy share on each of the two devices has
// beside it in ten seconds.
std::array<double, 2> BesideABusyRank(int64_t gap_ns, uint64_t seed) {
  constexpr int64_t kFromNs = 1 * kS, kToNs = 11 * kS;
  Scenario scenario = TwoJobs(kJobs[0], 1, ShareSpec::Gang::kAlways);
  scenario.programs[0].first_gap_ns = gap_ns;
  scenario.shares[0].compute.request = {400'000};
  for (const int device : {0, 1}) AddProgram(scenario, 0.5).devices = {device};
  FindDevices(&scenario);
  World world(scenario, WithSeed(seed));
  std::array<double, 2> had{};
  for (const int64_t at_ns : {kFromNs, kToNs}) {
    world.RunUntil(at_ns);
    for (size_t i = 0; i < 2; ++i) {
      const auto ns = static_cast<double>(world.ProgramBusyNs(i + 1));
      had[i] = ns / (kToNs - kFromNs) - had[i];
    }
  }
  EXPECT_EQ(world.failure(), "");
  return had;
}

TEST(Gangs, OneWhoseFirstRankIsBusyElsewhereLeavesOthersTheirs) {
  for (const int64_t gap_ns : {5 * kMs, 30 * kMs, 300 * kMs, 2 * kS}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const std::array<double, 2> had = BesideABusyRank(gap_ns, seed);
      EXPECT_GE(had[0], 0.97 * 0.5) << gap_ns / kMs << " ms, seed " << seed;
      EXPECT_GE(had[1], 0.97 * 0.5) << gap_ns / kMs << " ms, seed " << seed;
    }
  }
}

// A job with a request of 0.4 whose ranks do not launch alike: between two collectives the first
// makes so many launches more. What it made of its launches alone, and what a busy share with a
// request of 0.5 on each of its devices had.
struct Unlike {
  int more;
  int64_t kernel_ns;
  int per_sync;
  int collective_every;
};

void KeepsItsRequest(const Unlike& unlike) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    std::array<double, 2> made{}, had{};
    for (const bool alone : {true, false}) {
      const Job job = {"", unlike.kernel_ns, unlike.per_sync, unlike.collective_every};
      Scenario scenario = TwoJobs(job, 1, ShareSpec::Gang::kAlways);
      scenario.programs[0].first_more = unlike.more;
      scenario.shares[0].compute.request = {400'000};
      for (const int device : {0, 1}) {
        if (!alone) AddProgram(scenario, 0.5).devices = {device};
      }
      FindDevices(&scenario);
      World world(scenario, WithSeed(seed));
      for (const int64_t at_ns : {1 * kS, 6 * kS}) {
        world.RunUntil(at_ns);
        double launches = 0;
        for (const auto& process : world.processes()) {
          if (&process->spec() == scenario.programs.data()) launches += process->launches();
        }
        made[alone ? 0 : 1] = launches - made[alone ? 0 : 1];
        for (size_t i = 0; i < 2 && !alone; ++i) {
          had[i] = static_cast<double>(world.ProgramBusyNs(i + 1)) / (5 * kS) - had[i];
        }
      }
      EXPECT_EQ(world.failure(), "");
    }
    EXPECT_GE(made[1], 0.97 * 0.4 * made[0]) << unlike.more << " more, seed " << seed;
    EXPECT_GE(had[0], 0.97 * 0.5) << unlike.more << " more, seed " << seed;
    EXPECT_GE(had[1], 0.97 * 0.5) << unlike.more << " more, seed " << seed;
  }
}

TEST(Gangs, RanksThatDoNotLaunchAlikeKeepTheirRequest) {
  for (const Unlike& unlike :
       {Unlike{1, 500 * kUs, 16, 4}, Unlike{1, 2 * kMs, 8, 4}, Unlike{1, 100 * kUs, 40, 10},
        Unlike{3, 1 * kMs, 16, 1}, Unlike{1, 500 * kUs, 0, 4}, Unlike{10, 500 * kUs, 16, 4}}) {
    KeepsItsRequest(unlike);
  }
}

TEST(Gangs, OfWhichOneHasNearlyAllTheWorkKeepTheirRequest) {
  Unmet(
      "0.31 of its speed alone, bar 0.388: at the end of each turn the other's kernel waits for "
      "up to ten launches of the first, which are made in steps",
      {"made[0]"}, [] { KeepsItsRequest({10, 1 * kMs, 16, 1}); });
}

}  // namespace
}  // namespace prorata::simulation
