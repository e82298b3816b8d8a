// Stream-ordered memory: allocation from pools, and the pools.

#include <algorithm>
#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/copy/peer.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/memory/pool.h"
#include "sim/cuda/stream/operation.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// In a capture it becomes an allocation node.
CUresult AllocateInCapture(Context* ctx, const StreamRef& stream, size_t bytes, uint64_t* address) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, ctx->device};
  params.bytesize = bytes;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = ReserveGraphMemory(ctx, &params)) return result;
  }
  *address = params.dptr;
  return Enqueue(stream, GraphAllocCall{params.dptr, bytes});
}

CUresult Allocate(CUdeviceptr* dptr, size_t bytes, CUmemoryPool handle, bool default_pool,
                  CUstream stream_handle, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!dptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  uint64_t address = 0;
  bool capturing;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindStream(stream_handle, per_thread, ctx, &stream)) return result;
    capturing = stream->capture != nullptr;
    if (bytes == 0) {
      *dptr = 0;
      return CUDA_SUCCESS;
    }
    if (bytes > D().config(ctx->device).memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    DefaultPool(stream->ctx->device);
    Pool* pool = D().device(stream->ctx->device).current_pool;
    if (!default_pool) {
      if (CUresult result = FindPool(handle, &pool)) return result;
    }
    if (pool->imported && !Broken(Rule::kImportedPoolGivesNone)) return CUDA_ERROR_INVALID_VALUE;
    if (!capturing) {
      if (CUresult result = CheckNotCapturing(stream.get())) return result;
      if (CUresult result = PoolAllocate(pool, stream->ctx, stream, bytes, &address)) return result;
    }
  }
  if (capturing) {
    if (CUresult result = AllocateInCapture(ctx, stream, bytes, &address)) return result;
  }
  *dptr = address;
  return CUDA_SUCCESS;
}

CUresult Free(CUdeviceptr dptr, CUstream stream_handle, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (dptr == 0) return CUDA_SUCCESS;
  StreamRef stream;
  bool of_pool;
  bool of_graph;
  bool of_other_process;
  bool capturing;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindStream(stream_handle, per_thread, ctx, &stream)) return result;
    auto record = D().memory.find(dptr);
    if (record == D().memory.end()) return CUDA_ERROR_INVALID_VALUE;
    of_pool = record->second.kind == Memory::Kind::kPool;
    of_other_process = of_pool && record->second.pool && record->second.pool->imported;
    const GraphAllocation* allocation = FindGraphMemory(dptr);
    of_graph = allocation != nullptr;
    if (of_graph && !stream->capture && !allocation->live) return CUDA_ERROR_INVALID_VALUE;
    if (of_graph && stream->capture) {
      if (CUresult result = CheckFreeNode(stream->capture->graph.get(), dptr)) return result;
    }
    if (!of_pool && record->second.kind != Memory::Kind::kDevice) return CUDA_ERROR_INVALID_VALUE;
    capturing = stream->capture != nullptr;
  }
  if (capturing) return Enqueue(stream, GraphFreeCall{dptr});
  // The place in the stream where the block becomes free.
  uint64_t sequence = 0;
  if (CUresult result = Enqueue(stream, EmptyCall{}, &sequence)) return result;
  if (of_graph) {
    std::lock_guard lock(D().mutex);
    GraphAllocation* allocation = FindGraphMemory(dptr);
    return allocation ? FreeGraphMemory(allocation, stream->handle, sequence)
                      : CUDA_ERROR_INVALID_VALUE;
  }
  if (!of_pool || of_other_process) {
    // Memory of cuMemAlloc, or another process's: given back once the stream is there.
    if (Code code = D().machine->WaitStream(stream->handle, sequence); code != Code::kOk) {
      return FromCode(code);
    }
    return cuMemFree_v2(dptr);
  }
  std::lock_guard lock(D().mutex);
  auto record = D().memory.find(dptr);
  if (record == D().memory.end()) return CUDA_ERROR_INVALID_VALUE;
  PoolFree(record->second.pool, dptr, stream->handle, sequence);
  return CUDA_SUCCESS;
}

template <typename T>
CUresult PutAttribute(void* out, T value) {
  std::memcpy(out, &value, sizeof(value));
  return CUDA_SUCCESS;
}

template <typename T>
T Take(const void* in) {
  T value;
  std::memcpy(&value, in, sizeof(value));
  return value;
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return Allocate(dptr, bytesize, nullptr, true, hStream, false);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return Allocate(dptr, bytesize, nullptr, true, hStream, true);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream) {
  return Allocate(dptr, bytesize, pool, false, hStream, false);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream) {
  return Allocate(dptr, bytesize, pool, false, hStream, true);
}
CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) { return Free(dptr, hStream, false); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return Free(dptr, hStream, true);
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  if (CUresult result = EnterCall()) return result;
  if (!pool || !poolProps) return CUDA_ERROR_INVALID_VALUE;
  if (poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (poolProps->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  // Fabric handles need a fabric, the others another operating system.
  if (poolProps->handleTypes & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (CUresult result = EnterDevice(poolProps->location.id)) return result;
  std::lock_guard lock(D().mutex);
  Pool* made = NewPool(poolProps->location.id);
  made->max_bytes = poolProps->maxSize;
  made->handle_types = poolProps->handleTypes;
  *pool = HandleOf(made);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Pool* pool;
  if (CUresult result = FindPool(handle, &pool)) return result;
  if (pool->is_default && Broken(Rule::kDefaultPoolStays)) return CUDA_SUCCESS;
  if (pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  Device& device = D().device(pool->device);
  if (device.current_pool == pool) device.current_pool = DefaultPool(pool->device);
  PoolTrim(pool, 0);
  pool->destroyed = true;  // what is still allocated stays valid; then it goes
  if (pool->chunks.empty() && pool->imports.empty()) DeletePool(pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t minBytesToKeep) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Pool* pool;
  if (CUresult result = FindPool(handle, &pool)) return result;
  PoolTrim(pool, Broken(Rule::kTrimKeeps) ? 0 : minBytesToKeep);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attr, void* value) {
  if (CUresult result = EnterCall()) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Pool* pool;
  if (CUresult result = FindPool(handle, &pool)) return result;
  switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return PutAttribute(value, pool->reuse_event);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return PutAttribute(value, pool->reuse_opportunistic);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return PutAttribute(value, pool->reuse_internal);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return PutAttribute(value, pool->release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return PutAttribute(value, pool->reserved);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return PutAttribute(value, pool->reserved_high);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return PutAttribute(value,
                          pool->used + (Broken(Rule::kFreedIsUnused) ? FreedBehindWork(*pool) : 0));
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return PutAttribute(value, pool->used_high);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attr, void* value) {
  if (CUresult result = EnterCall()) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Pool* pool;
  if (CUresult result = FindPool(handle, &pool)) return result;
  switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool->reuse_event = Take<int>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool->reuse_opportunistic = Take<int>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool->reuse_internal = Take<int>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold = Take<uint64_t>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (Take<uint64_t>(value) != 0) return CUDA_ERROR_INVALID_VALUE;  // can only be reset
      pool->reserved_high = pool->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (Take<uint64_t>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->used_high = pool->used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
  if (CUresult result = EnterCall()) return result;
  if (count > 0 && !map) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Pool* pool;
  if (CUresult result = FindPool(handle, &pool)) return result;
  for (size_t i = 0; i < count; ++i) {
    if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult result = EnterDevice(map[i].location.id)) return result;
    const bool open = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!open && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_INVALID_VALUE;
    const int device = map[i].location.id;
    if (device == pool->device) {
      // What the pool's own device may do cannot be taken from it.
      if (!open) return CUDA_ERROR_INVALID_VALUE;
    } else if (!open) {
      pool->peers.erase(device);
    } else if (LinkedForPeers(device, pool->device)) {
      pool->peers.insert(device);
    } else {
      return CUDA_ERROR_INVALID_DEVICE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                            CUmemLocation* location) {
  if (CUresult result = EnterCall()) return result;
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Pool* pool;
  if (CUresult result = FindPool(handle, &pool)) return result;
  const bool open = location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
                    (location->id == pool->device || pool->peers.contains(location->id));
  *flags = open ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!pool_out) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  *pool_out = HandleOf(DefaultPool(dev));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  DefaultPool(dev);
  *pool = HandleOf(D().device(dev).current_pool);
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool handle) {
  if (CUresult result = EnterDevice(dev)) return result;
  std::lock_guard lock(D().mutex);
  Pool* pool;
  if (CUresult result = FindPool(handle, &pool)) return result;
  if (pool->device != dev) return CUDA_ERROR_INVALID_VALUE;
  DefaultPool(dev);
  D().device(dev).current_pool = pool;
  return CUDA_SUCCESS;
}
