// sim_usage: what the simulated machine's own account says, at the times asked for.
//
// Reads times on the machine's clock (nanoseconds, one a line) from standard input; when each has
// come, prints one line of JSON: {"now_ns", "busy_ns", "switching_ns", "peak_bytes", "processes":
// {"PID": busy_ns}} of device 0, or of the one that is named: sim_usage [DEVICE]. NVML gives
// utilization in whole percents only, and no high-water mark of the memory.

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "sim/core/config.h"
#include "sim/core/machine.h"

namespace prorata::simgpu {
namespace {

int Fail(const std::string& message) {
  std::cerr << "sim_usage: " << message << "\n";
  return 1;
}

int Main(int device) {
  const auto config = FindMachineConfig();
  if (!config) return Fail(config.error().message);
  const auto machine = Machine::Attach(*config, FindStateFolder());
  if (!machine) return Fail(machine.error().message);
  const DilatedClock clock(config->dilation);
  std::cout << nlohmann::json{{"now_ns", (*machine)->NowNs()}}.dump() << std::endl;
  for (int64_t when_ns; std::cin >> when_ns;) {
    const int64_t wait_ns = clock.RealNs(std::max<int64_t>(0, when_ns - (*machine)->NowNs()));
    std::this_thread::sleep_for(std::chrono::nanoseconds(wait_ns));
    if ((*machine)->retired()) return Fail("another machine took this one's place");
    const auto usage = (*machine)->Usage(device);
    if (!usage) return Fail("the machine does not tell its usage");
    nlohmann::json processes = nlohmann::json::object();
    for (const ProcessUsage& process : usage->processes) {
      processes[std::to_string(process.pid)] = process.busy_ns;
    }
    const nlohmann::json line = {{"now_ns", usage->now_ns},
                                 {"busy_ns", usage->busy_ns},
                                 {"switching_ns", usage->switching_ns},
                                 {"peak_bytes", usage->peak_bytes},
                                 {"processes", processes}};
    std::cout << line.dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace prorata::simgpu

int main(int argc, char** argv) { return prorata::simgpu::Main(argc > 1 ? std::atoi(argv[1]) : 0); }
