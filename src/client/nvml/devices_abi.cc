// Which devices NVML shows: the share's alone, in the share's order, so that index 0 here is CUDA's
// device 0. A program that reorders CUDA's devices with CUDA_VISIBLE_DEVICES does not reorder
// NVML's, here as everywhere. Handles are NVML's own.

#include "client/nvml/share.h"
#include "client/platform/os.h"

namespace prorata::client {
namespace {

// nvmlInit was not called, or the driver is gone: as NVML says it.
nvmlReturn_t Ready() {
  unsigned int ignored = 0;
  return PRORATA_REAL_NVML(nvmlDeviceGetCount_v2)(&ignored);
}

nvmlReturn_t Count(const NvmlShare& share, unsigned int* count) {
  if (const nvmlReturn_t ready = Ready(); ready != NVML_SUCCESS) return ready;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = share.limits->header.device_count;
  return NVML_SUCCESS;
}

nvmlReturn_t ByIndex(const NvmlShare& share, unsigned int index, nvmlDevice_t* device) {
  if (const nvmlReturn_t ready = Ready(); ready != NVML_SUCCESS) return ready;
  if (device == nullptr || index >= share.limits->header.device_count) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return PRORATA_REAL_NVML(nvmlDeviceGetHandleByUUID)(share.limits->devices[index].uuid, device);
}

bool IsOwn(const NvmlShare& share, nvmlDevice_t device) {
  uint32_t index = kNotInShare;
  return Locate(share, device, &index) == NVML_SUCCESS && index != kNotInShare;
}

// What NVML found by a name: a device that is not the share's is not there.
nvmlReturn_t OnlyOwn(nvmlReturn_t result, nvmlDevice_t* device) {
  const NvmlShare* share = TheShare();
  if (result != NVML_SUCCESS || share == nullptr || IsOwn(*share, *device)) return result;
  *device = nullptr;
  return NVML_ERROR_NOT_FOUND;
}

// A list of devices that NVML hands out: the share's among them. `ask(count, devices)` is NVML,
// with no room for a question how many there are; `exact`: too little room is an error.
constexpr unsigned int kMaxDevices = 128;
template <typename Ask>
nvmlReturn_t OwnDevices(const NvmlShare& share, unsigned int* count, nvmlDevice_t* devices,
                        bool exact, Ask ask) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlDevice_t all[kMaxDevices] = {};
  unsigned int found = exact ? kMaxDevices : 0;
  nvmlReturn_t result = ask(&found, exact ? all : nullptr);
  if (result == NVML_SUCCESS && !exact && found != 0) {
    found = Min(found, kMaxDevices);
    result = ask(&found, all);
  }
  if (result != NVML_SUCCESS) return result;
  unsigned int own = 0;
  for (unsigned int i = 0; i < Min(found, kMaxDevices); ++i) {
    if (all[i] != nullptr && IsOwn(share, all[i])) all[own++] = all[i];
  }
  const unsigned int room = *count;
  if (room == 0 || (exact && room < own)) {
    *count = own;
    return exact && own != 0 ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
  }
  if (devices == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = Min(room, own);
  for (unsigned int i = 0; i < *count; ++i) devices[i] = all[i];
  return NVML_SUCCESS;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

nvmlReturn_t nvmlDeviceGetCount(unsigned int* deviceCount) {
  const NvmlShare* share = TheShare();
  return share != nullptr ? Count(*share, deviceCount)
                          : PRORATA_REAL_NVML(nvmlDeviceGetCount)(deviceCount);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* deviceCount) {
  const NvmlShare* share = TheShare();
  return share != nullptr ? Count(*share, deviceCount)
                          : PRORATA_REAL_NVML(nvmlDeviceGetCount_v2)(deviceCount);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  const NvmlShare* share = TheShare();
  return share != nullptr ? ByIndex(*share, index, device)
                          : PRORATA_REAL_NVML(nvmlDeviceGetHandleByIndex)(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  const NvmlShare* share = TheShare();
  return share != nullptr ? ByIndex(*share, index, device)
                          : PRORATA_REAL_NVML(nvmlDeviceGetHandleByIndex_v2)(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return OnlyOwn(PRORATA_REAL_NVML(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  return OnlyOwn(PRORATA_REAL_NVML(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice_t* device) {
  return OnlyOwn(PRORATA_REAL_NVML(nvmlDeviceGetHandleBySerial)(serial, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* pciBusId, nvmlDevice_t* device) {
  return OnlyOwn(PRORATA_REAL_NVML(nvmlDeviceGetHandleByPciBusId)(pciBusId, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* pciBusId, nvmlDevice_t* device) {
  return OnlyOwn(PRORATA_REAL_NVML(nvmlDeviceGetHandleByPciBusId_v2)(pciBusId, device), device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  const nvmlReturn_t result = PRORATA_REAL_NVML(nvmlDeviceGetIndex)(device, index);
  const NvmlShare* share = TheShare();
  uint32_t own = kNotInShare;
  if (result == NVML_SUCCESS && share != nullptr && index != nullptr &&
      Locate(*share, device, &own) == NVML_SUCCESS && own != kNotInShare) {
    *index = own;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int* count, nvmlDevice_t* deviceArray) {
  const auto real = PRORATA_REAL_NVML(nvmlDeviceGetTopologyNearestGpus);
  const NvmlShare* share = TheShare();
  if (share == nullptr) return real(device, level, count, deviceArray);
  return OwnDevices(*share, count, deviceArray, false, [&](unsigned int* n, nvmlDevice_t* all) {
    return real(device, level, n, all);
  });
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpuNumber, unsigned int* count,
                                         nvmlDevice_t* deviceArray) {
  const auto real = PRORATA_REAL_NVML(nvmlSystemGetTopologyGpuSet);
  const NvmlShare* share = TheShare();
  if (share == nullptr) return real(cpuNumber, count, deviceArray);
  return OwnDevices(*share, count, deviceArray, false,
                    [&](unsigned int* n, nvmlDevice_t* all) { return real(cpuNumber, n, all); });
}

nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned int* deviceCount, nvmlDevice_t* devices) {
  const auto real = PRORATA_REAL_NVML(nvmlUnitGetDevices);
  const NvmlShare* share = TheShare();
  if (share == nullptr) return real(unit, deviceCount, devices);
  return OwnDevices(*share, deviceCount, devices, true,
                    [&](unsigned int* n, nvmlDevice_t* all) { return real(unit, n, all); });
}
