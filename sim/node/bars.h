#pragma once

// For bars_test: scenarios made by hand, and what programs got in windows of time.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "sim/node/world.h"

namespace prorata::simulation {

// The audit of device time knows percentages of a second, and nothing of what came since.
inline constexpr double kAuditedNs = 15 * kMs;

// Cases are tried with the seeds from 1 to this: `usual`, or PRORATA_SIMULATION_SEEDS.
inline uint64_t SeedsToTry(uint64_t usual) {
  const char* const text = std::getenv("PRORATA_SIMULATION_SEEDS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : usual;
}

// A busy program on a share of its own.
inline ProgramSpec& AddProgram(Scenario& scenario, double request, double limit = 1) {
  ProgramSpec program;
  program.name = program.share = "p" + std::to_string(scenario.programs.size());
  program.stop_ns = scenario.duration_ns;
  ShareSpec share;
  share.name = program.name;
  share.compute.request.ppm = static_cast<uint32_t>(std::lround(request * 1e6));
  share.compute.limit.ppm = static_cast<uint32_t>(std::lround(limit * 1e6));
  scenario.shares.push_back(share);
  scenario.programs.push_back(program);
  return scenario.programs.back();
}

// A change of a program's own share while it runs; what it had else stays.
inline void AddUpdate(Scenario& scenario, int64_t at_ns, size_t program, double request,
                      double limit) {
  policy::ComputeTerms terms = scenario.shares[program].compute;
  terms.request.ppm = static_cast<uint32_t>(std::lround(request * 1e6));
  terms.limit.ppm = static_cast<uint32_t>(std::lround(limit * 1e6));
  scenario.updates.push_back({at_ns, scenario.shares[program].name, terms});
}

struct Windows {
  int64_t window_ns = 0;
  std::vector<std::vector<int64_t>> busy;  // of a program, at the end of each window; [0] is 0
  std::vector<int64_t> device;
  // What the agent charged a program's share (its own), in parts of what the core counts, from the
  // first window's end on: of the programs the least, and the most.
  double least_charge = 1;
  double most_charge = 1;

  int64_t Busy(size_t program, size_t from, size_t to) const {
    return busy[program][to] - busy[program][from];
  }
  double Use(size_t from, size_t to) const {
    return static_cast<double>(device[to] - device[from]) /
           static_cast<double>(static_cast<int64_t>(to - from) * window_ns);
  }
  double Achieved(size_t program, size_t from, size_t to) const {
    return static_cast<double>(Busy(program, from, to)) /
           static_cast<double>(std::max<int64_t>(1, device[to] - device[from]));
  }
};

inline Windows RunWindows(const Scenario& scenario, uint64_t seed, int64_t window_ns,
                          size_t count) {
  WorldOptions options;
  options.seed = seed;
  options.keep_shares = true;  // else their charges would be gone with them
  World world(scenario, options);
  Windows seen;
  seen.window_ns = window_ns;
  seen.busy.resize(scenario.programs.size());
  std::vector<std::pair<int64_t, int64_t>> begun;  // busy and charged, at the first window's end
  const auto charged_ns = [&](size_t i) {
    return world.agent() == nullptr ? 0 : world.agent()->ChargedNs(scenario.programs[i].share);
  };
  for (size_t w = 0; w <= count; ++w) {
    world.RunUntil(static_cast<int64_t>(w) * window_ns);
    for (size_t i = 0; i < scenario.programs.size(); ++i) {
      seen.busy[i].push_back(world.ProgramBusyNs(i));
    }
    seen.device.push_back(world.DeviceBusyNs());
    if (w != 1) continue;
    for (size_t i = 0; i < scenario.programs.size(); ++i) {
      begun.emplace_back(world.ProgramBusyNs(i), charged_ns(i));
    }
  }
  world.Finish();
  for (size_t i = 0; world.agent() != nullptr && i < begun.size(); ++i) {
    const auto busy = static_cast<double>(world.ProgramBusyNs(i) - begun[i].first);
    if (busy <= 0) continue;
    const auto charged = static_cast<double>(charged_ns(i) - begun[i].second);
    seen.least_charge = std::min(seen.least_charge, (charged + kAuditedNs) / busy);
    seen.most_charge = std::max(seen.most_charge, (charged - kAuditedNs) / busy);
  }
  return seen;
}

// The device's use by one program of a scenario alone, without prorata.
inline double UseAlone(const Scenario& scenario, size_t program) {
  Scenario alone = scenario;
  alone.prorata = false;
  alone.programs = {scenario.programs[program]};
  return RunWindows(alone, 1, 1 * kS, 2).Use(1, 2);
}

}  // namespace prorata::simulation
