#pragma once

#include "sim/cuda/stream/operation.h"

namespace prorata::simgpu::driver {

// What a batch of the driver's operations does; CUDA_ERROR_INVALID_VALUE when one of them is wrong.
// D().mutex held.
CUresult MakeBatch(const CUstreamBatchMemOpParams* params, unsigned count, BatchCall* out);

// Writes the word, or looks at it: false while a wait is not satisfied.
bool RunValue(const ValueCall& call);

}  // namespace prorata::simgpu::driver
