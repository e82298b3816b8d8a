#pragma once

// The promise of speed, judged: what each program of a scenario makes, of what it makes alone on
// the device without prorata and from the same seed; what its share was charged, against the
// device's own account; and what all made without prorata.

#include <string>
#include <vector>

#include "sim/node/bars.h"
#include "sim/node/world.h"

namespace prorata::simulation {

struct Promise {
  double speed = 0;    // device time of its kernels, of the same program's alone
  double busy = 0;     // the part of the wall time in which its kernels ran
  double charged = 0;  // the part of the wall time that its share was charged
  double without = 0;  // as `speed`, without prorata; only where it was asked for
};

struct Promises {
  std::vector<Promise> programs;
  double use = 0;          // of the device
  double use_without = 0;  // without prorata
  double idle_waited = 0;  // the part of the time in which somebody waited and nobody ran
  std::string failure;
};

struct JudgeOptions {
  uint64_t seed = 1;
  int64_t from_ns = 1 * kS;  // programs learn their kernels before that
  bool without = false;
};

inline Promises RunPromises(const Scenario& scenario, const JudgeOptions& options) {
  WorldOptions world_options;
  world_options.seed = options.seed;
  world_options.watch_gaps = true;
  World world(scenario, world_options);
  world.RunUntil(options.from_ns);
  Promises seen;
  std::vector<int64_t> busy, charged;
  const auto charged_of = [&](size_t i) {
    return world.agent() == nullptr ? 0 : world.agent()->ChargedNs(scenario.programs[i].share);
  };
  for (size_t i = 0; i < scenario.programs.size(); ++i) {
    busy.push_back(world.ProgramBusyNs(i));
    charged.push_back(charged_of(i));
  }
  const int64_t device_ns = world.DeviceBusyNs();
  world.RunUntil(scenario.duration_ns);
  const auto wall_ns = static_cast<double>(scenario.duration_ns - options.from_ns);
  for (size_t i = 0; i < scenario.programs.size(); ++i) {
    Promise& promise = seen.programs.emplace_back();
    promise.busy = static_cast<double>(world.ProgramBusyNs(i) - busy[i]) / wall_ns;
    promise.charged = static_cast<double>(charged_of(i) - charged[i]) / wall_ns;
  }
  seen.use = static_cast<double>(world.DeviceBusyNs() - device_ns) / wall_ns;
  for (const GapWatch::Gap& gap : world.gaps()) {
    if (gap.end_ns > options.from_ns) seen.idle_waited += static_cast<double>(gap.ns) / wall_ns;
  }
  world.Finish();
  seen.failure = world.failure();
  return seen;
}

inline Promises Judge(const Scenario& scenario, const JudgeOptions& options = {}) {
  Promises seen = RunPromises(scenario, options);
  Scenario other = scenario;
  other.prorata = false;
  std::vector<Promise> without;
  if (options.without) {
    const Promises bare = RunPromises(other, options);
    without = bare.programs;
    seen.use_without = bare.use;
  }
  for (size_t i = 0; i < scenario.programs.size(); ++i) {
    other.programs = {scenario.programs[i]};
    other.updates.clear();
    const double alone = RunPromises(other, options).programs[0].busy;
    if (alone <= 0) continue;
    seen.programs[i].speed = seen.programs[i].busy / alone;
    if (options.without) seen.programs[i].without = without[i].busy / alone;
  }
  return seen;
}

}  // namespace prorata::simulation
