#include "sim/node/chrome_trace.h"

#include <string>
#include <vector>

#include "api/chrome_trace.h"
#include "sim/node/world.h"

namespace prorata::simulation {

void WriteChromeTrace(World& world, std::ostream& out) {
  std::vector<api::TracedDevice> devices;
  for (size_t i = 0; i < world.scenario().machine.devices.size(); ++i) {
    api::TracedDevice& device = devices.emplace_back();
    device.index = static_cast<uint32_t>(i);
    device.uuid = "seed " + std::to_string(world.seed());
    device.name = world.scenario().name;
    device.trace.now_ns = world.now_ns();
    const agent::TraceRing* ring = world.agent() ? world.agent()->TraceOf(i) : nullptr;
    if (ring == nullptr) continue;
    const double all_s = static_cast<double>(world.now_ns()) / 1e9;
    device.trace = agent::ReadTrace(*ring, {.gpu = {}, .seconds = all_s}, world.now_ns(),
                                    agent::TraceRing::kEntries);
    if (ring->has_forgotten()) device.begins_ns = ring->At(ring->oldest()).time_ns;
  }
  out << api::ChromeTrace(devices, "simulation, policy " + world.policy());
}

}  // namespace prorata::simulation
