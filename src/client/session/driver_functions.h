#pragma once

// The real driver behind the slot table of generated/driver_trampolines.S. What a slot holds at
// first finds the function when it is used (prorata_driver_resolve); one that the driver lacks
// answers CUDA_ERROR_NOT_SUPPORTED.

#include <cstdint>

#include "generated/cuda_abi.h"

extern "C" {
extern void* prorata_driver_slots[] __attribute__((visibility("hidden")));
extern const char* const prorata_driver_names[] __attribute__((visibility("hidden")));
}

namespace prorata::client {

enum DriverIndex : uint32_t {
#define PRORATA_DRIVER_SYMBOL(symbol, index, role) kIndex_##symbol = index,
#include "generated/driver_symbols.inc"
#undef PRORATA_DRIVER_SYMBOL
};

// PRORATA_REAL(cuMemAlloc_v2)(&pointer, bytes) calls the driver's own function.
#define PRORATA_REAL(name)              \
  (reinterpret_cast<decltype(&::name)>( \
      __atomic_load_n(&prorata_driver_slots[::prorata::client::kIndex_##name], __ATOMIC_RELAXED)))

// Around every driver call of our own making: while somebody captures a stream in global mode,
// calls like cuEventQuery from any thread would invalidate that capture; in relaxed mode they do
// not.
class OwnCalls {
 public:
  OwnCalls();
  ~OwnCalls();
  OwnCalls(const OwnCalls&) = delete;
  OwnCalls& operator=(const OwnCalls&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

// True once some function of the real driver was found. Loads the driver if it was not yet.
bool DriverPresent();

// In the child after a fork: another thread that loads the driver is not there.
void ForgetLoading();

// The driver's own address of a symbol, or nullptr if it lacks it.
void* DriverAddress(DriverIndex index);

}  // namespace prorata::client
