#include <ctime>

#include "sim/nvml/device_call.h"

// What a device is set to. Only what is true of a simulated device is answered; what it has not
// (clocks, power, temperatures, fans, error correction, encoders, BAR1) stays
// NVML_ERROR_NOT_SUPPORTED, which readers show as N/A, rather than a number that nobody measured.

namespace {

using prorata::simgpu::Constant;
using prorata::simgpu::DeviceUsage;
using prorata::simgpu::Machine;
using prorata::simgpu::NvmlSession;
using prorata::simgpu::Usage;
using prorata::simgpu::With;

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": FP32 lanes per SM.
unsigned int CoresPerSm(int major, int minor) {
  if (major == 8) return minor == 0 ? 64 : 128;
  return major >= 9 || major == 5 || (major == 6 && minor != 0) ? 128 : 64;
}

nvmlDeviceArchitecture_t Architecture(int major, int minor) {
  switch (major) {
    case 5:
      return NVML_DEVICE_ARCH_MAXWELL;
    case 6:
      return NVML_DEVICE_ARCH_PASCAL;
    case 7:
      return minor >= 5 ? NVML_DEVICE_ARCH_TURING : NVML_DEVICE_ARCH_VOLTA;
    case 8:
      return minor == 9 ? NVML_DEVICE_ARCH_ADA : NVML_DEVICE_ARCH_AMPERE;
    case 9:
      return NVML_DEVICE_ARCH_HOPPER;
    case 10:
    case 12:
      return NVML_DEVICE_ARCH_BLACKWELL;
    default:
      return NVML_DEVICE_ARCH_UNKNOWN;
  }
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return Constant(device, mode, NVML_FEATURE_DISABLED);
}
nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return Constant(device, mode, NVML_FEATURE_DISABLED);
}
nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t* active) {
  return Constant(device, active, NVML_FEATURE_DISABLED);
}
nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return Constant(device, mode, NVML_FEATURE_DISABLED);
}
nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device,
                                             nvmlGpuVirtualizationMode_t* mode) {
  return Constant(device, mode, NVML_GPU_VIRTUALIZATION_MODE_NONE);
}
nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int* multi) {
  return Constant(device, multi, 0u);
}
nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t* brand) {
  return Constant(device, brand, NVML_BRAND_UNKNOWN);
}
nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, nvmlBusType_t* type) {
  return Constant(device, type, static_cast<nvmlBusType_t>(NVML_BUS_TYPE_PCIE));
}

nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int* id) {
  return With(device, id != nullptr, [&](Machine&, int index) {
    *id = static_cast<unsigned int>(index);
    return NVML_SUCCESS;
  });
}
nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int* same) {
  return With(one, same != nullptr && NvmlSession::Get().IndexOf(other) >= 0,
              [&](Machine&, int index) {
                *same = NvmlSession::Get().IndexOf(other) == index ? 1 : 0;
                return NVML_SUCCESS;
              });
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t* out) {
  return With(device, out != nullptr, [&](Machine& machine, int index) {
    const auto& config = machine.device(index);
    *out = Architecture(config.compute_major, config.compute_minor);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int* cores) {
  return With(device, cores != nullptr, [&](Machine& machine, int index) {
    const auto& config = machine.device(index);
    *cores = static_cast<unsigned int>(config.sm_count) *
             CoresPerSm(config.compute_major, config.compute_minor);
    return NVML_SUCCESS;
  });
}

// Each value says for itself whether it is to be had.
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  return With(device, count > 0 && values != nullptr, [&](Machine&, int) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; ++i) {
      values[i].timestamp = static_cast<long long>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1'000;
      values[i].latencyUsec = 0;
      values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
  });
}

// Utilization now, as the one sample that there is.
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long last_seen, nvmlValueType_t* value_type,
                                  unsigned int* count, nvmlSample_t* samples) {
  return With(device, value_type != nullptr && count != nullptr, [&](Machine& machine, int index) {
    if (type != NVML_GPU_UTILIZATION_SAMPLES) return NVML_ERROR_NOT_SUPPORTED;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    const unsigned int room = *count;
    *count = 1;
    if (samples == nullptr) return NVML_SUCCESS;
    if (room == 0) return NVML_ERROR_INSUFFICIENT_SIZE;
    DeviceUsage usage;
    const nvmlReturn_t asked = Usage(machine, index, &usage);
    if (asked != NVML_SUCCESS) return asked;
    const auto now_us = static_cast<unsigned long long>(usage.now_ns / prorata::kNsPerUs);
    if (now_us <= last_seen) return NVML_ERROR_NOT_FOUND;
    samples[0] = {};
    samples[0].timeStamp = now_us;
    samples[0].sampleValue.uiVal = (usage.utilization_ppm + 5'000) / 10'000;
    return NVML_SUCCESS;
  });
}

}  // extern "C"
