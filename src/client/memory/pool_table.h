#pragma once

// The pools of this process that take memory of a device, by handle and by number. The table grows
// with the program's pools: a pool that found no place would be one whose allocations are refused
// with memory left.
//
// Pools lie in segments that are made when first needed and stay, so whoever has a number may look
// at the pool without a lock. A number is used again when nothing is left of its pool (pools.h).
// Lock order: the lock of entering, then a shard of the handles. Thread-safe.

#include <atomic>
#include <cstdint>

#include "client/memory/pool_charge.h"
#include "client/memory/pools.h"
#include "client/platform/os.h"
#include "client/platform/table.h"

namespace prorata::client {

// Whether something was freed that nobody has looked for since. Frees count in steps: one is
// counted when none was since somebody last began to look, so that threads that free all the time
// only read.
class FreeCount {
 public:
  // After the driver freed.
  void CountFree() {
    if (count_.load() == polled_.load()) count_.fetch_add(1);
  }
  // Whether all were looked for, and nothing was left to wait for.
  bool AllDone() const { return count_.load() == done_.load(); }
  // The count, before its maker asks the driver: what is freed from here on counts anew.
  uint64_t BeginPoll() {
    const uint64_t counted = count_.load();
    uint64_t before = polled_.load();
    while (before < counted && !polled_.compare_exchange_weak(before, counted)) {
    }
    return counted;
  }
  void Done(uint64_t counted) { done_.store(counted); }

 private:
  std::atomic<uint64_t> count_;
  std::atomic<uint64_t> polled_;
  std::atomic<uint64_t> done_;
};

struct Pool {
  std::atomic<CUmemoryPool> handle;  // null: free; kDestroyed: by the program
  std::atomic<CUmemoryPool>
      pending_destruction;  // what the driver still has of it, unless somebody looks at it
  std::atomic<uint32_t> device;
  Lock lock;  // of who settles, and is alone with `settled`
  // On lines of their own: each allocation writes the one, and frees read the other.
  alignas(128) PoolCharge charge;
  alignas(128) FreeCount frees;
};

inline __thread uint32_t t_last_pool __attribute__((tls_model("initial-exec"))) = 0;

class PoolTable {
 public:
  // Numbers below this were given out.
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  Pool& operator[](uint32_t number) {
    return segments_[number / kSegmentPools].load(
        std::memory_order_acquire)[number % kSegmentPools];
  }

  // A thread mostly asks for the pool that it asked for before.
  uint32_t Find(CUmemoryPool handle) {
    const bool is_one = reinterpret_cast<uintptr_t>(handle) > 1;  // neither null nor kDestroyed
    if (is_one && t_last_pool < count() && (*this)[t_last_pool].handle.load() == handle)
      return t_last_pool;
    uint32_t number = kNoPool;
    handles_.Find(reinterpret_cast<uint64_t>(handle), [&](uint32_t found) {
      number = found;
      return true;
    });
    if (number != kNoPool) t_last_pool = number;
    return number;
  }

  // Its number, entered with `device` if it is new. kNoPool: there is no memory to keep it in.
  uint32_t Enter(CUmemoryPool handle, uint32_t device) {
    const LockGuard entering(entering_);
    uint32_t number = Find(handle);
    if (number != kNoPool) return number;
    number = FreeNumber();
    if (number == kNoPool) return kNoPool;
    const bool named = handles_.Update(reinterpret_cast<uint64_t>(handle), [&](uint32_t& at, bool) {
      at = number;
      return true;
    });
    if (!named) return kNoPool;
    Pool& pool = (*this)[number];
    pool.device.store(device);
    pool.handle.store(handle);
    if (number == count()) {
      count_.store(number + 1, std::memory_order_release);
    } else {
      free_.fetch_sub(1);
    }
    return number;
  }

  // The program destroyed it: nobody finds it by this handle any more. False: somebody else did.
  bool Forget(CUmemoryPool handle) {
    uint32_t number;
    return handles_.Take(reinterpret_cast<uint64_t>(handle), &number);
  }
  // Nothing is left of it: its number is free.
  void Gone(Pool& pool) {
    pool.handle.store(nullptr);
    free_.fetch_add(1);
  }

 private:
  static constexpr uint32_t kSegmentPools = 256, kSegments = 4096;

  uint32_t FreeNumber() {  // entering_ is held
    const uint32_t count = count_.load();
    for (uint32_t i = 0; free_.load() != 0 && i < count; ++i) {
      if ((*this)[i].handle.load() == nullptr) return i;
    }
    if (count == kSegmentPools * kSegments) return kNoPool;
    std::atomic<Pool*>& segment = segments_[count / kSegmentPools];
    if (segment.load() == nullptr) {
      auto* made = static_cast<Pool*>(MapPages(kSegmentPools * sizeof(Pool)));
      if (made == nullptr) return kNoPool;
      segment.store(made, std::memory_order_release);
    }
    return count;
  }

  Lock entering_;
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> free_{0};  // numbers below count_ that are no pool's
  std::atomic<Pool*> segments_[kSegments] = {};
  Table<uint32_t> handles_;
};

}  // namespace prorata::client
