#include <strings.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "sim/nvml/device_call.h"

// NVML's entry points about one device.

namespace {

using prorata::simgpu::CopyText;
using prorata::simgpu::DeviceConfig;
using prorata::simgpu::DeviceUsage;
using prorata::simgpu::Machine;
using prorata::simgpu::NvmlSession;
using prorata::simgpu::Usage;
using prorata::simgpu::With;

struct Pci {
  unsigned int domain = 0;
  unsigned int bus = 0;
  unsigned int device = 0;
  bool operator==(const Pci&) const = default;
};

bool ParsePci(const char* text, Pci* pci) {
  unsigned int function = 0;
  return std::sscanf(text, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function) == 4 ||
         std::sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) == 3;
}

template <typename Matches>
nvmlReturn_t FindDevice(nvmlDevice_t* device, bool arguments_good, nvmlReturn_t otherwise,
                        Matches matches) {
  NvmlSession& session = NvmlSession::Get();
  Machine* machine = session.machine();
  if (machine == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (device == nullptr || !arguments_good) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < machine->device_count(); ++i) {
    if (!matches(machine->device(i), i)) continue;
    if (machine->Lost(i)) return NVML_ERROR_GPU_IS_LOST;
    *device = session.HandleOf(i);
    return NVML_SUCCESS;
  }
  return otherwise;
}

// `with_bus_id`: the caller's structure is of version 3; older ones end before it.
nvmlReturn_t PciInfo(nvmlDevice_t device, nvmlPciInfo_t* info, bool with_bus_id) {
  return With(device, info != nullptr, [&](Machine& machine, int index) {
    Pci pci;
    if (!ParsePci(machine.device(index).pci_bus_id.c_str(), &pci)) return NVML_ERROR_UNKNOWN;
    std::snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0",
                  pci.domain & 0xffff, pci.bus & 0xff, pci.device & 0xff);
    info->domain = pci.domain;
    info->bus = pci.bus;
    info->device = pci.device;
    info->pciDeviceId = 0;
    info->pciSubSystemId = 0;
    if (with_bus_id) {
      std::snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", pci.domain, pci.bus & 0xff,
                    pci.device & 0xff);
    }
    return NVML_SUCCESS;
  });
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  return FindDevice(device, true, NVML_ERROR_INVALID_ARGUMENT,
                    [&](const DeviceConfig&, int i) { return static_cast<unsigned>(i) == index; });
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return FindDevice(
      device, uuid != nullptr, NVML_ERROR_NOT_FOUND,
      [&](const DeviceConfig& config, int) { return strcasecmp(config.uuid.c_str(), uuid) == 0; });
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* device) {
  Pci wanted;
  const bool good = bus_id != nullptr && ParsePci(bus_id, &wanted);
  return FindDevice(device, good, NVML_ERROR_NOT_FOUND, [&](const DeviceConfig& config, int) {
    Pci pci;
    return ParsePci(config.pci_bus_id.c_str(), &pci) && pci == wanted;
  });
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* bus_id, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  return With(device, name != nullptr, [&](Machine& machine, int index) {
    return CopyText(machine.device(index).name, name, length);
  });
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  return With(device, uuid != nullptr, [&](Machine& machine, int index) {
    return CopyText(machine.device(index).uuid, uuid, length);
  });
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* out) {
  return With(device, out != nullptr, [&](Machine&, int index) {
    *out = static_cast<unsigned int>(index);
    return NVML_SUCCESS;
  });
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* out) {
  return nvmlDeviceGetIndex(device, out);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* info) {
  return PciInfo(device, info, false);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* info) {
  return PciInfo(device, info, false);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* info) {
  return PciInfo(device, info, true);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return With(device, memory != nullptr, [&](Machine& machine, int index) {
    DeviceUsage usage;
    const nvmlReturn_t asked = Usage(machine, index, &usage);
    if (asked == NVML_SUCCESS) *memory = {usage.total_bytes, usage.free_bytes, usage.used_bytes};
    return asked;
  });
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  return With(device, memory != nullptr, [&](Machine& machine, int index) {
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    DeviceUsage usage;
    const nvmlReturn_t asked = Usage(machine, index, &usage);
    if (asked == NVML_SUCCESS) {
      *memory = {nvmlMemory_v2, usage.total_bytes, 0, usage.free_bytes, usage.used_bytes};
    }
    return asked;
  });
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  return With(device, utilization != nullptr, [&](Machine& machine, int index) {
    DeviceUsage usage;
    const nvmlReturn_t asked = Usage(machine, index, &usage);
    // The model knows nothing of how busy the memory is.
    if (asked == NVML_SUCCESS) *utilization = {(usage.utilization_ppm + 5'000) / 10'000, 0};
    return asked;
  });
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return With(device, mode != nullptr, [&](Machine&, int) {
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  return With(device, major != nullptr && minor != nullptr, [&](Machine& machine, int index) {
    *major = machine.device(index).compute_major;
    *minor = machine.device(index).compute_minor;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* is_mig) {
  return With(device, is_mig != nullptr, [&](Machine&, int) {
    *is_mig = 0;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  return With(device, count != nullptr, [&](Machine&, int) {
    *count = 0;
    return NVML_SUCCESS;
  });
}

}  // extern "C"
