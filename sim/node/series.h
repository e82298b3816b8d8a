#pragma once

// For changes_test: what programs got, step by step, to be judged at any moment and not in a few
// windows only.

#include <vector>

#include "sim/node/bars.h"

namespace prorata::simulation {

struct Series {
  int64_t step_ns = 0;
  std::vector<std::vector<int64_t>> busy;  // of a program, at the end of each step; [0] is 0
  std::vector<int64_t> device;
  std::vector<std::vector<Process::Request>> requests;  // of a program's first process
  std::vector<GapWatch::Gap> gaps;
  std::string failure;

  size_t steps() const { return device.size() - 1; }
  size_t At(int64_t when_ns) const { return static_cast<size_t>(when_ns / step_ns); }
  int64_t Busy(size_t program, size_t from, size_t to) const {
    return busy[program][to] - busy[program][from];
  }
  // Of the wall's time, and of the device time of all.
  double Part(size_t program, size_t from, size_t to) const {
    return static_cast<double>(Busy(program, from, to)) /
           static_cast<double>(static_cast<int64_t>(to - from) * step_ns);
  }
  double Achieved(size_t program, size_t from, size_t to) const {
    return static_cast<double>(Busy(program, from, to)) /
           static_cast<double>(std::max<int64_t>(1, device[to] - device[from]));
  }
};

inline Series RunSeries(const Scenario& scenario, const WorldOptions& options, int64_t step_ns) {
  World world(scenario, options);
  Series seen;
  seen.step_ns = step_ns;
  seen.busy.resize(scenario.programs.size());
  for (int64_t at_ns = 0; at_ns <= scenario.duration_ns; at_ns += step_ns) {
    world.RunUntil(at_ns);
    for (size_t i = 0; i < scenario.programs.size(); ++i) {
      seen.busy[i].push_back(world.ProgramBusyNs(i));
    }
    seen.device.push_back(world.DeviceBusyNs());
  }
  for (const auto& process : world.processes()) seen.requests.push_back(process->requests());
  seen.gaps = world.gaps();
  world.Finish();
  seen.failure = world.failure();
  return seen;
}

// The kernels that the bars name.
struct Kind {
  const char* name;
  int64_t kernel_ns;
  int per_sync = 16;
  int graph = 0;

  int64_t launch_ns() const { return kernel_ns * std::max(1, graph); }
  void Make(ProgramSpec& program) const {
    program.kernel = {kernel_ns, kernel_ns, {}};
    program.per_sync = per_sync;
    program.graph = graph;
  }
};
inline const Kind kKinds[] = {
    {"20 us", 20 * kUs, 200},
    {"200 us", 200 * kUs},
    {"5 ms", 5 * kMs},
    {"graphs", 50 * kUs, 16, 20},
};

}  // namespace prorata::simulation
