#include "client/memory/pools.h"

#include <atomic>

#include "client/memory/charge.h"
#include "client/memory/in_flight.h"
#include "client/memory/pool_table.h"
#include "client/platform/os.h"
#include "client/session/share.h"

namespace prorata::client {

std::atomic<bool> g_pool_freed;

namespace {

constinit PoolTable g_pools;
std::atomic<uint32_t> g_changed;
constinit FreeCount g_frees{};       // of all pools
constinit Table<bool> g_host_pools;  // by handle
std::atomic<uint32_t> g_host_pool_count;
const CUmemoryPool kDestroyed = reinterpret_cast<CUmemoryPool>(1);

bool Alive(CUmemoryPool handle) { return handle != nullptr && handle != kDestroyed; }

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

// S4 of pools.h, by who holds the pool's lock and began to settle.
void SettleBy(Pool& pool, uint64_t reserved, uint64_t mine) {
  const uint64_t settled = pool.charge.settled();
  uint64_t more = 0, less = 0;
  pool.charge.Settle(mine, [&](uint64_t pending) {
    const uint64_t old_total = settled + pending;
    pending -= mine;
    const uint64_t total = PoolCharge::TotalOf(reserved, old_total, pending);
    const uint64_t now = total > pending ? total - pending : 0;
    more = Max(now + pending, old_total) - old_total;
    less = old_total - Min(now + pending, old_total);
    return now;
  });
  ChargeTaken(pool.device, more);
  Uncharge(pool.device, less);
}

// If the pool is pending destruction, settles it; if nothing is left of it, destroys it and frees
// its number.
void SettlePendingDestruction(Pool& pool) {
  const CUmemoryPool handle = pool.pending_destruction.exchange(nullptr);
  if (handle == nullptr) return;
  const InFlightEpoch moving;
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
  const LockGuard holding(pool.lock);
  pool.charge.BeginSettling();
  SettleBy(pool, reserved, 0);
  if (left) {
    pool.pending_destruction.store(handle);
  } else {
    g_pools.Gone(pool);
  }
}

// Whether a later synchronisation may make the pool give back more: it has more than it keeps.
bool MayShrink(Pool& pool) {
  const uint64_t charged = pool.charge.Charged();
  const CUmemoryPool handle = pool.handle.load();
  if (charged == 0 || !Alive(handle)) return charged != 0;
  cuuint64_t kept = 0;
  const OwnCalls own;
  const CUresult result =
      PRORATA_REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept);
  return result != CUDA_SUCCESS || charged > kept;
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
  const uint32_t number = g_pools.Find(pool);
  return number != kNoPool ? number : g_pools.Enter(pool, device);
}

uint32_t PoolNumberOf(CUmemoryPool pool, uint32_t device) {
  const uint32_t number = g_pools.Find(pool);
  if (number != kNoPool) return number;
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

bool ReservePool(uint32_t number, uint64_t bytes, uint64_t* pending_bytes, IfRefused refused) {
  if (bytes > ~uint64_t{0} - kPoolChunkBytes) return false;
  return ReservePoolBytes(number, RoundUp(bytes, kPoolChunkBytes), pending_bytes, refused);
}

bool HasFreed(uint32_t number, uint64_t bytes) {
  const Pool& pool = g_pools[number];
  const CUmemoryPool handle = pool.handle.load();
  uint64_t reserved = 0;
  if (!Alive(handle) || !Reserved(pool, handle, &reserved)) return false;
  // A driver may count as used what is freed behind work, until that is done.
  if (!pool.frees.AllDone()) return reserved >= bytes;
  cuuint64_t used = 0;
  const OwnCalls own;
  return PRORATA_REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) ==
             CUDA_SUCCESS &&
         used < reserved && reserved - used >= bytes;
}

bool ReservePoolBytes(uint32_t number, uint64_t bytes, uint64_t* pending_bytes, IfRefused refused) {
  Pool& pool = g_pools[number];
  if (bytes > ~uint64_t{0} - PoolCharge::kUnitBytes) return false;
  bytes = RoundUp(bytes, PoolCharge::kUnitBytes);
  if (!ChargeOrTrim(pool.device, bytes, refused)) return false;
  *pending_bytes = bytes;
  pool.charge.AddPending(bytes);
  return true;
}

void SettlePool(uint32_t number, uint64_t pending_bytes) {
  Pool& pool = g_pools[number];
  for (;;) {
    const uint64_t noted = pool.charge.word();
    const uint64_t settled = pool.charge.settled();
    const CUmemoryPool handle = pool.handle.load();
    uint64_t reserved = 0;
    const bool known = Alive(handle) && Reserved(pool, handle, &reserved);
    if (known && reserved == settled && pool.charge.TakePending(noted, pending_bytes)) {
      Uncharge(pool.device, pending_bytes);  // the pool did not grow
      return;
    }
    const LockGuard holding(pool.lock);
    if (!pool.charge.BeginSettling(noted)) continue;
    if (!known && handle != nullptr) reserved = pool.charge.Charged();  // keep all charged
    SettleBy(pool, reserved, pending_bytes);
    return;
  }
}

void SettlePoolHandle(CUmemoryPool pool) {
  const uint32_t number = pool == nullptr ? kNoPool : g_pools.Find(pool);
  if (number != kNoPool) SettlePool(number, 0);
}

void PoolAllocationGone(uint32_t number) {
  g_pools[number].frees.CountFree();
  g_frees.CountFree();
  // Read before they are written: all threads would carry them from core to core.
  if (!g_pool_freed.load()) g_pool_freed.store(true);
  if (g_changed.load() == 0) g_changed.store(1);
}

// Every thread looks for itself: one that began earlier may have asked before this one's
// synchronisation took effect. So a pool is done with only up to the frees that were counted before
// it was asked.
void SettleSynchronized() {
  if (g_frees.AllDone()) return;
  const uint64_t frees = g_frees.BeginPoll();
  bool done = true;
  const uint32_t count = g_pools.count();
  for (uint32_t i = 0; i < count; ++i) {
    Pool& pool = g_pools[i];
    if (pool.frees.AllDone()) continue;
    const uint64_t own_frees = pool.frees.BeginPoll();
    SettlePendingDestruction(pool);
    if (Alive(pool.handle.load())) SettlePool(i, 0);
    if (MayShrink(pool)) {
      done = false;
    } else {
      pool.frees.Done(own_frees);
    }
  }
  if (done) g_frees.Done(frees);
}

void HostPoolMade(CUmemoryPool pool) {
  g_host_pools.Update(reinterpret_cast<uint64_t>(pool), [](bool&, bool made) {
    if (made) g_host_pool_count.fetch_add(1);
    return true;
  });
}

bool IsHostPool(CUmemoryPool pool) {
  return g_host_pool_count.load(std::memory_order_relaxed) != 0 && pool != nullptr &&
         g_host_pools.Find(reinterpret_cast<uint64_t>(pool), [](bool) { return true; });
}

CUresult DestroyPool(CUmemoryPool handle) {
  const auto destroy = [handle] { return PRORATA_REAL(cuMemPoolDestroy)(handle); };
  if (IsHostPool(handle)) {
    // Forgotten before the call: after it the driver may give the handle to a pool of the device.
    bool was;
    if (g_host_pools.Take(reinterpret_cast<uint64_t>(handle), &was)) g_host_pool_count.fetch_sub(1);
    const CUresult result = destroy();
    if (result != CUDA_SUCCESS) HostPoolMade(handle);
    return result;
  }
  const uint32_t number = handle == nullptr ? kNoPool : g_pools.Find(handle);
  if (number == kNoPool) return destroy();  // nothing was ever allocated from it
  Pool& pool = g_pools[number];
  if (!LeaveCurrent(handle, g_share.ordinal_of_index[pool.device])) return destroy();
  if (!g_pools.Forget(handle)) return CUDA_ERROR_INVALID_VALUE;
  pool.handle.store(kDestroyed);
  pool.pending_destruction.store(handle);
  SettlePendingDestruction(pool);
  g_changed.store(1, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

void SettleChangedPools() {
  if (g_changed.exchange(0) == 0) return;
  const uint32_t count = g_pools.count();
  bool more = false;
  for (uint32_t i = 0; i < count; ++i) {
    SettlePendingDestruction(g_pools[i]);
    if (g_pools[i].charge.Charged() == 0) continue;
    more = true;
    if (Alive(g_pools[i].handle.load())) SettlePool(i, 0);
  }
  // Freed memory leaves a pool at a synchronisation that SettleSynchronized may not see (the driver
  // has calls that wait for themselves): look again for as long as one has memory.
  if (more) g_changed.store(1, std::memory_order_relaxed);
}

bool TrimPools(uint32_t device) {
  const uint32_t count = g_pools.count();
  bool any = false;
  for (uint32_t i = 0; i < count; ++i) {
    if (g_pools[i].device != device) continue;
    const CUmemoryPool handle = g_pools[i].handle.load();
    if (handle == kDestroyed) {
      SettlePendingDestruction(g_pools[i]);
      any = true;
      continue;
    }
    if (!Alive(handle) || g_pools[i].charge.Charged() == 0) continue;
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
