// Pools of other processes: a descriptor says which pool, and each pointer is described by data of
// its own, as in simpleIPC of the driver's documentation: the pool first, then its pointers.

#include <fcntl.h>
#include <unistd.h>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/copy/peer.h"
#include "sim/cuda/memory/ipc.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/pool.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

CUresult cuMemPoolExportToShareableHandle(void* handle_out, CUmemoryPool pool_handle,
                                          CUmemAllocationHandleType handleType,
                                          unsigned long long flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!handle_out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Pool* pool;
  if (CUresult result = FindPool(pool_handle, &pool)) return result;
  if (pool->imported || (pool->handle_types & handleType) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (pool->descriptor < 0) {
    const auto made = D().machine->ExportPool(D().process, D().machine_index[pool->device]);
    if (!made) return FromCode(made.error());
    pool->name = made->name;
    pool->descriptor = made->fd;
  }
  const int fd = fcntl(pool->descriptor, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(handle_out) = fd;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle,
                                            CUmemAllocationHandleType handleType,
                                            unsigned long long flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!pool_out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard lock(D().mutex);
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(handle));
  const auto found = D().machine->ImportPool(fd, D().process);
  if (!found) return FromImportCode(found.error());
  const int device = OrdinalOf(found->device, -1);
  if (device < 0) return CUDA_ERROR_NOT_SUPPORTED;
  Pool* pool = NewPool(device);
  pool->imported = true;
  pool->name = found->name;
  *pool_out = HandleOf(pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* shareData_out, CUdeviceptr ptr) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!shareData_out) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  const auto found = D().memory.find(ptr);
  if (found == D().memory.end()) return CUDA_ERROR_INVALID_VALUE;
  Memory& memory = found->second;
  const bool exported =
      memory.kind == Memory::Kind::kPool && memory.pool && memory.pool->descriptor >= 0;
  if (!exported) return CUDA_ERROR_INVALID_VALUE;
  if (memory.name.handle == 0) {
    Pool* pool = memory.pool;
    const auto chunk = std::prev(pool->chunks.upper_bound(ptr));
    const Code code = chunk->second.ctx->heap.Export(ptr, memory.bytes, pool->name, &memory.name);
    if (code != Code::kOk) return FromCode(code);
  }
  PutName(IpcKind::kPoolPointer, memory.name, shareData_out->reserved);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* ptr_out, CUmemoryPool pool_handle,
                                CUmemPoolPtrExportData* shareData) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  ShareName name;
  if (!ptr_out || !shareData) return CUDA_ERROR_INVALID_VALUE;
  if (!TakeName(IpcKind::kPoolPointer, shareData->reserved, &name)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Pool* pool;
  if (CUresult result = FindPool(pool_handle, &pool)) return result;
  if (!pool->imported) return CUDA_ERROR_INVALID_VALUE;
  const auto shared = D().machine->Import(name, D().process, ctx->handle, pool->name);
  if (!shared) return FromImportCode(shared.error());
  const uint64_t mapping = MapShared(*shared);
  if (mapping == 0) {
    D().machine->DropShare(shared->share);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Pool::Import import = {ctx, shared->share, mapping, 0};
  for (const Extent& extent : shared->extents) import.mapped_bytes += extent.length_bytes;
  Memory memory;
  memory.kind = Memory::Kind::kPool;
  memory.base = mapping + shared->offset_bytes;
  memory.bytes = shared->length_bytes;
  memory.ctx = ctx;
  memory.device = pool->device;
  memory.pool = pool;
  AddMemory(memory);
  pool->imports[memory.base] = import;
  *ptr_out = memory.base;
  return CUDA_SUCCESS;
}
