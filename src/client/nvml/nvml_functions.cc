// Resolving NVML functions on first use; as driver_functions.cc for the driver.

#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "client/nvml/nvml_functions.h"
#include "client/nvml/share.h"
#include "client/platform/os.h"
#include "driver/find_driver.h"

namespace prorata::client {
namespace {

Lock g_loading;
bool g_tried = false;  // under g_loading
std::atomic<void*> g_handle{nullptr};
constinit driver::Search g_search = {};

nvmlReturn_t AnswerNotFound() { return NVML_ERROR_FUNCTION_NOT_FOUND; }
nvmlReturn_t AnswerNvmlNotSupported() { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t AnswerNoLibrary() { return NVML_ERROR_LIBRARY_NOT_FOUND; }

// What would tell of others on the device and has no meaning for a share (spec/nvml_answers.toml).
constexpr uint32_t kHidden[] = {
#define PRORATA_NVML_HIDDEN(symbol) kNvmlIndex_##symbol,
#include "generated/nvml_hidden.inc"
#undef PRORATA_NVML_HIDDEN
};

bool IsHidden(uint32_t index) {
  bool hidden = false;
  for (const uint32_t one : kHidden) hidden |= one == index;
  return hidden && TheShare() != nullptr;
}

const char* AnswerText() { return "the NVIDIA driver's libnvidia-ml.so.1 was not found"; }

// NVML's constructors call nothing of ours, so a lock serves here.
void* Handle() {
  void* handle = g_handle.load(std::memory_order_acquire);
  if (handle != nullptr) return handle;
  const LockGuard loading(g_loading);
  if (g_tried) return g_handle.load(std::memory_order_acquire);
  g_tried = true;
  driver::StartSearch(&g_search, driver::kNvmlName,
                      driver::IdentifyObjectOf(reinterpret_cast<const void*>(&AnswerNotFound)));
  handle = driver::OpenDriver(&g_search);
  g_handle.store(handle, std::memory_order_release);
  if (handle == nullptr) {
    StderrMessage("cannot find the NVIDIA driver's libnvidia-ml.so.1: ")
        .Text(g_search.tried)
        .Text(WhyNoDriverLoads())
        .Print();
  }
  return handle;
}

}  // namespace
}  // namespace prorata::client

extern "C" __attribute__((visibility("hidden"))) void* prorata_nvml_resolve(uint32_t index) {
  using namespace prorata::client;
  void* handle = Handle();
  void* address = handle != nullptr ? dlsym(handle, prorata_nvml_names[index]) : nullptr;
  if (address != nullptr && IsHidden(index)) {
    address = reinterpret_cast<void*>(&AnswerNvmlNotSupported);
  } else if (address == nullptr) {
    address = std::strcmp(prorata_nvml_names[index], "nvmlErrorString") == 0
                  ? reinterpret_cast<void*>(&AnswerText)
              : handle != nullptr ? reinterpret_cast<void*>(&AnswerNotFound)
                                  : reinterpret_cast<void*>(&AnswerNoLibrary);
  }
  __atomic_store_n(&prorata_nvml_slots[index], address, __ATOMIC_RELAXED);
  return address;
}
