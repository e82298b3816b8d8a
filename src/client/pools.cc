#include "client/pools.h"

#include <atomic>

#include "client/charge.h"
#include "client/guest.h"
#include "client/moves.h"
#include "client/share.h"

namespace prorata::client {
namespace {

struct Pool {
  Lock lock;
  std::atomic<CUmemoryPool> handle;  // null: free; kDestroyed: by the program
  std::atomic<CUmemoryPool> doomed;  // what the driver still has of it, unless somebody looks at it
  uint32_t device;
  uint64_t settled;
  uint64_t pending;
  std::atomic<uint64_t> generation;
};
constinit Pool g_pools[kMaxPools] = {};
Lock g_entering;
std::atomic<uint32_t> g_pool_count;
std::atomic<uint32_t> g_changed;
std::atomic<CUmemoryPool> g_host_pools[kMaxPools];
std::atomic<uint32_t> g_host_pool_count;  // used length of it
const CUmemoryPool kDestroyed = reinterpret_cast<CUmemoryPool>(1);

bool Alive(CUmemoryPool handle) { return handle != nullptr && handle != kDestroyed; }

uint32_t FindPool(CUmemoryPool pool) {
  const uint32_t count = g_pool_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    if (g_pools[i].handle.load(std::memory_order_relaxed) == pool) return i;
  }
  return kMaxPools;
}

bool IsOfGraphs(const Pool& pool, CUmemoryPool handle) { return handle == GraphPool(pool.device); }

// What the driver has reserved for the pool; false: it does not say (destroyed, or another error).
bool Reserved(const Pool& pool, CUmemoryPool handle, uint64_t* bytes) {
  cuuint64_t value = 0;
  const OwnCalls own;
  const CUresult result = IsOfGraphs(pool, handle)
                              ? PRORATA_REAL(cuDeviceGetGraphMemAttribute)(
                                    g_share.ordinal_of_index[pool.device],
                                    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value)
                              : PRORATA_REAL(cuMemPoolGetAttribute)(
                                    handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
  if (result != CUDA_SUCCESS) return false;
  *bytes = value;
  return true;
}

// S3 and S4 of pools.h.
void SettleBy(Pool& pool, uint64_t reserved, uint64_t mine) {  // pool.lock is held
  const uint64_t old_total = pool.settled + pool.pending;
  pool.pending -= mine;
  const uint64_t total = Max(reserved, Min(old_total, reserved + pool.pending));
  pool.settled = total > pool.pending ? total - pool.pending : 0;
  const uint64_t new_total = pool.settled + pool.pending;
  pool.generation.fetch_add(1);
  if (new_total > old_total) {
    ChargeTaken(pool.device, new_total - old_total);
  } else {
    Uncharge(pool.device, old_total - new_total);
  }
}

// If the pool is doomed, settles it; if nothing is left of it, destroys it and frees its number.
void LookAtDoomed(Pool& pool) {
  const CUmemoryPool handle = pool.doomed.exchange(nullptr);
  if (handle == nullptr) return;
  const Moving moving;
  uint64_t reserved = 0;
  {
    const OwnCalls own;
    PRORATA_REAL(cuMemPoolTrimTo)(handle, 0);
  }
  const bool left = Reserved(pool, handle, &reserved) && reserved != 0;
  if (!left) {
    const OwnCalls own;
    PRORATA_REAL(cuMemPoolDestroy)(handle);
  }
  const Holding holding(pool.lock);
  SettleBy(pool, reserved, 0);
  if (left) {
    pool.doomed.store(handle);
  } else {
    pool.handle.store(nullptr);
  }
}

// As the driver does for a pool that is destroyed: the device's default pool becomes its current
// one, if this was. False: it is the default pool, which cannot be destroyed.
bool LeaveCurrent(CUmemoryPool pool, CUdevice ordinal) {
  CUmemoryPool current = nullptr, standard = nullptr;
  const OwnCalls own;
  if (PRORATA_REAL(cuDeviceGetDefaultMemPool)(&standard, ordinal) != CUDA_SUCCESS) return false;
  if (pool == standard) return false;
  if (PRORATA_REAL(cuDeviceGetMemPool)(&current, ordinal) == CUDA_SUCCESS && current == pool) {
    PRORATA_REAL(cuDeviceSetMemPool)(ordinal, standard);
  }
  return true;
}

}  // namespace

uint32_t PoolNumber(CUmemoryPool pool, uint32_t device) {
  uint32_t number = FindPool(pool);
  if (number != kMaxPools) return number;
  const Holding entering(g_entering);
  number = FindPool(pool);
  if (number != kMaxPools) return number;
  number = FindPool(nullptr);  // a destroyed one, with nothing charged any more
  if (number == kMaxPools) {
    number = g_pool_count.load();
    if (number == kMaxPools) return kMaxPools;
  }
  g_pools[number].device = device;
  g_pools[number].handle.store(pool);
  if (number == g_pool_count.load()) g_pool_count.store(number + 1, std::memory_order_release);
  return number;
}

uint32_t PoolNumberOf(CUmemoryPool pool, uint32_t device) {
  const uint32_t number = FindPool(pool);
  if (number != kMaxPools) return number;
  for (uint32_t i = 0; g_share.ordinals > 1 && i < g_share.ordinals; ++i) {
    const auto ordinal = static_cast<CUdevice>(i);
    CUmemoryPool standard = nullptr, current = nullptr;
    const OwnCalls own;
    PRORATA_REAL(cuDeviceGetDefaultMemPool)(&standard, ordinal);
    PRORATA_REAL(cuDeviceGetMemPool)(&current, ordinal);
    if ((pool == standard || pool == current) && IndexOf(ordinal) != kNoDevice) {
      return PoolNumber(pool, IndexOf(ordinal));
    }
  }
  return PoolNumber(pool, device);
}

bool ReservePool(uint32_t number, uint64_t bytes, uint64_t* pending_bytes) {
  if (bytes > ~uint64_t{0} - kPoolChunkBytes) return false;
  return ReservePoolBytes(number, RoundUp(bytes, kPoolChunkBytes), pending_bytes);
}

bool ReservePoolBytes(uint32_t number, uint64_t bytes, uint64_t* pending_bytes) {
  Pool& pool = g_pools[number];
  if (!ChargeOrTrim(pool.device, bytes)) return false;
  *pending_bytes = bytes;
  const Holding holding(pool.lock);
  pool.pending += bytes;
  return true;
}

void SettlePool(uint32_t number, uint64_t pending_bytes) {
  Pool& pool = g_pools[number];
  for (;;) {
    const uint64_t generation = pool.generation.load();
    const CUmemoryPool handle = pool.handle.load();
    uint64_t reserved = 0;
    const bool known = Alive(handle) && Reserved(pool, handle, &reserved);
    const Holding holding(pool.lock);
    if (pool.generation.load() != generation) continue;
    if (!known && handle != nullptr) reserved = pool.settled + pool.pending;  // keep all charged
    SettleBy(pool, reserved, pending_bytes);
    return;
  }
}

void SettlePoolHandle(CUmemoryPool pool) {
  const uint32_t number = FindPool(pool);
  if (pool != nullptr && number != kMaxPools) SettlePool(number, 0);
}

void PoolAllocationGone() { g_changed.store(1, std::memory_order_relaxed); }

void HostPoolMade(CUmemoryPool pool) {
  for (uint32_t i = 0; i < kMaxPools; ++i) {
    CUmemoryPool none = nullptr;
    if (!g_host_pools[i].compare_exchange_strong(none, pool)) continue;
    uint32_t count = g_host_pool_count.load();
    while (count <= i && !g_host_pool_count.compare_exchange_weak(count, i + 1)) {
    }
    return;
  }
}

bool IsHostPool(CUmemoryPool pool) {
  const uint32_t count = g_host_pool_count.load();
  for (uint32_t i = 0; i < count; ++i) {
    if (g_host_pools[i].load(std::memory_order_relaxed) == pool) return true;
  }
  return false;
}

CUresult DestroyPool(CUmemoryPool handle) {
  const auto destroy = [handle] { return PRORATA_REAL(cuMemPoolDestroy)(handle); };
  // Forgotten before the call: after it the driver may give the handle to a pool of the device.
  for (uint32_t i = 0; handle != nullptr && i < g_host_pool_count.load(); ++i) {
    CUmemoryPool own = handle;
    if (!g_host_pools[i].compare_exchange_strong(own, nullptr)) continue;
    const CUresult result = Within(destroy);
    if (result != CUDA_SUCCESS) HostPoolMade(handle);
    return result;
  }
  const uint32_t number = handle == nullptr ? kMaxPools : FindPool(handle);
  if (number == kMaxPools) return Within(destroy);  // nothing was ever allocated from it
  Pool& pool = g_pools[number];
  if (!LeaveCurrent(handle, g_share.ordinal_of_index[pool.device])) return Within(destroy);
  CUmemoryPool expected = handle;
  if (!pool.handle.compare_exchange_strong(expected, kDestroyed)) return CUDA_ERROR_INVALID_VALUE;
  pool.doomed.store(handle);
  LookAtDoomed(pool);
  g_changed.store(1, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

void SettleChangedPools() {
  if (g_changed.exchange(0) == 0) return;
  const uint32_t count = g_pool_count.load(std::memory_order_acquire);
  bool more = false;
  for (uint32_t i = 0; i < count; ++i) {
    LookAtDoomed(g_pools[i]);
    const CUmemoryPool handle = g_pools[i].handle.load();
    more |= handle != nullptr;
    if (Alive(handle)) SettlePool(i, 0);
  }
  // Freed memory leaves a pool at the program's next synchronisation, which we do not see: look
  // again for as long as there are pools.
  if (more) g_changed.store(1, std::memory_order_relaxed);
}

bool TrimPools(uint32_t device) {
  const uint32_t count = g_pool_count.load(std::memory_order_acquire);
  bool any = false;
  for (uint32_t i = 0; i < count; ++i) {
    if (g_pools[i].device != device) continue;
    const CUmemoryPool handle = g_pools[i].handle.load();
    if (handle == kDestroyed) {
      LookAtDoomed(g_pools[i]);
      any = true;
      continue;
    }
    if (!Alive(handle)) continue;
    const bool of_graphs = IsOfGraphs(g_pools[i], handle);
    if (of_graphs && !MayTrimGraphs(device)) continue;
    {
      const OwnCalls own;
      if (of_graphs) {
        PRORATA_REAL(cuDeviceGraphMemTrim)(g_share.ordinal_of_index[device]);
      } else {
        PRORATA_REAL(cuMemPoolTrimTo)(handle, 0);
      }
    }
    SettlePool(i, 0);
    any = true;
  }
  return any;
}

}  // namespace prorata::client
