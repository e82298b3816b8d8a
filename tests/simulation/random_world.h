#pragma once

// Random worlds: programs, terms, delays and mishaps from a seed, and what must be true of every
// one of them.

#include <ostream>
#include <string>

#include "simulation/world.h"

namespace prorata::simulation {

Scenario RandomScenario(uint64_t seed);
WorldOptions RandomOptions(uint64_t seed);

// Runs the world of this seed. Empty, or the property that failed, in words:
//   1. the lease words are what the policy decided, and at most one share holds the device, or
//      several that the policy lets run together;
//   2. nobody waits for its lease while the device idles (500 ms in all), but who is held by a
//      limit, stopped or without an agent;
//   3. no member is charged more than the time it lived; and where nothing goes wrong and contexts
//      take turns (one member a share, no item above 8 ms, and all programs plain: one stream,
//      kernels that take about the same), the device time charged is the core's own account, within
//      30 % (a batch between gaps may be charged a quarter more than estimated), 10 ms and two of
//      its longest items;
//   4. the limit of a share of plain programs holds over its life, but for a quantum, what may be
//      queued, and what the silence of an agent lets pass;
//   5. after all programs have ended the core is empty, and its invariants hold.
std::string CheckRandomWorld(uint64_t seed, std::ostream* trace = nullptr);

}  // namespace prorata::simulation
