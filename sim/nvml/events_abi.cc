#include <time.h>

#include <memory>
#include <mutex>
#include <set>

#include "sim/nvml/device_call.h"

// Event sets. The simulated GPU reports no events by itself, so a wait always lasts until its time
// is over; everything around it behaves as NVML documents.

namespace {

using prorata::simgpu::Machine;
using prorata::simgpu::NvmlSession;
using prorata::simgpu::With;

// What a program may ask to be notified of.
constexpr unsigned long long kSupported = nvmlEventTypeXidCriticalError;

std::mutex g_mutex;

std::set<const void*>& Sets() {
  static auto& sets = *new std::set<const void*>;  // programs call while exiting
  return sets;
}

bool Known(nvmlEventSet_t set) {
  const std::lock_guard lock(g_mutex);
  return Sets().contains(set);
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  if (NvmlSession::Get().machine() == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  auto mark = std::make_unique<char>();
  const std::lock_guard lock(g_mutex);
  *set = reinterpret_cast<nvmlEventSet_t>(mark.get());
  Sets().insert(mark.release());
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  const std::lock_guard lock(g_mutex);
  if (Sets().erase(set) == 0) return NVML_ERROR_INVALID_ARGUMENT;
  delete reinterpret_cast<const char*>(set);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long* types) {
  return prorata::simgpu::Constant(device, types, kSupported);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set) {
  return With(device, Known(set), [&](Machine&, int) {
    return (types & ~kSupported) != 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data,
                                 unsigned int timeout_ms) {
  if (NvmlSession::Get().machine() == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (data == nullptr || !Known(set)) return NVML_ERROR_INVALID_ARGUMENT;
  timespec left{static_cast<time_t>(timeout_ms / 1000),
                static_cast<long>(timeout_ms % 1000) * 1'000'000};
  while (nanosleep(&left, &left) != 0) {
  }
  return NVML_ERROR_TIMEOUT;
}
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout_ms) {
  return nvmlEventSetWait_v2(set, data, timeout_ms);
}

}  // extern "C"
