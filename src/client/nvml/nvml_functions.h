#pragma once

// The real NVML behind the slot table of generated/nvml_trampolines.S; as driver_functions.h for
// the driver.

#include <cstdint>

#include "generated/nvml_abi.h"

extern "C" {
extern void* prorata_nvml_slots[] __attribute__((visibility("hidden")));
extern const char* const prorata_nvml_names[] __attribute__((visibility("hidden")));
}

namespace prorata::client {

enum NvmlIndex : uint32_t {
#define PRORATA_NVML_SYMBOL(symbol, index) kNvmlIndex_##symbol = index,
#include "generated/nvml_symbols.inc"
#undef PRORATA_NVML_SYMBOL
};

#define PRORATA_REAL_NVML(name)                         \
  (reinterpret_cast<decltype(&::name)>(__atomic_load_n( \
      &prorata_nvml_slots[::prorata::client::kNvmlIndex_##name], __ATOMIC_RELAXED)))

}  // namespace prorata::client
