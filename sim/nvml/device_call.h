#pragma once

// What the entry points about one device have in common.

#include <cstring>
#include <string>
#include <utility>

#include "sim/nvml/session.h"

namespace prorata::simgpu {

// Calls `use` with the machine and the device's index, or says why not.
template <typename Use>
nvmlReturn_t With(nvmlDevice_t device, bool arguments_good, Use use) {
  NvmlSession& session = NvmlSession::Get();
  Machine* machine = session.machine();
  if (machine == nullptr) return NVML_ERROR_UNINITIALIZED;
  const int index = session.IndexOf(device);
  if (index < 0 || !arguments_good) return NVML_ERROR_INVALID_ARGUMENT;
  if (machine->Lost(index)) return NVML_ERROR_GPU_IS_LOST;
  return use(*machine, index);
}

inline nvmlReturn_t CopyText(const std::string& text, char* out, unsigned int length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (text.size() + 1 > length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

inline nvmlReturn_t Usage(Machine& machine, int index, DeviceUsage* usage) {
  auto answer = machine.Usage(index);
  if (!answer) return NVML_ERROR_UNKNOWN;
  *usage = std::move(*answer);
  return NVML_SUCCESS;
}

// The answer that is the same on every device: `value` to `*out`.
template <typename Value>
nvmlReturn_t Constant(nvmlDevice_t device, Value* out, Value value) {
  return With(device, out != nullptr, [&](Machine&, int) {
    *out = value;
    return NVML_SUCCESS;
  });
}

}  // namespace prorata::simgpu
