// Pinned host memory. Device and host share addresses, so the device pointer is the host's.

#include <sys/mman.h>
#include <unistd.h>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/memory.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult Pinned(void* p, Memory::Kind kind, Memory** out) {
  auto record = D().memory.find(AddressOf(p));
  if (record == D().memory.end() || record->second.kind != kind) return CUDA_ERROR_INVALID_VALUE;
  *out = &record->second;
  return CUDA_SUCCESS;
}

bool OverlapsRecord(uint64_t begin, uint64_t end) {
  auto after = D().memory.lower_bound(begin);
  if (after != D().memory.end() && after->first < end) return true;
  return FindMemory(begin) != nullptr;
}

}  // namespace

CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (!pp || bytesize == 0 || (Flags & ~kKnown)) return CUDA_ERROR_INVALID_VALUE;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (bytesize + page - 1) / page * page;
  if (mapped < bytesize) return CUDA_ERROR_OUT_OF_MEMORY;
  void* at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(D().mutex);
  Memory memory;
  memory.kind = Memory::Kind::kHost;
  memory.base = AddressOf(at);
  memory.bytes = bytesize;
  memory.mapped_bytes = mapped;
  memory.ctx = ctx;
  memory.device = ctx->device;
  memory.flags = Flags;
  AddMemory(memory);
  *pp = at;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) { return cuMemHostAlloc(pp, bytesize, 0); }
CUresult cuMemAllocHost(void** pp, unsigned int bytesize) {
  return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void* p) {
  if (CUresult result = EnterCall()) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  Handle handle = 0;
  {
    std::lock_guard lock(D().mutex);
    Memory* memory;
    if (CUresult result = Pinned(p, Memory::Kind::kHost, &memory)) return result;
    handle = memory->ctx->handle;
  }
  D().machine->WaitContext(handle);  // copies may still read or write it
  std::lock_guard lock(D().mutex);
  Memory* memory;
  if (CUresult result = Pinned(p, Memory::Kind::kHost, &memory)) return result;
  munmap(p, memory->mapped_bytes);
  D().memory.erase(AddressOf(p));
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if (!p || bytesize == 0 || (Flags & ~kKnown)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  if (!Broken(Rule::kRegistersOnce) && OverlapsRecord(AddressOf(p), AddressOf(p) + bytesize)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  Memory memory;
  memory.kind = Memory::Kind::kRegistered;
  memory.base = AddressOf(p);
  memory.bytes = bytesize;
  memory.ctx = ctx;
  memory.device = ctx->device;
  memory.flags = Flags;
  AddMemory(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void* p, size_t bytesize, unsigned int Flags) {
  return cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void* p) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Memory* memory;
  if (Pinned(p, Memory::Kind::kRegistered, &memory) != CUDA_SUCCESS) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  D().memory.erase(AddressOf(p));
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!pdptr || Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  const Memory* memory = FindMemory(AddressOf(p));
  if (!memory || memory->on_device()) return CUDA_ERROR_INVALID_VALUE;
  *pdptr = AddressOf(p);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  if (CUresult result = EnterCall()) return result;
  if (!pFlags) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Memory* memory;
  if (CUresult result = Pinned(p, Memory::Kind::kHost, &memory)) return result;
  // With unified addressing all pinned memory is portable and mapped.
  *pFlags = memory->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}
