#pragma once

// Random worlds: programs of every shape, terms, devices, delays, mishaps and liars from a seed,
// and what must be true of every one of them (random_judge.cc).

#include <ostream>
#include <string>

#include "sim/node/world.h"

namespace prorata::simulation {

// Up to six programs; or a crowd: 8 to 40 with items up to 5 ms, each on one device, in up to eight
// priorities. Or a few on two or three devices, with jobs whose ranks do not launch alike, or
// pause. Or up to six that launch as models do: many functions, a slow host, bursts.
enum class WorldKind : uint8_t { kFew, kCrowd, kRanks, kModels };

Scenario RandomScenario(uint64_t seed, WorldKind kind = WorldKind::kFew);
// A line for each program, for people.
std::string Describe(const Scenario& scenario);
WorldOptions RandomOptions(uint64_t seed);

// Nothing goes wrong and nobody lies: every promise is judged.
bool IsCalm(const WorldOptions& options);

// The longest thing that the device cannot be taken from: a kernel, or a graph.
int64_t LongestItemNs(const ProgramSpec& program);

// Runs the world of this seed. Empty, or what failed, in words:
//   1. the lease words are what the policy decided, and its invariants hold;
//   2. nobody waits for ever: not while the device idles for 500 ms in all (a share with a limit:
//      and what it may have to pay back), but who is stopped, a liar, or without an agent;
//   3. no member says that it used more than the time it lived;
//   4. every share's limit holds over its life, within 1 %, a slice, and of each of its processes
//      what may be queued and not be done: a backlog bound, its longest item (two, if its kernels
//      take this or that), and what it put behind a wait. Not of kernels that wait for their peers
//      on other devices: they run until those do;
//   5. in a calm world each share was charged the device time that it used, within 1 % and 15 ms
//      (shares that have a device free between them: all together), and all shares of a device no
//      more than the wall time;
//   6. in a calm world in which requests do not ask for more than a device each share ran at its
//      request of its speed alone (a run of its own, same seed): at 0.97 of that, at 0.95 where
//      items above 5 ms are about, but for one slice and one item of each at the ends of the time
//      that is judged. One that sleeps pays 1 ms and one item of others for each waking;
//   7. in a calm world in which no share differs from another the devices are in use as without
//      prorata, within 1 %;
//   8. after all programs have ended the core is empty, and its invariants hold.
std::string CheckRandomWorld(uint64_t seed, WorldKind kind = WorldKind::kFew,
                             std::ostream* trace = nullptr);

// The base seed of this run of a test: PRORATA_TEST_SEED, or a fresh one; printed.
uint64_t FreshSeed();

}  // namespace prorata::simulation
