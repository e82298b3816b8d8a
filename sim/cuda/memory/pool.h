#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/cuda/state.h"

namespace prorata::simgpu::driver {

// A memory pool: chunks of 32 MiB (or the size of a larger request) from the device, handed out and
// taken back in the order of streams.
//
// A block freed on a stream can be had again
//   A. on the same stream, at once;
//   B. on a stream that comes after the free, by events (reuse_event);
//   C. on any stream, once the free was reached by the device (reuse_opportunistic) or somebody
//      synchronised with it;
//   D. on any stream, which is then made to wait for the free, when the pool cannot grow
//      (reuse_internal).
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

  struct Import {  // memory of another process's pool
    Context* ctx = nullptr;
    Handle share = 0;
    uint64_t mapping = 0;
    uint64_t mapped_bytes = 0;
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
  std::set<int> peers;  // devices that may use it: cuMemPoolSetAccess
  unsigned handle_types = CU_MEM_HANDLE_TYPE_NONE;
  ShareName name;         // once it was exported, or where it was imported from
  int descriptor = -1;    // of the export
  bool imported = false;  // gives out nothing; its memory is by address in `imports`
  std::map<uint64_t, Import> imports;
};

CUmemoryPool HandleOf(Pool* pool);
CUresult FindPool(CUmemoryPool handle, Pool** out);
Pool* NewPool(int device);
// The pools every device has; made on demand.
Pool* DefaultPool(int device);

// Memory for use on `stream`. Adds the Memory record.
CUresult PoolAllocate(Pool* pool, Context* ctx, const StreamRef& stream, uint64_t bytes,
                      uint64_t* address);
// Takes a block back; it is reusable by others when `sequence` of `stream` was reached. Drops the
// Memory record. Stream 0: at once.
void PoolFree(Pool* pool, uint64_t address, Handle stream, uint64_t sequence);
// What is freed behind work that is not done.
uint64_t FreedBehindWork(const Pool& pool);
// Gives wholly free chunks back until no more than `keep` bytes stay reserved.
void PoolTrim(Pool* pool, uint64_t keep);
// All pools of a device, as far as their thresholds allow; or to nothing, when memory is short.
void TrimPools(int device, bool ignore_thresholds);
// Gives memory of an imported pool back.
void DropPoolImport(Pool* pool, uint64_t address);
// A pool that nothing is left of.
void DeletePool(Pool* pool);
// The context goes: its chunks and blocks become the other's.
void PassPoolChunks(Context* ctx, Context* heir);
// What is left of it goes.
void DropPoolChunks(Context* ctx);

// What the synchronising calls do last: unused pool memory goes back. Takes D().mutex.
void AfterSynchronize(Context* ctx);

}  // namespace prorata::simgpu::driver
