#pragma once

#include "simgpu/driver/state.h"

namespace prorata::simgpu::driver {

// The context goes: its physical memory leaves the addresses where it is mapped. D().mutex held.
void DropMappings(Context* ctx);

}  // namespace prorata::simgpu::driver
