#pragma once

#include <string>
#include <vector>

namespace prorata::simgpu::driver {

// What CUDA_VISIBLE_DEVICES selects among devices with the given UUIDs ("GPU-..."): their indices,
// in the order named. `value` null means unset: all. As in the driver, an entry is an index or the
// beginning of a UUID that fits one device only, and the first entry that names no device, or names
// one again, ends the list.
std::vector<int> VisibleDevices(const char* value, const std::vector<std::string>& uuids);

}  // namespace prorata::simgpu::driver
