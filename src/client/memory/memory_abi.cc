// Plain, pitched, managed and stream-ordered device memory.
//
// The first versions (cuMemAlloc and its like, with 32-bit addresses) are governed by the same
// code.

#include "client/memory/charge.h"
#include "client/memory/graphs.h"
#include "client/memory/memory.h"
#include "client/memory/pools.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

// call() makes the driver allocate; address() and actual() then tell where and how much;
// give_back() frees it again.
template <typename Call, typename Address, typename Actual>
CUresult AllocateLinear(uint64_t bytes, Call&& call, Address&& address, Actual&& actual) {
  if (bytes == 0) return call();
  const Place place = CurrentPlace();
  if (place.context == nullptr) return call();  // the driver says what is missing
  const InFlightEpoch moving;
  const uint64_t reserved = ReserveFor(bytes);
  if (!ChargeOrTrim(place.device, reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    Uncharge(place.device, reserved);
    return result;
  }
  if (AccountLinear(place, address(), actual(), reserved)) return CUDA_SUCCESS;
  PRORATA_REAL(cuMemFree_v2)(address());
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <typename Call>
CUresult Free(uint64_t key, Call&& call) {
  const InFlightEpoch moving;
  const Allocation allocation = ForgetForFree(key);
  const CUresult result = call();
  AfterFree(key, allocation, result);
  return result;
}

// The driver aligns rows to 512 bytes at most (it has been 512 on every GPU since 2008).
uint64_t WorstPitchedBytes(uint64_t width, uint64_t height) {
  uint64_t bytes;
  if (width > (uint64_t{1} << 62)) return ~uint64_t{0};
  return __builtin_mul_overflow(RoundUp(width, 512), height, &bytes) ? ~uint64_t{0} : bytes;
}

// For how long an allocation waits for memory that was freed behind work. A stream may wait for
// what this thread is yet to do, so it must have an end.
constexpr int64_t kFreesNs = 10'000'000'000;
constexpr int64_t kPollNs = 100'000;

struct PoolRequest {
  CUdeviceptr* out;
  size_t bytes;
  CUmemoryPool pool;
  uint32_t number;
  CUstream stream;
  bool per_thread;
};

// False: the share has no room, and nothing was asked of the driver.
bool TryFromPool(const PoolRequest& request, IfRefused refused, CUresult* result) {
  const InFlightEpoch moving;
  uint64_t pending = 0;
  if (!ReservePool(request.number, request.bytes, &pending, refused)) return false;
  const auto call = request.per_thread ? PRORATA_REAL(cuMemAllocFromPoolAsync_ptsz)
                                       : PRORATA_REAL(cuMemAllocFromPoolAsync);
  *result = call(request.out, request.bytes, request.pool, request.stream);
  if (*result == CUDA_SUCCESS) {
    Allocation allocation;
    allocation.kind = Kind::kPool;
    allocation.pool = request.number;
    AccountWhole(KeyOf(Space::kPointer, *request.out), allocation);
  }
  SettlePool(request.number, pending);
  return true;
}

bool HasWork(CUstream stream, bool per_thread) {
  const OwnCalls own;
  const auto query = per_thread ? PRORATA_REAL(cuStreamQuery_ptsz) : PRORATA_REAL(cuStreamQuery);
  return query(stream) == CUDA_ERROR_NOT_READY;
}

// The growth of the pool is reserved before the driver is asked, whether it will grow or not:
// nobody can say. In a full share that needs what the pool keeps unused, and what is freed behind
// work of the stream is no such memory before that work is done. The driver would hand it out again
// at once, in the order of the stream, so here the work is waited for instead of refusing what
// there is.
CUresult AllocateFromPool(const PoolRequest& request) {
  if (request.number == kNoPool) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result;
  if (TryFromPool(request, IfRefused::kTryAgain, &result)) return result;
  const int64_t until_ns = NowNs() + kFreesNs;
  while (MayWait() && HasFreed(request.number, request.bytes) && NowNs() < until_ns &&
         HasWork(request.stream, request.per_thread)) {
    AwaitReadable(-1, kPollNs);
    if (TryFromPool(request, IfRefused::kTryAgain, &result)) return result;
  }
  return TryFromPool(request, IfRefused::kCount, &result) ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

// cuMemAllocAsync takes from the current pool of the stream's device.
CUresult AllocateAsync(CUdeviceptr* out, size_t bytes, CUstream stream, bool per_thread) {
  const auto plain =
      per_thread ? PRORATA_REAL(cuMemAllocAsync_ptsz) : PRORATA_REAL(cuMemAllocAsync);
  const auto pass = [&] { return plain(out, bytes, stream); };
  if (!Governed() || bytes == 0 || out == nullptr) return pass();
  if (IsCaptured(stream, per_thread)) {  // it becomes a node of a graph
    GraphAllocates();
    return pass();
  }
  const Place place = CurrentPlace();
  if (place.context == nullptr) return pass();
  const uint32_t device = DeviceOfStream(stream, place);
  if (device == kNoDevice) return CUDA_ERROR_OUT_OF_MEMORY;
  CUmemoryPool pool = nullptr;
  {
    const OwnCalls own;
    const CUdevice ordinal = g_share.ordinal_of_index[device];
    if (PRORATA_REAL(cuDeviceGetMemPool)(&pool, ordinal) != CUDA_SUCCESS) pool = nullptr;
  }
  if (pool == nullptr) return pass();  // a driver without pools refuses the call itself
  // Asking for this very pool keeps the charge right if another thread sets a new current pool.
  return AllocateFromPool({out, bytes, pool, PoolNumber(pool, device), stream, per_thread});
}

CUresult AllocateFrom(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream,
                      bool per_thread) {
  const auto call = per_thread ? PRORATA_REAL(cuMemAllocFromPoolAsync_ptsz)
                               : PRORATA_REAL(cuMemAllocFromPoolAsync);
  const auto pass = [&] { return call(out, bytes, pool, stream); };
  if (!Governed() || bytes == 0 || out == nullptr || IsHostPool(pool)) return pass();
  if (IsCaptured(stream, per_thread)) {  // it becomes a node of a graph
    GraphAllocates();
    return pass();
  }
  const Place place = CurrentPlace();
  if (place.context == nullptr || pool == nullptr) return pass();
  if (place.device == kNoDevice) return CUDA_ERROR_OUT_OF_MEMORY;
  return AllocateFromPool({out, bytes, pool, PoolNumberOf(pool, place.device), stream, per_thread});
}

CUresult FreeAsync(CUdeviceptr address, CUstream stream, bool per_thread) {
  const auto real = per_thread ? PRORATA_REAL(cuMemFreeAsync_ptsz) : PRORATA_REAL(cuMemFreeAsync);
  const auto call = [&] { return real(address, stream); };
  // In a capture nothing is freed now.
  if (!Governed() || IsCaptured(stream, per_thread)) return call();
  return Free(KeyOf(Space::kPointer, address), call);
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  const auto call = [&] { return PRORATA_REAL(cuMemAlloc_v2)(dptr, bytesize); };
  if (!Governed() || dptr == nullptr) return call();
  return AllocateLinear(bytesize, call, [&] { return *dptr; }, [&] { return bytesize; });
}

CUresult cuMemAlloc(CUdeviceptr_v1* dptr, unsigned int bytesize) {
  const auto call = [&] { return PRORATA_REAL(cuMemAlloc)(dptr, bytesize); };
  if (!Governed() || dptr == nullptr) return call();
  return AllocateLinear(
      bytesize, call, [&] { return CUdeviceptr{*dptr}; }, [&] { return bytesize; });
}

CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  const auto call = [&] { return PRORATA_REAL(cuMemAllocManaged)(dptr, bytesize, flags); };
  if (!Governed() || dptr == nullptr) return call();
  return AllocateLinear(bytesize, call, [&] { return *dptr; }, [&] { return bytesize; });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  const auto call = [&] {
    return PRORATA_REAL(cuMemAllocPitch_v2)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
  };
  if (!Governed() || dptr == nullptr || pPitch == nullptr) return call();
  return AllocateLinear(
      WorstPitchedBytes(WidthInBytes, Height), call, [&] { return *dptr; },
      [&] { return *pPitch * Height; });
}

CUresult cuMemAllocPitch(CUdeviceptr_v1* dptr, unsigned int* pPitch, unsigned int WidthInBytes,
                         unsigned int Height, unsigned int ElementSizeBytes) {
  const auto call = [&] {
    return PRORATA_REAL(cuMemAllocPitch)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
  };
  if (!Governed() || dptr == nullptr || pPitch == nullptr) return call();
  return AllocateLinear(
      WorstPitchedBytes(WidthInBytes, Height), call, [&] { return CUdeviceptr{*dptr}; },
      [&] { return uint64_t{*pPitch} * Height; });
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  const auto call = [&] { return PRORATA_REAL(cuMemFree_v2)(dptr); };
  return Governed() ? Free(KeyOf(Space::kPointer, dptr), call) : call();
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) {
  const auto call = [&] { return PRORATA_REAL(cuMemFree)(dptr); };
  return Governed() ? Free(KeyOf(Space::kPointer, dptr), call) : call();
}

CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return AllocateAsync(dptr, bytesize, hStream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return AllocateAsync(dptr, bytesize, hStream, true);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream) {
  return AllocateFrom(dptr, bytesize, pool, hStream, false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream) {
  return AllocateFrom(dptr, bytesize, pool, hStream, true);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  return FreeAsync(dptr, hStream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return FreeAsync(dptr, hStream, true);
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  const CUresult result = PRORATA_REAL(cuMemPoolCreate)(pool, poolProps);
  if (result != CUDA_SUCCESS || !Governed() || pool == nullptr || poolProps == nullptr) {
    return result;
  }
  switch (poolProps->location.type) {
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      HostPoolMade(*pool);
      return result;
    case CU_MEM_LOCATION_TYPE_DEVICE:
      break;
    default:
      return result;
  }
  const uint32_t device = IndexOf(poolProps->location.id);
  // Where there is no memory to remember it in, its allocations are refused.
  if (device != kNoDevice) PoolNumber(*pool, device);
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  const InFlightEpoch moving;
  const CUresult result = PRORATA_REAL(cuMemPoolTrimTo)(pool, minBytesToKeep);
  if (Governed()) SettlePoolHandle(pool);
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return Governed() ? DestroyPool(pool) : PRORATA_REAL(cuMemPoolDestroy)(pool);
}

// For what the driver then takes out of the pools; what it proves about time is the fences' matter.
CUresult cuEventSynchronize(CUevent hEvent) {
  return Synchronized(PRORATA_REAL(cuEventSynchronize)(hEvent));
}
