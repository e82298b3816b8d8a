#pragma once

#include "generated/cuda_abi.h"
#include "simgpu/core/config.h"
#include "simgpu/driver/state.h"

namespace prorata::simgpu::driver {

// What cuDeviceGetAttribute answers. False for an attribute that does not exist.
bool DeviceAttribute(const Device& device, const DeviceConfig& config, CUdevice_attribute attribute,
                     int* value);

}  // namespace prorata::simgpu::driver
