#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "simgpu/driver/state.h"

namespace prorata::simgpu::driver {

// A memory pool: chunks of 32 MiB (or the size of a larger request) from the device, handed out and
// taken back in the order of streams.
//
// A block freed on a stream can be had again
//   A. on the same stream, at once;
//   B. on any stream, once the free was reached by the device.
// Chunks that are wholly free go back to the device when somebody synchronises, as far as the pool
// reserves more than its release threshold; and when memory is short.
//
// All functions need D().mutex.
struct Pool {
  struct Free {  // a free piece of a chunk
    uint64_t bytes = 0;
    Handle stream = 0;  // 0: free for everybody
    uint64_t sequence = 0;
  };
  struct Chunk {
    uint64_t bytes = 0;
    Context* ctx = nullptr;  // whose heap it came from
    std::map<uint64_t, Free> free;
  };

  int device = 0;
  bool is_default = false;
  bool destroyed = false;  // freed when its last block is
  int reuse_event = 1;
  int reuse_opportunistic = 1;
  int reuse_internal = 1;
  uint64_t release_threshold = 0;
  uint64_t max_bytes = 0;
  uint64_t reserved = 0;
  uint64_t reserved_high = 0;
  uint64_t used = 0;
  uint64_t used_high = 0;
  std::map<uint64_t, Chunk> chunks;
};

CUmemoryPool HandleOf(Pool* pool);
CUresult FindPool(CUmemoryPool handle, Pool** out);
Pool* NewPool(int device);
// The pools every device has; made on demand.
Pool* DefaultPool(int device);
Pool* GraphPool(int device);

// Memory for use on `stream`. Adds the Memory record.
CUresult PoolAllocate(Pool* pool, Context* ctx, const StreamRef& stream, uint64_t bytes,
                      uint64_t* address);
// Takes a block back; it is reusable by others when `sequence` of `stream` was reached. Drops the
// Memory record. Stream 0: at once.
void PoolFree(Pool* pool, uint64_t address, Handle stream, uint64_t sequence);
// Gives wholly free chunks back until no more than `keep` bytes stay reserved.
void PoolTrim(Pool* pool, uint64_t keep);
// All pools of a device, as far as their thresholds allow; or to nothing, when memory is short.
void TrimPools(int device, bool ignore_thresholds);
// The context goes, and its chunks with it.
void DropPoolChunks(Context* ctx);

// What the synchronising calls do last: unused pool memory goes back. Takes D().mutex.
void AfterSynchronize(Context* ctx);

}  // namespace prorata::simgpu::driver
