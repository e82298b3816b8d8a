#include "policy/time_sharing.h"

#include <gtest/gtest.h>

#include <map>

#include "policy/testing_device.h"

namespace prorata::policy {
namespace {

using testing::kMs;
using testing::kS;
using testing::kUs;
using testing::Machine;
using testing::Program;

Program Busy(double request, double limit = 1, uint32_t weight = 100) {
  Program program;
  program.terms = {{static_cast<uint32_t>(request * 1e6 + 0.5)},
                   {static_cast<uint32_t>(limit * 1e6 + 0.5)},
                   weight};
  return program;
}

Program Gappy(double request, int64_t burst_ns, int64_t gap_ns) {
  Program program = Busy(request);
  program.kernel_max_ns = std::min<int64_t>(program.kernel_max_ns, burst_ns);
  program.burst_ns = burst_ns;
  program.gap_ns = gap_ns;
  return program;
}

std::vector<double> Achieved(Machine& machine, size_t programs, int64_t from_ns, int64_t to_ns) {
  machine.RunUntil(from_ns);
  std::vector<int64_t> before;
  for (size_t i = 0; i < programs; ++i) before.push_back(machine.Used(i));
  const int64_t all_before = machine.UsedByAll();
  machine.RunUntil(to_ns);
  std::vector<double> achieved;
  for (size_t i = 0; i < programs; ++i) {
    achieved.push_back(static_cast<double>(machine.Used(i) - before[i]) /
                       static_cast<double>(machine.UsedByAll() - all_before));
  }
  return achieved;
}

void ExpectAchieved(const std::vector<Program>& programs, const std::vector<double>& entitled,
                    int seeds, double tolerance = 0.01) {
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Machine machine(programs, static_cast<uint32_t>(seed), 1 * kMs);
    const auto achieved = Achieved(machine, programs.size(), 200 * kMs, 5200 * kMs);
    for (size_t i = 0; i < programs.size(); ++i) {
      EXPECT_NEAR(achieved[i], entitled[i], tolerance) << "share " << i;
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(TimeSharing, ThreeBusySharesGetTheirRequests) {
  ExpectAchieved({Busy(0.5), Busy(0.3), Busy(0.2)}, {0.5, 0.3, 0.2}, 200);
}

// Seen with two processes on a share of 0.25 beside a busy one of 0.75: they got 0.14. Such a share
// is charged the whole time of its turns, with what messages take of it: here little.
TEST(TimeSharing, MembersThatRunAtOnceAreNotChargedTwice) {
  std::vector<Program> programs = {Busy(0.5), Busy(0.3), Busy(0.2)};
  programs[0].members = 2;
  programs[1].members = 3;
  const std::vector<double> entitled = {0.5, 0.3, 0.2};
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    Machine machine(programs, seed, 100 * kUs);
    const auto achieved = Achieved(machine, 3, 200 * kMs, 5200 * kMs);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(achieved[i], entitled[i], 0.01) << seed << ": " << i;
  }
}

TEST(TimeSharing, MembersThatRunAtOnceGetTheirWholeLimit) {
  Program limited = Busy(0, 0.3);
  limited.members = 2;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    Machine machine({limited}, seed, 100 * kUs);
    machine.RunUntil(200 * kMs);
    const int64_t before = machine.Used(0);
    machine.RunUntil(5200 * kMs);
    EXPECT_NEAR(static_cast<double>(machine.Used(0) - before) / (5.0 * kS), 0.3, 0.01) << seed;
  }
}

// Each launches and drains at once, so a turn is as long as the policy lets it be.
double TurnMs(uint64_t shares) {
  TimeSharing sharing;
  std::map<uint64_t, uint64_t> charged_ns;
  for (uint64_t key = 1; key <= shares; ++key) {
    sharing.Add(key, {}, 0, 0);
    sharing.Wanted(key, 0);
  }
  uint64_t holder = 0, turns = 0;
  int64_t now_ns = 0;
  for (; now_ns < 1 * kS; now_ns += 50 * kUs) {
    for (uint64_t key = 1; key <= shares; ++key) {
      if (key == holder) charged_ns[key] += static_cast<uint64_t>(50 * kUs);
      sharing.Report(key, charged_ns[key], 0);
      if (sharing.Draining(key)) sharing.Drained(key, now_ns);
      if (!sharing.State(key).open) sharing.Wanted(key, now_ns);
    }
    for (const LeasePolicy::Lease& lease : sharing.Decide(now_ns).changes) {
      if (!lease.open || lease.share == holder) continue;
      holder = lease.share;
      ++turns;
    }
  }
  return static_cast<double>(now_ns) / 1e6 / static_cast<double>(turns);
}

TEST(TimeSharing, TurnsOfTwoAreLonger) {
  EXPECT_NEAR(TurnMs(2), 16.25, 0.4);
  EXPECT_NEAR(TurnMs(3), 13, 0.4);
  EXPECT_NEAR(TurnMs(8), 13, 0.4);
}

TEST(TimeSharing, SpareGoesByWeight) {
  ExpectAchieved({Busy(0.5), Busy(0.2)}, {0.65, 0.35}, 100);
  ExpectAchieved({Busy(0.5, 1, 200), Busy(0.2, 1, 100)}, {0.7, 0.3}, 100);
  ExpectAchieved({Busy(0), Busy(0), Busy(0)}, {1 / 3.0, 1 / 3.0, 1 / 3.0}, 100);
}

// One such kernel is up to 1.6 % of the window.
TEST(TimeSharing, LongKernelsArePaidFor) {
  Program slow = Busy(0.5);
  slow.kernel_min_ns = 30 * kMs;
  slow.kernel_max_ns = 80 * kMs;
  ExpectAchieved({slow, Busy(0.5)}, {0.5, 0.5}, 50, 0.03);
}

// Seen: with 200 ms kernels beside two of short ones the long one got 0.6. What the short ones were
// owed was capped by their own short turns.
TEST(TimeSharing, LongKernelsArePaidForToEachOfTheOthers) {
  Program slow = Busy(0);
  slow.kernel_min_ns = slow.kernel_max_ns = 200 * kMs;
  std::vector<Program> programs = {slow, Busy(0), Busy(0)};
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Machine machine(programs, seed, 100 * kUs);
    const auto achieved = Achieved(machine, 3, 1 * kS, 21 * kS);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(achieved[i], 1.0 / 3, 0.03) << seed << ": " << i;
  }
}

TEST(TimeSharing, ALimitHoldsAlone) {
  for (int seed = 1; seed <= 100; ++seed) {
    Machine machine({Busy(0, 0.3)}, static_cast<uint32_t>(seed), 1 * kMs);
    machine.RunUntil(200 * kMs);
    const int64_t before = machine.Used(0);
    machine.RunUntil(5200 * kMs);
    EXPECT_NEAR(static_cast<double>(machine.Used(0) - before) / (5.0 * kS), 0.30, 0.01)
        << "seed " << seed;
  }
}

TEST(TimeSharing, ALimitHoldsBesideOthersWhoTakeTheRest) {
  for (int seed = 1; seed <= 50; ++seed) {
    Machine machine({Busy(0.1, 0.2), Busy(0.3)}, static_cast<uint32_t>(seed), 0);
    machine.RunUntil(200 * kMs);
    const int64_t limited = machine.Used(0);
    const int64_t other = machine.Used(1);
    machine.RunUntil(5200 * kMs);
    EXPECT_NEAR(static_cast<double>(machine.Used(0) - limited) / (5.0 * kS), 0.2, 0.01) << seed;
    EXPECT_NEAR(static_cast<double>(machine.Used(1) - other) / (5.0 * kS), 0.8, 0.01) << seed;
  }
}

TEST(TimeSharing, NeverIdleWhileSomebodyWants) {
  for (int seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::vector<Program> programs;
    for (uint32_t i = 0; i < 2 + random() % 5; ++i) {
      programs.push_back(random() % 2 != 0 ? Busy(0.1 * (random() % 2))
                                           : Gappy(0.1 * (random() % 2), (1 + random() % 20) * kMs,
                                                   (1 + random() % 30) * kMs));
      programs.back().start_ns = random() % 100 * kMs;
    }
    Machine machine(programs, static_cast<uint32_t>(seed), 0);
    machine.RunUntil(3 * kS);
    // With messages that take no time, the only idleness is a gap shorter than idle_report.
    EXPECT_LE(machine.wasted_ns(), 3 * kS / 50) << "seed " << seed;
  }
}

TEST(TimeSharing, ASwitchCostsOnlyItsMessages) {
  for (int seed = 1; seed <= 50; ++seed) {
    Machine machine({Busy(0.5), Busy(0.3), Busy(0.2)}, static_cast<uint32_t>(seed), 100 * kUs);
    machine.RunUntil(3 * kS);
    EXPECT_LE(machine.wasted_ns(), 3 * kS * 2 / 100) << "seed " << seed;
  }
}

TEST(TimeSharing, AWokenNeighbourIsServedAtOnceAndWithinItsRequest) {
  for (int seed = 1; seed <= 100; ++seed) {
    Program sleeper = Busy(0.4);
    sleeper.start_ns = 1 * kS;
    Machine machine({Busy(0.5), Busy(0), sleeper}, static_cast<uint32_t>(seed), 500 * kUs);
    machine.RunUntil(1 * kS + 50 * kMs);
    for (int64_t t = 50; t <= 1000; t += 25) {
      machine.RunUntil(1 * kS + t * kMs);
      EXPECT_GE(machine.Used(2), 0.4 * 0.9 * static_cast<double>(t * kMs) - 15 * kMs)
          << "seed " << seed << " at " << t << " ms";
    }
    // Nor is what was there before it starved by it.
    EXPECT_GE(machine.Used(0), 1 * kS / 3) << "seed " << seed;
  }
}

TEST(TimeSharing, AProgramWithGapsGetsWhatItCanUseUpToItsEntitlement) {
  for (int seed = 1; seed <= 50; ++seed) {
    // 3 ms of work, then 7 ms of none: 30 % of the device, below its entitlement of 70 %.
    Machine machine({Gappy(0.4, 3 * kMs, 7 * kMs), Busy(0)}, static_cast<uint32_t>(seed), 0);
    machine.RunUntil(200 * kMs);
    const int64_t before = machine.Used(0);
    machine.RunUntil(5200 * kMs);
    EXPECT_GE(static_cast<double>(machine.Used(0) - before) / (5.0 * kS), 0.20) << "seed " << seed;
  }
}

TEST(TimeSharing, NobodyStarvesEvenWhereRequestsFillTheDevice) {
  for (int seed = 1; seed <= 20; ++seed) {
    Machine machine({Busy(0.6), Busy(0.4), Busy(0)}, static_cast<uint32_t>(seed), 1 * kMs);
    const auto achieved = Achieved(machine, 3, 1 * kS, 11 * kS);
    EXPECT_GT(achieved[2], 0.002) << "seed " << seed;
    EXPECT_NEAR(achieved[0], 0.6, 0.01) << "seed " << seed;
  }
}

TEST(TimeSharing, AHolderThatDoesNotDrainIsPassedOver) {
  Program stuck = Busy(0.5);
  stuck.never_drains = true;
  Machine machine({stuck, Busy(0.3), Busy(0.2)}, 1, 100 * kUs);
  machine.RunUntil(5 * kS);
  EXPECT_TRUE(machine.sharing().State(0).passed_over);
  EXPECT_GE(machine.UsedByAll(), 4900 * kMs);
  EXPECT_LE(machine.longest_wait_ns(), 100 * kMs);
  // Beside it the others' work takes twice as long, and they may queue as much more.
  EXPECT_EQ(machine.sharing().ContendedBacklogNs(1), 2 * LeasePolicy::kContendedBacklogNs);
}

// A stopped process: its lease is open, it uses nothing, and it reports nothing.
TEST(TimeSharing, AHolderThatDoesNothingAndSaysNothingLosesItsTurn) {
  TimeSharing sharing;
  const ComputeTerms terms = Busy(0.5).terms;
  sharing.Add(1, terms, 0, 0);
  sharing.Add(2, terms, 0, 0);
  int64_t now = 0;
  // 2 is behind: 1 had a long turn. Then 2 gets its own, and stops.
  sharing.Wanted(1, now);
  sharing.Decide(now);
  sharing.Wanted(2, now);
  sharing.Decide(now += 1 * kMs);
  sharing.Report(1, 20 * kMs, 0);
  sharing.Decide(now += 19 * kMs);
  sharing.Drained(1, now);
  sharing.Decide(now);
  ASSERT_TRUE(sharing.State(2).open);
  ASSERT_GT(sharing.State(2).lag_ns, sharing.State(1).lag_ns);
  sharing.Wanted(1, now);
  for (int i = 0; i < 200 && !sharing.State(1).open; ++i) {
    const auto decisions = sharing.Decide(now);
    if (sharing.State(1).open) break;
    ASSERT_NE(decisions.next_ns, TimeSharing::kNever);
    now = std::max(now + 1, decisions.next_ns);
  }
  EXPECT_TRUE(sharing.State(1).open);
  EXPECT_LE(now, 100 * kMs);
}

TEST(TimeSharing, AloneALeaseIsOpenedOnceAndStaysOpen) {
  Machine machine({Busy(0.1)}, 1, 100 * kUs);
  machine.RunUntil(5 * kS);
  EXPECT_EQ(machine.switches(), 1);
  EXPECT_GE(machine.Used(0), 4990 * kMs);
}

// Its lease was opened before it wanted anything, and it need not ask: what it has queued says that
// it is not idle, before any of it ends and is charged.
TEST(TimeSharing, WhoHasWorkQueuedIsNotIdleThoughNothingWasChargedYet) {
  TimeSharing sharing;
  sharing.Add(1, Busy(0.5).terms, 0, 0);
  sharing.Decide(0);
  ASSERT_TRUE(sharing.State(1).open);
  sharing.Report(1, 0, 3 * kS);
  sharing.Add(2, Busy(0.5).terms, 0, 50 * kMs);
  sharing.Wanted(2, 50 * kMs);
  sharing.Decide(50 * kMs);
  EXPECT_TRUE(sharing.Draining(1));
  EXPECT_FALSE(sharing.State(2).open);
  sharing.Report(1, 3 * kS, 0);
  sharing.Drained(1, 3 * kS);
  sharing.Decide(3 * kS);
  EXPECT_TRUE(sharing.State(2).open);
}

// Seen with the agent: a share whose lease was opened before it wanted it was taken to have starved
// since the machine's start, and had every turn.
TEST(TimeSharing, WhoHadTheDeviceOpenHasNotStarved) {
  ComputeTerms above = Busy(0).terms;
  above.priority = 1;
  for (const int64_t open_ns : {kMs, 10 * kS}) {
    TimeSharing sharing;
    int64_t now = 3'000 * kS;
    sharing.Add(1, Busy(0).terms, 0, now);
    sharing.Decide(now);
    ASSERT_TRUE(sharing.State(1).open);
    sharing.Report(1, 0, kMs);
    now += open_ns;
    sharing.Add(2, above, 0, now);
    sharing.Wanted(2, now);
    sharing.Decide(now);
    sharing.Drained(1, now += kMs);
    sharing.Wanted(1, now);
    sharing.Decide(now);
    ASSERT_TRUE(sharing.State(2).open) << open_ns;
    sharing.Decide(now += kMs);
    EXPECT_TRUE(sharing.State(2).open) << open_ns << ": its turn has only begun";
  }
}

// Seen in the simulation: each time that the one above it was late to launch, a share got in for
// one kernel, and then waited again as long as if it had had its turn.
TEST(TimeSharing, AMomentOfServiceIsNotTheTurnThatAStarvingShareWaitsFor) {
  TimeSharing sharing;
  ComputeTerms above = Busy(0).terms;
  above.priority = 1;
  sharing.Add(1, above, 0, 0);
  sharing.Add(2, Busy(0).terms, 0, 0);
  sharing.Wanted(1, 0);
  sharing.Wanted(2, 0);
  int64_t served_ns = 0, longest_ns = 0, turn_ns = 0;
  for (int64_t now = 0; now < 6 * kS; now += 500 * kUs) {
    const bool open = sharing.State(2).open;
    served_ns += open ? 500 * kUs : 0;
    turn_ns = open ? turn_ns + 500 * kUs : 0;
    longest_ns = std::max(longest_ns, turn_ns);
    sharing.Report(1, static_cast<uint64_t>(now - served_ns), 0);
    sharing.Report(2, static_cast<uint64_t>(served_ns), 0);
    if (now % (1'500 * kMs) == 1'400 * kMs) sharing.Idle(1, now);
    sharing.Decide(now);
    for (const uint64_t share : {1, 2}) {
      if (sharing.Draining(share)) sharing.Drained(share, now);
      sharing.Wanted(share, now);
    }
    sharing.Decide(now);
  }
  EXPECT_GE(longest_ns, 12 * kMs) << "a whole turn";
  EXPECT_GE(served_ns, 2 * 12 * kMs);
  EXPECT_LE(served_ns, 4 * 14 * kMs) << "and not more than one in two seconds";
}

// The next one is let in by what a called-back share says it still has to run, not by its word that
// it has drained; but not on the word of one whose last drain took longer than that.
TEST(TimeSharing, TheNextTurnBeginsAsTheLastOneEnds) {
  TimeSharing sharing;
  sharing.Add(1, Busy(0.5).terms, 0, 0);
  sharing.Add(2, Busy(0.5).terms, 0, 0);
  sharing.Wanted(1, 0);
  sharing.Wanted(2, 0);
  sharing.Decide(0);
  ASSERT_TRUE(sharing.State(1).open);
  const auto close = [&](int64_t from) {
    int64_t now = from;
    for (; sharing.State(1).open && now < from + 1 * kS; now += 100 * kUs) {
      sharing.Report(1, static_cast<uint64_t>(now), 2 * kMs);
      sharing.Decide(now);
    }
    return now - 100 * kUs;
  };
  const int64_t closed = close(kMs);
  sharing.Report(1, static_cast<uint64_t>(closed), 1 * kMs);
  sharing.Decide(closed + 700 * kUs);  // 0.3 ms are left
  EXPECT_FALSE(sharing.State(2).open);
  sharing.Decide(closed + 1'680 * kUs);
  EXPECT_TRUE(sharing.State(2).open);
  EXPECT_TRUE(sharing.Draining(1));
  // It takes 5 ms more. Next time it is waited for.
  sharing.Drained(1, closed + 7 * kMs);
  sharing.Wanted(1, closed + 7 * kMs);
  int64_t now = closed + 7 * kMs;
  for (; !sharing.State(1).open && now < closed + 1 * kS; now += 100 * kUs) {
    sharing.Report(2, static_cast<uint64_t>(now), 0);
    sharing.Decide(now);
  }
  sharing.Drained(2, now);
  sharing.Wanted(2, now);
  const int64_t again = close(now);
  sharing.Report(1, static_cast<uint64_t>(again), 1);
  sharing.Decide(again + 3 * kMs);
  EXPECT_FALSE(sharing.State(2).open);
  sharing.Drained(1, again + 3 * kMs);
  sharing.Decide(again + 3 * kMs);
  EXPECT_TRUE(sharing.State(2).open);
}

// While one of higher priority wants the device the others are closed, and they keep no more queued
// than it waits for; of what it leaves each has its part.
TEST(TimeSharing, HigherPriorityGoesFirstAndTheOthersShareTheRest) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Program first = Gappy(0, 3 * kMs, 7 * kMs);
    first.terms.priority = 5;
    Machine machine({first, Busy(0.6), Busy(0.2)}, seed, 100 * kUs);
    const auto achieved = Achieved(machine, 3, 1 * kS, 6 * kS);
    EXPECT_GE(achieved[0], 0.2) << seed;
    EXPECT_NEAR(achieved[1] / (achieved[1] + achieved[2]), 0.7, 0.01) << seed;
  }
}

TEST(TimeSharing, ALowerPriorityKeepsLessQueued) {
  TimeSharing sharing;
  ComputeTerms above = Busy(0).terms;
  above.priority = 2;
  above.yield_within_ns = 1'600 * kUs;
  sharing.Add(1, above, 0, 0);
  sharing.Add(2, Busy(0).terms, 0, 0);
  EXPECT_EQ(sharing.ContendedBacklogNs(1), LeasePolicy::kContendedBacklogNs);
  EXPECT_EQ(sharing.ContendedBacklogNs(2), 600 * kUs);
  sharing.Wanted(2, 0);
  const auto decisions = sharing.Decide(0);
  ASSERT_EQ(decisions.changes.size(), 1u);
  EXPECT_TRUE(decisions.changes[0].contended) << "the bound is in force while the other sleeps";
  sharing.Wanted(1, 1 * kMs);
  sharing.Decide(1 * kMs);
  EXPECT_FALSE(sharing.State(2).open);
}

// Whatever programs come, go, sleep and wait: lags stay within two quanta (or two long turns), and
// every share that always wants is served in every second.
TEST(TimeSharing, HoldsInRandomRuns) {
  for (int seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(static_cast<uint32_t>(seed) * 7919);
    std::vector<Program> programs = {Busy(0.05)};
    double left = 0.95;
    for (uint32_t i = 0; i < 1 + random() % 7; ++i) {
      const double request = left * (random() % 100) / 100.0;
      left -= request;
      Program program = random() % 2 != 0
                            ? Busy(request, 1, 1 + random() % 500)
                            : Gappy(request, (1 + random() % 30) * kMs, (1 + random() % 60) * kMs);
      if (random() % 4 == 0) {
        program.terms.limit.ppm = std::max(program.terms.request.ppm, 50'000u);
      }
      program.start_ns = static_cast<int64_t>(random() % 2000) * kMs;
      if (random() % 4 == 0) {
        program.stop_ns = program.start_ns + static_cast<int64_t>(random() % 2000) * kMs;
      }
      programs.push_back(program);
    }
    Machine machine(programs, static_cast<uint32_t>(seed), 1 * kMs);
    for (int second = 1; second <= 5; ++second) {
      const int64_t before = machine.Used(0);
      machine.RunUntil(second * kS);
      EXPECT_GE(machine.Used(0) - before, 20 * kMs) << "second " << second;
      for (const auto key : machine.sharing().Shares()) {
        EXPECT_LE(std::abs(machine.sharing().State(key).lag_ns), 60.0 * kMs);
      }
    }
    if (HasFailure()) return;
  }
}

// Seen in the one-process simulation: a share with a little work not yet charged was the next (by
// its lag) and past its turn at once (by its lag less that work), so that it was opened and closed
// for ever, and nobody ran.
TEST(TimeSharing, WhoIsNextIsNotPastItsTurnAtOnce) {
  TimeSharing sharing;
  sharing.Add(1, Busy(0.5).terms, 0, 0);
  sharing.Add(2, Busy(0.5).terms, 0, 0);
  sharing.Report(2, 0, 400 * kUs);
  sharing.Wanted(2, 1);
  sharing.Wanted(1, 2);
  sharing.Decide(2);
  EXPECT_TRUE(sharing.State(1).open != sharing.State(2).open);
  EXPECT_TRUE(sharing.Decide(2).changes.empty());
}

}  // namespace
}  // namespace prorata::policy
