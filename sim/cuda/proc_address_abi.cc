// cuGetProcAddress, in both its ABIs: a name and a version give the newest function that a program
// built for that version knows how to call.

#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/state.h"

namespace {

struct VersionedName {
  const char* name;
  int version;
  int flag;  // 0, or 2 for the per-thread default stream's variant
  void* function;
};

const VersionedName kNames[] = {
#define PRORATA_DRIVER_VERSION(name, version, flag, symbol) \
  {name, version, flag, reinterpret_cast<void*>(&symbol)},
#include "generated/driver_versions.inc"
#undef PRORATA_DRIVER_VERSION
};
constexpr size_t kNameCount = sizeof(kNames) / sizeof(kNames[0]);

// The first entry of `name`: the table is sorted by name, and lookups come by the hundred from
// every copy of cudart in the process.
const VersionedName* FirstOf(const char* name) {
  size_t low = 0;
  size_t high = kNameCount;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (std::strcmp(kNames[middle].name, name) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == kNameCount || std::strcmp(kNames[low].name, name) != 0) return nullptr;
  return &kNames[low];
}

void* Lookup(const char* name, int version, bool per_thread,
             CUdriverProcAddressQueryResult* status) {
  *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const VersionedName* best = nullptr;
  for (const VersionedName* entry = FirstOf(name);
       entry && entry != kNames + kNameCount && std::strcmp(entry->name, name) == 0; ++entry) {
    if (entry->flag == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && !per_thread) continue;
    if (entry->version > version &&
        !prorata::simgpu::driver::Broken(prorata::simgpu::Rule::kVersionsDecide)) {
      if (!best) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      continue;
    }
    // Two variants of one version: asked for per-thread, the per-thread one is meant.
    if (!best || entry->version > best->version ||
        (entry->version == best->version && entry->flag > best->flag)) {
      best = entry;
      *status = CU_GET_PROC_ADDRESS_SUCCESS;
    }
  }
  return best ? best->function : nullptr;
}

}  // namespace

// A miss with somewhere to report it is not an error of the call (lupine observed this of the real
// driver; cudart accepts either).
CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  constexpr cuuint64_t kKnownFlags =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (!symbol || !pfn || (flags & ~kKnownFlags) != 0 || flags == kKnownFlags) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int driver = 0;
  if (CUresult result = cuDriverGetVersion(&driver)) return result;
  if (cudaVersion > driver) return CUDA_ERROR_INVALID_VALUE;
  CUdriverProcAddressQueryResult status;
  *pfn =
      Lookup(symbol, cudaVersion, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
  if (symbolStatus) {
    *symbolStatus = status;
    return CUDA_SUCCESS;
  }
  return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, nullptr);
}
