// Resolving driver functions on first use; see driver_functions.h.
//
// Threads may resolve the same or different functions at once. Loading the driver is the only step
// that must happen once: the first thread does it, others wait for `g_handle_state`. dlopen runs
// the driver's constructors, which might call us: such a call sees kLoading by its own thread and
// is answered "no driver yet" instead of waiting for itself.

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>

#include "client/platform/os.h"
#include "client/session/driver_functions.h"
#include "client/session/duties.h"
#include "client/session/share.h"
#include "driver/find_driver.h"

namespace prorata::client {

namespace {

enum : uint32_t { kNotLoaded = 0, kLoading = 1, kLoaded = 2, kNoDriver = 3 };
std::atomic<uint32_t> g_handle_state{kNotLoaded};
void* g_handle = nullptr;
__thread bool t_loading __attribute__((tls_model("initial-exec"))) = false;
constinit driver::Search g_search = {};  // in .bss: a stack may be small

CUresult AnswerNotSupported() { return CUDA_ERROR_NOT_SUPPORTED; }

// With no driver at all, every call says what cuInit says: no device. cudart and the frameworks
// take that as "a machine without a GPU" and say so, which is what it is.
CUresult AnswerNoDevice() { return CUDA_ERROR_NO_DEVICE; }

void* Address(CUresult (*function)()) { return reinterpret_cast<void*>(function); }

// `say`: where there is no driver a line says so, and nobody looks again.
uint32_t Load(bool say = true) {
  uint32_t state = g_handle_state.load(std::memory_order_acquire);
  while (state < kLoaded) {
    if (t_loading) return kLoading;
    kDuties.watch_forks();
    if (state == kNotLoaded && g_handle_state.compare_exchange_strong(state, kLoading)) {
      t_loading = true;
      driver::StartSearch(&g_search, driver::kCudaName,
                          driver::IdentifyObjectOf(reinterpret_cast<const void*>(&AnswerNoDevice)));
      g_handle = driver::OpenDriver(&g_search);
      t_loading = false;
      state = g_handle != nullptr ? kLoaded : kNoDriver;
      g_handle_state.store(state == kNoDriver && !say ? kNotLoaded : state,
                           std::memory_order_release);
      FutexWakeAll(&g_handle_state);
      if (g_handle == nullptr && say) {
        StderrMessage("cannot find the NVIDIA driver's libcuda.so.1: ")
            .Text(g_search.tried)
            .Text("; install the driver, or set PRORATA_DRIVER_DIR to its folder")
            .Text(WhyNoDriverLoads())
            .Print();
      }
      return state;
    }
    if (state == kLoading) FutexWait(&g_handle_state, kLoading, 1'000'000'000);
    state = g_handle_state.load(std::memory_order_acquire);
  }
  return state;
}

#ifndef PRORATA_HOSTED
// In a container we are what programs load as the driver's library, so whoever loads us has the
// driver loaded, as without us: cuInit need not, and what a program gives up in between (its root
// folder, its rights) does not matter. Elsewhere we are preloaded into programs of all kinds, and
// wait for the first call.
[[gnu::constructor]] void LoadInContainer() {
  if (access(kShareInContainer, F_OK) == 0) Load(false);
}
#endif

}  // namespace

void ForgetLoading() {
  uint32_t loading = kLoading;
  if (!t_loading) g_handle_state.compare_exchange_strong(loading, kNotLoaded);
}

bool DriverPresent() { return Load() == kLoaded; }

void* DriverAddress(DriverIndex index) {
  return Load() == kLoaded ? dlsym(g_handle, prorata_driver_names[index]) : nullptr;
}

OwnCalls::OwnCalls() {
  exchanged_ = PRORATA_REAL(cuThreadExchangeStreamCaptureMode)(&mode_) == CUDA_SUCCESS;
}

OwnCalls::~OwnCalls() {
  if (exchanged_) PRORATA_REAL(cuThreadExchangeStreamCaptureMode)(&mode_);
}

}  // namespace prorata::client

extern "C" __attribute__((visibility("hidden"))) void* prorata_driver_resolve(uint32_t index) {
  using namespace prorata::client;
  const uint32_t state = Load();
  if (state == kLoading) return Address(AnswerNoDevice);
  void* address = state == kLoaded ? dlsym(g_handle, prorata_driver_names[index]) : nullptr;
  if (address == nullptr) {
    address = Address(state == kLoaded ? AnswerNotSupported : AnswerNoDevice);
  }
  __atomic_store_n(&prorata_driver_slots[index], address, __ATOMIC_RELAXED);
  return address;
}
