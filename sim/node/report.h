#pragma once

// Runs a scenario in the one-process simulation and judges it.

#include <string>
#include <vector>

#include "sim/node/world.h"

namespace prorata::simulation {

// Of a sample: how many, and by nearest rank.
struct Spread {
  size_t count = 0;
  int64_t p50_ns = 0;
  int64_t p99_ns = 0;
  int64_t most_ns = 0;
};
Spread SpreadOf(std::vector<int64_t> sample);

struct ProgramReport {
  std::string name;
  double gpu_time = 0;  // of the device time of all programs in the window
  double charged = 0;   // its share, by the agent, against the core's account of that; whole run
  uint64_t launches = 0;
  Spread latency;  // of the requests of an open loop that were done in the window
  // Device time so far, all instances together: at 0, and after each step of the run.
  std::vector<int64_t> busy_ns;
};

struct ExpectationReport {
  std::string of;
  double expected = 0;
  double seen = 0;
  double tolerance = 0;  // all three fractions
  bool met = false;
};

struct Report {
  uint64_t seed = 0;
  std::vector<ProgramReport> programs;
  std::vector<ExpectationReport> expectations;
  double device_use = 0;           // of the window
  double switching = 0;            // of the window
  Spread gaps;                     // gaps.h; those that ended in the window
  double waiting_idle = 0;         // all of them together, of the window
  std::vector<int64_t> device_ns;  // as ProgramReport::busy_ns
  uint64_t events = 0;
  double cpu_s = 0;     // that the run took
  std::string failure;  // the first property that failed, or empty

  bool met() const;
};

inline constexpr int64_t kStepNs = 100'000'000;

Report RunScenario(const Scenario& scenario, const WorldOptions& options);

// CPU time of this process so far.
double CpuSeconds();

}  // namespace prorata::simulation
