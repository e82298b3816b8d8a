#include "client/pools.h"

#include <atomic>

#include "client/charge.h"
#include "client/guest.h"
#include "client/share.h"

namespace prorata::client {
namespace {

struct Pool {
  Lock lock;
  std::atomic<CUmemoryPool> handle;  // null: free, or destroyed
  uint32_t device;
  uint64_t settled;
  uint64_t pending;
  std::atomic<uint64_t> live;  // allocations remembered
  std::atomic<uint64_t> generation;
};
constinit Pool g_pools[kMaxPools] = {};
Lock g_entering;
std::atomic<uint32_t> g_pool_count;
std::atomic<uint32_t> g_changed;
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

// A destroyed pool whose last allocation is gone: nothing is charged for it, its number is free.
void Bury(Pool& pool) {
  const Holding holding(pool.lock);
  CUmemoryPool destroyed = kDestroyed;
  if (!pool.handle.compare_exchange_strong(destroyed, nullptr)) return;
  SettleBy(pool, 0, 0);
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

void PoolAllocationMade(uint32_t number) { g_pools[number].live.fetch_add(1); }

void PoolAllocationGone(uint32_t number) {
  Pool& pool = g_pools[number];
  if (pool.live.fetch_sub(1) == 1 && pool.handle.load() == kDestroyed) Bury(pool);
  g_changed.store(1, std::memory_order_relaxed);
}

void PoolDestroyed(CUmemoryPool handle) {
  const uint32_t number = FindPool(handle);
  if (handle == nullptr || number == kMaxPools) return;
  Pool& pool = g_pools[number];
  pool.handle.store(kDestroyed);
  // seq_cst against PoolAllocationGone: one of the two sees the other's store.
  if (pool.live.load() == 0) Bury(pool);
}

void SettleChangedPools() {
  if (g_changed.exchange(0) == 0) return;
  const uint32_t count = g_pool_count.load(std::memory_order_acquire);
  bool more = false;
  for (uint32_t i = 0; i < count; ++i) {
    if (!Alive(g_pools[i].handle.load())) continue;
    SettlePool(i, 0);
    more = true;
  }
  // Freed memory leaves a pool at the program's next synchronisation, which we do not see: look
  // again for as long as there are pools.
  if (more) g_changed.store(1, std::memory_order_relaxed);
}

bool TrimPools(uint32_t device) {
  const uint32_t count = g_pool_count.load(std::memory_order_acquire);
  bool any = false;
  for (uint32_t i = 0; i < count; ++i) {
    const CUmemoryPool handle = g_pools[i].handle.load();
    if (!Alive(handle) || g_pools[i].device != device) continue;
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
