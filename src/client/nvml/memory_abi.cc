// NVML's device memory, as the share has it.

#include "client/nvml/share.h"
#include "client/platform/os.h"
#include "client/session/member_usage.h"
#include "client/session/memory_view.h"

namespace prorata::client {
namespace {

// The share's view in place of the device's. False: the device is not the share's.
bool View(const NvmlShare& share, nvmlDevice_t device, uint64_t real_total, uint64_t real_free,
          MemoryView* view) {
  uint32_t index = kNotInShare;
  if (Locate(share, device, &index) != NVML_SUCCESS || index == kNotInShare) return false;
  *view = ViewMemory(share.limits->devices[index].memory_limit_bytes.load(),
                     UsedByShare(share.folder, *share.limits, index, {}), real_total, real_free);
  return true;
}

// As NVML's own first version: whatever is not free is used.
nvmlReturn_t Show(nvmlReturn_t result, nvmlDevice_t device, nvmlMemory_t* memory) {
  const NvmlShare* share = TheShare();
  MemoryView view;
  if (result != NVML_SUCCESS || memory == nullptr || share == nullptr ||
      !View(*share, device, memory->total, memory->free, &view)) {
    return result;
  }
  *memory = {.total = view.total, .free = view.free, .used = view.total - view.free};
  return result;
}

// Of a MIG device the attributes tell its memory.
nvmlReturn_t Show(nvmlReturn_t result, nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  const NvmlShare* share = TheShare();
  uint32_t index = kNotInShare;
  if (result != NVML_SUCCESS || attributes == nullptr || share == nullptr ||
      Locate(*share, device, &index) != NVML_SUCCESS || index == kNotInShare) {
    return result;
  }
  const uint64_t limit_mib = share->limits->devices[index].memory_limit_bytes.load() >> 20;
  attributes->memorySizeMB = Min<unsigned long long>(attributes->memorySizeMB, limit_mib);
  return result;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return Show(PRORATA_REAL_NVML(nvmlDeviceGetMemoryInfo)(device, memory), device, memory);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  const nvmlReturn_t result = PRORATA_REAL_NVML(nvmlDeviceGetMemoryInfo_v2)(device, memory);
  const NvmlShare* share = TheShare();
  MemoryView view;
  if (result != NVML_SUCCESS || memory == nullptr || share == nullptr ||
      !View(*share, device, memory->total, memory->free, &view)) {
    return result;
  }
  memory->total = view.total;
  memory->free = view.free;
  memory->used = view.used;
  // NVML's own sum: total = reserved + free + used. What is the share's and not there to be had,
  // because others hold it, is the nearest to reserved.
  memory->reserved = view.total - view.free - view.used;
  return result;
}

// The device's memory once more, by another name, where it is encrypted.
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device,
                                                          nvmlMemory_t* memory) {
  return Show(PRORATA_REAL_NVML(nvmlDeviceGetConfComputeProtectedMemoryUsage)(device, memory),
              device, memory);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  return Show(PRORATA_REAL_NVML(nvmlDeviceGetAttributes)(device, attributes), device, attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  return Show(PRORATA_REAL_NVML(nvmlDeviceGetAttributes_v2)(device, attributes), device,
              attributes);
}
