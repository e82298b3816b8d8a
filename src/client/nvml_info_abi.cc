// NVML's device memory, as the share has it. A process that asks NVML need not be a member (a
// monitor, nvidia-smi), so this library maps the limits file by itself and joins nothing.

#include <atomic>
#include <cstring>

#include "client/memory_view.h"
#include "client/nvml_real.h"
#include "client/share.h"

namespace prorata::client {
namespace {

// Mapped by the first query that finds a share; two threads may map it twice, which does no harm.
std::atomic<const protocol::LimitsFile*> g_limits{nullptr};
std::atomic<bool> g_looked{false};

const protocol::LimitsFile* Limits() {
  if (g_looked.load(std::memory_order_acquire)) return g_limits.load(std::memory_order_acquire);
  char folder[sizeof(Share::folder)];
  const char* why = nullptr;
  if (FindShareFolder(folder, sizeof folder)) g_limits.store(MapLimits(folder, &why));
  g_looked.store(true, std::memory_order_release);
  return g_limits.load(std::memory_order_acquire);
}

// The limits of a device; nullptr: it is not in the share, or there is none.
const protocol::DeviceLimits* LimitsOfDevice(nvmlDevice_t device) {
  const protocol::LimitsFile* limits = Limits();
  char uuid[96] = {};
  if (limits == nullptr ||
      PRORATA_REAL_NVML(nvmlDeviceGetUUID)(device, uuid, sizeof uuid) != NVML_SUCCESS) {
    return nullptr;
  }
  for (uint32_t i = 0; i < limits->header.device_count; ++i) {
    if (std::strcmp(limits->devices[i].uuid, uuid) == 0) return &limits->devices[i];
  }
  return nullptr;
}

MemoryView View(const protocol::DeviceLimits& limits, uint64_t real_total, uint64_t real_free) {
  return ViewMemory(limits.memory_limit_bytes.load(), limits.granted_bytes.load(), 0, 0, real_total,
                    real_free);
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const nvmlReturn_t result = PRORATA_REAL_NVML(nvmlDeviceGetMemoryInfo)(device, memory);
  if (result != NVML_SUCCESS || memory == nullptr) return result;
  const prorata::protocol::DeviceLimits* limits = LimitsOfDevice(device);
  if (limits == nullptr) return result;
  const MemoryView view = View(*limits, memory->total, memory->free);
  *memory = {.total = view.total, .free = view.free, .used = view.total - view.free};
  return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  const nvmlReturn_t result = PRORATA_REAL_NVML(nvmlDeviceGetMemoryInfo_v2)(device, memory);
  if (result != NVML_SUCCESS || memory == nullptr) return result;
  const prorata::protocol::DeviceLimits* limits = LimitsOfDevice(device);
  if (limits == nullptr) return result;
  const MemoryView view = View(*limits, memory->total, memory->free);
  memory->total = view.total;
  memory->free = view.free;
  memory->used = view.total - view.free;
  memory->reserved = 0;
  return result;
}
