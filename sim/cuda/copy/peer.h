#pragma once

#include "sim/cuda/state.h"

namespace prorata::simgpu::driver {

// The program's number of a device of the machine; `otherwise` when it is not visible to it.
int OrdinalOf(int machine_device, int otherwise);

// Whether the two devices (ordinals) have a link over which one can use the other's memory.
bool LinkedForPeers(int device, int peer);

// Whether work of the context may use the memory at `address`, as the driver would say: its own
// device's, or a peer's after it was enabled. D().mutex held.
bool Reaches(const Context* ctx, const Memory& memory, uint64_t address);

}  // namespace prorata::simgpu::driver
