// A driver that does next to nothing, for measuring what stands before it: every function answers
// success (generated/null_cuda_driver.S), these few also answer something, as do those of contexts,
// streams, events and graphs (null_objects.cc). Not a simulation: nothing takes time, nothing is
// full.
//
//   NULL_INJECTED=ADDRESS    cuInit calls this function of the program once, as a driver calls the
//                            tool that CUDA_INJECTION64_PATH names

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "bench/null_driver/null_driver.h"
#include "generated/cuda_abi.h"

namespace {

using namespace prorata::bench;

thread_local CUdeviceptr t_freed;  // one address is given out again, as a real driver would
// Each on a cache line of its own: what shares one with the first costs four threads 80 ns a call.
alignas(64) std::atomic<uint64_t> g_next{0x7000'0000'0000};  // where x86-64 has room: below 2^47
alignas(64) std::atomic<uint64_t> g_handles{0x1000};         // of pools

uint64_t Take(uint64_t bytes) {
  if (bytes < (2u << 20) && t_freed != 0) {
    const uint64_t address = t_freed;
    t_freed = 0;
    return address;
  }
  const uint64_t unit = bytes < (2u << 20) ? 512 : 2u << 20;
  return g_next.fetch_add((bytes + unit - 1) / unit * unit, std::memory_order_relaxed);
}

// What no spec knows: a newer driver's, which a program gets by cuGetProcAddress alone.
int BrandNew() { return 42; }

// The newest exported form of a name in this very file.
void* Lookup(const char* name, bool per_thread) {
  if (std::strcmp(name, "cuNullBrandNew") == 0) return reinterpret_cast<void*>(&BrandNew);
  Dl_info own;
  if (dladdr(reinterpret_cast<void*>(&Take), &own) == 0) return nullptr;
  static void* const self = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  for (const char* suffix : {"_ptsz", "_v3", "_v2", ""}) {
    char variant[128];
    if ((!per_thread && suffix[1] == 'p') || std::strlen(name) > 100) continue;
    std::strcpy(variant, name);
    std::strcat(variant, suffix);
    if (void* found = dlsym(self, variant)) return found;
  }
  return nullptr;
}

}  // namespace

CUresult cuInit(unsigned int) {
  const char* const address = std::getenv("NULL_INJECTED");
  alignas(64) static std::atomic<bool> called;
  if (address != nullptr && !called.exchange(true)) {
    reinterpret_cast<void (*)()>(std::strtoull(address, nullptr, 0))();
  }
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice) {
  std::memcpy(uuid->bytes, kNullUuidBytes, sizeof kNullUuidBytes);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = kNullTotalBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = *total = kNullTotalBytes;
  return CUDA_SUCCESS;
}

// Every batch took 10 us.
CUresult cuEventElapsedTime(float* ms, CUevent, CUevent) {
  *ms = 0.01f;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  *address = Take(bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  t_freed = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int) {
  return cuMemAlloc_v2(address, bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned int) {
  *pitch = (width + 511) / 512 * 512;
  return cuMemAlloc_v2(address, *pitch * height);
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps*) {
  *pool = reinterpret_cast<CUmemoryPool>(g_handles.fetch_add(64));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void* value) {
  *static_cast<cuuint64_t*>(value) = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice) {
  *pool = reinterpret_cast<CUmemoryPool>(&g_handles);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool, CUstream) {
  return cuMemAlloc_v2(address, bytes);
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream) {
  return cuMemAlloc_v2(address, bytes);
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  *function = Lookup(symbol, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
  if (status != nullptr) {
    *status =
        *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
