#pragma once

// Runs a scenario in the one-process simulation and judges it.

#include <string>
#include <vector>

#include "simulation/world.h"

namespace prorata::simulation {

struct ProgramReport {
  std::string name;
  double gpu_time = 0;  // of the device time of all programs in the window
  double charged = 0;   // what its members said they used, against the core's account, whole run
  uint64_t launches = 0;
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
  double device_use = 0;  // of the window
  double switching = 0;   // of the window
  uint64_t events = 0;
  double cpu_s = 0;     // that the run took
  std::string failure;  // the first property that failed, or empty

  bool met() const;
};

Report RunScenario(const Scenario& scenario, const WorldOptions& options);

// CPU time of this process so far.
double CpuSeconds();

}  // namespace prorata::simulation
