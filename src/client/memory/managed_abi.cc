// Prefetches of managed memory, alone and in batches (managed.h).

#include "client/memory/managed.h"

#include "client/memory/memory.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

// On a share of one device it goes where it is charged already.
bool MayGoElsewhere() { return Governed() && g_share.device_count > 1; }

uint32_t DeviceOf(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? IndexOf(location.id) : kNoDevice;
}

template <typename Call>
CUresult PrefetchOne(CUdeviceptr address, size_t bytes, uint32_t device, Call&& call) {
  if (!MayGoElsewhere() || device == kNoDevice) return call();
  const InFlightEpoch moving;
  Prefetch prefetch;
  if (!ReservePrefetch(address, bytes, device, &prefetch)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  SettlePrefetch(prefetch, result == CUDA_SUCCESS);
  return result;
}

struct Batch {
  CUdeviceptr* addresses;
  size_t* sizes;
  size_t count;
  CUmemLocation* places;
  size_t* first;  // places[i] is for the ranges from first[i] on
  size_t place_count;
};

template <typename Call>
CUresult PrefetchBatch(const Batch& batch, Call&& call) {
  const bool named = batch.addresses != nullptr && batch.sizes != nullptr && batch.count != 0 &&
                     batch.places != nullptr && batch.first != nullptr && batch.place_count != 0;
  if (!MayGoElsewhere() || !named) return call();
  const size_t page_bytes = batch.count * sizeof(Prefetch);
  auto* prefetches = static_cast<Prefetch*>(MapPages(page_bytes));
  if (prefetches == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const InFlightEpoch moving;
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0, place = 0; result == CUDA_SUCCESS && i < batch.count; ++i) {
    while (place + 1 < batch.place_count && batch.first[place + 1] <= i) ++place;
    const uint32_t device = DeviceOf(batch.places[place]);
    if (device != kNoDevice &&
        !ReservePrefetch(batch.addresses[i], batch.sizes[i], device, &prefetches[i])) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  if (result == CUDA_SUCCESS) result = call();
  for (size_t i = 0; i < batch.count; ++i) SettlePrefetch(prefetches[i], result == CUDA_SUCCESS);
  UnmapPages(prefetches, page_bytes);
  return result;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

#define PRORATA_PREFETCH_ASYNC(symbol)                                                           \
  CUresult symbol(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {      \
    return PrefetchOne(devPtr, count, Governed() ? IndexOf(dstDevice) : kNoDevice,               \
                       [&] { return PRORATA_REAL(symbol)(devPtr, count, dstDevice, hStream); }); \
  }
PRORATA_PREFETCH_ASYNC(cuMemPrefetchAsync)
PRORATA_PREFETCH_ASYNC(cuMemPrefetchAsync_ptsz)

#define PRORATA_PREFETCH_ASYNC_V2(symbol)                                                       \
  CUresult symbol(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, \
                  CUstream hStream) {                                                           \
    return PrefetchOne(devPtr, count, Governed() ? DeviceOf(location) : kNoDevice, [&] {        \
      return PRORATA_REAL(symbol)(devPtr, count, location, flags, hStream);                     \
    });                                                                                         \
  }
PRORATA_PREFETCH_ASYNC_V2(cuMemPrefetchAsync_v2)
PRORATA_PREFETCH_ASYNC_V2(cuMemPrefetchAsync_v2_ptsz)

#define PRORATA_PREFETCH_BATCH(symbol)                                                          \
  CUresult symbol(CUdeviceptr* dptrs, size_t* sizes, size_t count, CUmemLocation* prefetchLocs, \
                  size_t* prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,    \
                  CUstream hStream) {                                                           \
    return PrefetchBatch(                                                                       \
        {dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs}, [&] {            \
          return PRORATA_REAL(symbol)(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,       \
                                      numPrefetchLocs, flags, hStream);                         \
        });                                                                                     \
  }
PRORATA_PREFETCH_BATCH(cuMemPrefetchBatchAsync)
PRORATA_PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz)
PRORATA_PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync)
PRORATA_PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)
