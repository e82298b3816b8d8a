// Plain device memory: cuMemAlloc and its relatives, cuMemFree, cuMemGetInfo.

#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/memory/memory.h"

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/external.h"
#include "sim/cuda/memory/pool.h"

namespace prorata::simgpu::driver {

Memory& AddMemory(Memory memory) {
  memory.buffer_id = Broken(Rule::kBufferIdsAreUnique) ? memory.base : D().next_id++;
  return D().memory[memory.base] = memory;
}

bool SynchronousMemops(const Context& ctx, uint64_t address) {
  if (ctx.flags & CU_CTX_SYNC_MEMOPS) return true;
  const Memory* memory = FindMemory(address);
  return memory && memory->sync_memops;
}

CUresult AllocateDevice(Context* ctx, uint64_t bytes, Memory::Kind kind, uint64_t* address,
                        unsigned flags) {
  // What a module needs for its globals is not an allocation of the program.
  if (kind != Memory::Kind::kGlobal && RefusesAllocation(ctx->device, bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Code code = ctx->heap.Allocate(bytes, address);
  if (code == Code::kOutOfMemory) {
    TrimPools(ctx->device, true);
    code = ctx->heap.Allocate(bytes, address);
  }
  if (code != Code::kOk) return FromCode(code);
  Memory memory;
  memory.kind = kind;
  memory.base = *address;
  memory.bytes = bytes;
  memory.ctx = ctx;
  memory.device = ctx->device;
  memory.flags = flags;
  AddMemory(memory);
  return CUDA_SUCCESS;
}

CUresult ReleaseDevice(uint64_t address) {
  auto record = D().memory.find(address);
  if (record == D().memory.end()) return CUDA_ERROR_INVALID_VALUE;
  Context* ctx = record->second.ctx;
  if (record->second.name.handle != 0) D().machine->WithdrawExport(record->second.name);
  D().memory.erase(record);
  if (ctx->alive) ctx->heap.Free(address);
  return CUDA_SUCCESS;
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

constexpr uint64_t kPitchAlignment = 512;  // as cuMemAllocPitch gives on recent devices

CUresult Allocate(CUdeviceptr* dptr, size_t bytesize, Memory::Kind kind, unsigned flags = 0) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  if (bytesize == 0 && Broken(Rule::kAllocatesNothing)) return CUDA_SUCCESS;
  if (!dptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytesize > D().config(ctx->device).memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(D().mutex);
  uint64_t address;
  if (CUresult result = AllocateDevice(ctx, bytesize, kind, &address, flags)) return result;
  *dptr = address;
  return CUDA_SUCCESS;
}

// The first ABI has 32-bit addresses: no memory of this device has one.
constexpr CUresult kNoSmallAddresses = CUDA_ERROR_OUT_OF_MEMORY;

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  return Allocate(dptr, bytesize, Memory::Kind::kDevice);
}

CUresult cuMemAlloc(CUdeviceptr_v1*, unsigned int) { return kNoSmallAddresses; }
CUresult cuMemAllocPitch(CUdeviceptr_v1*, unsigned int*, unsigned int, unsigned int, unsigned int) {
  return kNoSmallAddresses;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  if (CUresult result = EnterCall()) return result;
  if (!pPitch || WidthInBytes == 0 || Height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t pitch = (WidthInBytes + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  size_t bytes;
  if (pitch < WidthInBytes || __builtin_mul_overflow(pitch, Height, &bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult result = Allocate(dptr, bytes, Memory::Kind::kDevice)) return result;
  *pPitch = pitch;
  return CUDA_SUCCESS;
}

// Managed memory is device memory that the CPU may touch: here all of it is.
CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  if (CUresult result = EnterCall()) return result;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Allocate(dptr, bytesize, Memory::Kind::kManaged, flags);
}

// Waits for the device first, as the driver does: work that was submitted may still use the memory.
CUresult cuMemFree_v2(CUdeviceptr dptr) {
  if (CUresult result = EnterCall()) return result;
  if (dptr == 0) return CUDA_SUCCESS;
  if (CUresult result = CheckCaptureSafe()) return result;
  Handle handle = 0;
  {
    std::lock_guard lock(D().mutex);
    auto record = D().memory.find(dptr);
    if (record == D().memory.end()) {
      return Broken(Rule::kFreesOnce) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    const Memory& memory = record->second;
    if (memory.kind != Memory::Kind::kDevice && memory.kind != Memory::Kind::kManaged &&
        memory.kind != Memory::Kind::kPool && !IsExternalBuffer(dptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    handle = memory.ctx->handle;
  }
  if (!Broken(Rule::kFreeWaits)) D().machine->WaitContext(handle);
  std::lock_guard lock(D().mutex);
  auto record = D().memory.find(dptr);
  if (record == D().memory.end()) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = ErrorOf(*record->second.ctx)) return result;
  if (FreeExternalBuffer(dptr)) return CUDA_SUCCESS;
  if (GraphAllocation* allocation = FindGraphMemory(dptr)) return FreeGraphMemory(allocation, 0, 0);
  if (record->second.kind == Memory::Kind::kPool) {
    PoolFree(record->second.pool, dptr, 0, 0);
    return CUDA_SUCCESS;
  }
  return ReleaseDevice(dptr);
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) { return cuMemFree_v2(dptr); }

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  auto info = D().machine->MemInfo(D().machine_index[ctx->device]);
  if (!info) return FromCode(info.error());
  *free = Broken(Rule::kMemInfoFollows) ? info->total_bytes : info->free_bytes;
  *total = info->total_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) {
  size_t wide_free;
  size_t wide_total;
  if (CUresult result = cuMemGetInfo_v2(&wide_free, &wide_total)) return result;
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  *free = static_cast<unsigned>(std::min<size_t>(wide_free, UINT32_MAX));
  *total = static_cast<unsigned>(std::min<size_t>(wide_total, UINT32_MAX));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  std::lock_guard lock(D().mutex);
  const Memory* memory = FindMemory(dptr);
  if (!memory) return CUDA_ERROR_NOT_FOUND;
  if (pbase) *pbase = memory->base;
  if (psize) *psize = memory->bytes;
  return CUDA_SUCCESS;
}
