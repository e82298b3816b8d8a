// Devices.

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/device_attributes.h"
#include "sim/cuda/state.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (CUresult result = EnterDevice(ordinal)) return result;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  if (CUresult result = EnterCall()) return result;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(D().devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<size_t>(len), "%s", D().config(dev).name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  return DeviceAttribute(D().device(dev), D().config(dev), attrib, pi) ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  *major = D().config(dev).compute_major;
  *minor = D().config(dev).compute_minor;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!prop) return CUDA_ERROR_INVALID_VALUE;
  *prop = {1024,
           {1024, 1024, 64},
           {2147483647, 65535, 65535},
           49152,
           65536,
           32,
           2147483647,
           65536,
           1980000,
           512};
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = D().config(dev).memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = static_cast<unsigned>(std::min<uint64_t>(D().config(dev).memory_bytes, UINT32_MAX));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  *uuid = D().device(dev).uuid;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) { return cuDeviceGetUuid_v2(uuid, dev); }

CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!pciBusId || len < 13) return CUDA_ERROR_INVALID_VALUE;
  const Device& device = D().device(dev);
  std::snprintf(pciBusId, static_cast<size_t>(len), "%04x:%02x:%02x.0",
                static_cast<unsigned>(device.pci_domain) & 0xffff,
                static_cast<unsigned>(device.pci_bus) & 0xff,
                static_cast<unsigned>(device.pci_device) & 0xff);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
  if (CUresult result = EnterCall()) return result;
  if (!dev || !pciBusId) return CUDA_ERROR_INVALID_VALUE;
  int domain = 0, bus = 0, slot = 0;
  if (std::sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (std::sscanf(pciBusId, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const auto& device : D().devices) {
    if (device->pci_domain != domain || device->pci_bus != bus || device->pci_device != slot) {
      continue;
    }
    *dev = device->index;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType type, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!pi || type < 0 || type >= CU_EXEC_AFFINITY_TYPE_MAX) return CUDA_ERROR_INVALID_VALUE;
  *pi = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements, CUarray_format,
                                            unsigned numChannels, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!maxWidthInElements || numChannels == 0) return CUDA_ERROR_INVALID_VALUE;
  *maxWidthInElements = 268435456;
  return CUDA_SUCCESS;
}

// The profiler calls of programs that can be profiled: there is none here, and that is no error.
CUresult cuProfilerStart() { return EnterCall(); }
CUresult cuProfilerStop() { return EnterCall(); }
