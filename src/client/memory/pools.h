#pragma once

// Memory pools are charged by what they reserve on the device, not by what is allocated from them.
//
// For each pool: `settled` + the sum of `pending` is charged, and is never less than what the
// driver has reserved. An allocation reserves the most by which the pool can grow (its size rounded
// up to the driver's chunk) as pending, calls the driver, then settles:
//
//   S1  note how often the pool was settled and taken from; ask the driver for
//       RESERVED_MEM_CURRENT: r
//   S2  if r is what is settled and nobody has settled since, take mine out of pending, count that,
//       and give back its charge: the pool did not grow. Done.
//   S3  lock; if anybody has settled or taken, unlock and again from S1: r may be older than the
//       growth that another thread has ended with
//   S4  pending -= mine; total = clamp(r + pending, at least r, at most the old total); count it;
//       unlock; give back the difference
//
// Why r + pending is enough: r was read after my own call returned, so it contains my growth.
// Growth by others who had not settled when r was read is inside their pending, which is still
// counted.
//
// A pool that the program destroys lives on in the driver until what was allocated from it is freed
// and the device has reached those frees, and can no longer be asked. So it is we who destroy it,
// then: until its reserved memory is zero it is a pool pending destruction, which the program can
// no longer name and whose memory stays charged, to the byte. Whoever looks at such a pool takes
// its handle out of `pending_destruction` and puts it back, so that one alone destroys it. Pool
// numbers are reused after that.

#include <atomic>
#include <cstdint>

#include "client/memory/charge.h"
#include "client/session/driver_functions.h"
#include "client/session/share.h"

namespace prorata::client {

inline constexpr uint64_t kPoolChunkBytes = uint64_t{32} << 20;
inline constexpr uint32_t kNoPool = ~uint32_t{0};

// The pool that the driver keeps for the graphs of a device (graphs.h): a name, and no handle.
inline CUmemoryPool GraphPool(uint32_t device) {
  return reinterpret_cast<CUmemoryPool>(uint64_t{16} + device);
}
// Before the graphs' pool is trimmed; false: not now.
bool MayTrimGraphs(uint32_t device);

// The number of the pool, entered if new; kNoPool: no memory to keep it in. `device` is taken for
// new ones.
uint32_t PoolNumber(CUmemoryPool pool, uint32_t device);
// The same for a pool that may be any: what device it is on cannot be asked of it, so those that
// the program makes are entered then, and of the others the driver is asked whether they are the
// default or current one of some device. `device` is for what is left.
uint32_t PoolNumberOf(CUmemoryPool pool, uint32_t device);

// Before and after an allocation of `bytes` from pool `number`. ReservePool false: refused.
// SettlePool is called whether the driver succeeded or not.
bool ReservePool(uint32_t number, uint64_t bytes, uint64_t* pending_bytes,
                 IfRefused refused = IfRefused::kCount);
// Whether the pool may hold so many bytes that are freed, be it behind work that is not done.
bool HasFreed(uint32_t number, uint64_t bytes);
// The same for so many bytes, as they are.
bool ReservePoolBytes(uint32_t number, uint64_t bytes, uint64_t* pending_bytes,
                      IfRefused refused = IfRefused::kCount);
void SettlePool(uint32_t number, uint64_t pending_bytes);

// After something that may have made the pool smaller: settles it when it is known.
void SettlePoolHandle(CUmemoryPool pool);

// An allocation of pool `number` was freed. The driver takes the memory out of the pool when the
// program synchronises next: Synchronized settles then, before another process of the share is
// refused what is free already; whatever it misses the helper settles soon.
void PoolAllocationGone(uint32_t number);

extern std::atomic<bool> g_pool_freed;
void SettleSynchronized();

// After the program's synchronising call; answers its result. One load in a process that never
// freed to a pool.
inline CUresult Synchronized(CUresult result) {
  if (g_pool_freed.load(std::memory_order_relaxed) && result == CUDA_SUCCESS && Governed()) {
    SettleSynchronized();
  }
  return result;
}

// A pool whose memory is the host's was made: what is allocated from it is free of charge, until it
// is destroyed. One that there is no memory to remember is taken for a pool of the device, and
// charged.
void HostPoolMade(CUmemoryPool pool);
bool IsHostPool(CUmemoryPool pool);

// cuMemPoolDestroy.
CUresult DestroyPool(CUmemoryPool pool);

// Helper: settles all pools if something changed since.
void SettleChangedPools();

// Makes the device's pools give back what they keep unused. True if any pool had memory.
bool TrimPools(uint32_t device);

}  // namespace prorata::client
