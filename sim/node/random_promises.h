#pragma once

// Random mixes of programs of the shapes of shared/model/time, and how far each kept its promise.

#include <cmath>
#include <string>
#include <vector>

#include "sim/node/promises.h"
#include "sim/node/random.h"

namespace prorata::simulation {

struct RandomMix {
  Scenario scenario;
  std::vector<std::string> words;  // of each program
};

// `requests`: they fill the device; else none has any.
inline RandomMix MakeRandomMix(uint64_t seed, bool requests) {
  Random random(seed ^ 0x9e0d15e5);
  const auto part = [&random] { return static_cast<double>(random.Between(0, 1'000'000)) / 1e6; };
  const auto log_ns = [&part](double low, double high) {
    return static_cast<int64_t>(std::pow(10, low + (high - low) * part()) * 1e3);
  };
  RandomMix mix;
  Scenario& scenario = mix.scenario;
  scenario.name = "mix " + std::to_string(seed);
  scenario.duration_ns = 6 * kS;
  scenario.machine.devices[0].switch_cost_ns = random.Chance(0.5) ? 10 * kUs : 100 * kUs;
  const int64_t count = random.Between(2, 5);
  std::vector<double> cut;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    cut.push_back(part() + 0.05);
    sum += cut.back();
  }
  for (int64_t i = 0; i < count; ++i) {
    const double request = requests ? cut[static_cast<size_t>(i)] / sum : 0;
    ProgramSpec& program = AddProgram(scenario, std::floor(request * 1000) / 1000);
    const int64_t kernel_ns = log_ns(1.3, 3.7);
    program.kernel = {kernel_ns, kernel_ns, {}};
    const double kind = part();
    if (kind < 0.4) {
      const int64_t lengths[] = {1, 4, 16, 64};
      program.per_sync = static_cast<int>(lengths[random.Between(0, 3)]);
    } else if (kind < 0.6) {
      program.per_sync = 1;
      program.gap_ns = log_ns(1, 3);
    } else if (kind < 0.8) {
      const int64_t work_ns = std::max(log_ns(2.5, 4.3), kernel_ns);
      program.per_sync = static_cast<int>(work_ns / kernel_ns);
      program.gap_ns = log_ns(2.5, 4.3);
    } else {
      program.per_sync = 1;
      program.every_ns = kernel_ns * random.Between(3, 21);
      program.poisson = true;
    }
    if (random.Chance(0.3)) program.streams = static_cast<int>(random.Between(2, 6));
    mix.words.push_back(
        "request " + std::to_string(request).substr(0, 5) + " kernel " +
        std::to_string(kernel_ns / kUs) + " us, " + std::to_string(program.per_sync) +
        " a sync, gap " + std::to_string(program.gap_ns / kUs) + ", every " +
        std::to_string(program.every_ns / kUs) + ", streams " + std::to_string(program.streams));
  }
  return mix;
}

}  // namespace prorata::simulation
