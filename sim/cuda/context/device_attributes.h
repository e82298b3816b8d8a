#pragma once

#include "generated/cuda_abi.h"
#include "sim/core/config.h"
#include "sim/cuda/state.h"

namespace prorata::simgpu::driver {

// What cuDeviceGetAttribute answers. False for an attribute that does not exist.
bool DeviceAttribute(const Device& device, const DeviceConfig& config, CUdevice_attribute attribute,
                     int* value);

}  // namespace prorata::simgpu::driver
