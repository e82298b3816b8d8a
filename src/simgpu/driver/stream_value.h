#pragma once

#include "simgpu/driver/operation.h"

namespace prorata::simgpu::driver {

// Writes the word, or looks at it: false while a wait is not satisfied.
bool RunValue(const ValueCall& call);

}  // namespace prorata::simgpu::driver
