#pragma once

#include "sim/cuda/module/function.h"
#include "sim/cuda/stream/operation.h"

namespace prorata::simgpu::driver {

// A launch as all the calls describe it.
struct LaunchRequest {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void** params;  // one of the two; both null for a kernel without parameters
  void** extra;
};

// Checks the request against the device and copies its parameters, as the driver does before the
// call returns.
CUresult MakeKernelCall(std::shared_ptr<Function> function, const LaunchRequest& request,
                        const DeviceConfig& device, KernelCall* out);

// Whether all blocks of a cooperative launch can be on so many SMs at once.
bool FitsAtOnce(const KernelCall& call, uint32_t sm_count);

}  // namespace prorata::simgpu::driver
