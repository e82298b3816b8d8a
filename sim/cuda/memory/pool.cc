#include "sim/cuda/memory/pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "sim/cuda/context/context.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/memory/memory.h"

namespace prorata::simgpu::driver {
namespace {

constexpr uint64_t kBlockAlignment = 512;

uint64_t RoundUp(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

bool ReachedByDevice(const Pool::Free& piece) {
  if (piece.stream == 0) return true;
  const Code code = D().machine->QueryStream(piece.stream, piece.sequence);
  return code == Code::kOk || code == Code::kInvalidHandle;  // the latter: stream destroyed
}

bool ComesAfter(const Stream& stream, const Pool::Free& piece) {
  auto known = stream.after.find(piece.stream);
  return known != stream.after.end() && known->second >= piece.sequence;
}

// Whether a free piece may be used by work submitted to `stream` from now on.
bool Reusable(const Pool& pool, const Pool::Free& piece, const StreamRef& stream) {
  if (Broken(Rule::kReuseIsOrdered)) return true;
  if (piece.stream == 0 || (stream && piece.stream == stream->handle)) return true;
  const bool follows = pool.reuse_event || Broken(Rule::kEventReuseIsAsked);
  if (follows && stream && ComesAfter(*stream, piece)) return true;
  const bool opportunistic = pool.reuse_opportunistic || Broken(Rule::kOpportunismIsAsked);
  return opportunistic && ReachedByDevice(piece);
}

// Joins two neighbours that wait for the same stream, or for nothing any more.
bool Join(Pool::Chunk* chunk, std::map<uint64_t, Pool::Free>::iterator first) {
  auto second = std::next(first);
  if (second == chunk->free.end() || first->first + first->second.bytes != second->first ||
      first->second.stream != second->second.stream) {
    return false;
  }
  first->second.bytes += second->second.bytes;
  first->second.sequence = std::max(first->second.sequence, second->second.sequence);
  chunk->free.erase(second);
  return true;
}

void MergeFree(Pool::Chunk* chunk, uint64_t address) {
  auto piece = chunk->free.find(address);
  Join(chunk, piece);
  if (piece != chunk->free.begin()) Join(chunk, std::prev(piece));
}

// Frees that the device has reached stop belonging to a stream.
void Settle(Pool::Chunk* chunk) {
  std::vector<uint64_t> settled;
  for (auto& [address, piece] : chunk->free) {
    if (piece.stream == 0 || !ReachedByDevice(piece)) continue;
    piece.stream = 0;
    settled.push_back(address);
  }
  for (uint64_t address : settled) {
    if (chunk->free.contains(address)) MergeFree(chunk, address);
  }
}

bool WhollyFree(const Pool::Chunk& chunk) {
  return chunk.free.size() == 1 && chunk.free.begin()->second.bytes == chunk.bytes &&
         chunk.free.begin()->second.stream == 0;
}

// The first bytes of the piece at `at`.
uint64_t TakeFromPiece(Pool::Chunk* chunk, uint64_t at, uint64_t bytes) {
  Pool::Free rest = chunk->free[at];
  rest.bytes -= bytes;
  chunk->free.erase(at);
  if (rest.bytes > 0) chunk->free[at + bytes] = rest;
  return at;
}

bool TakeFromChunk(const Pool& pool, Pool::Chunk* chunk, const StreamRef& stream, uint64_t bytes,
                   uint64_t* address) {
  for (const auto& [at, piece] : chunk->free) {
    if (piece.bytes < bytes || !Reusable(pool, piece, stream)) continue;
    *address = TakeFromPiece(chunk, at, bytes);
    return true;
  }
  return false;
}

// Makes everything submitted to the stream from now on wait for the other's last entry so far.
bool OrderAfter(const StreamRef& stream, Handle other) {
  auto event = D().machine->CreateEvent(stream->ctx->handle);
  if (!event) return false;
  const bool done = D().machine->Submit(other, Work::Record(*event)).has_value() &&
                    D().machine->Submit(stream->handle, Work::WaitFor(*event)).has_value();
  D().machine->DestroyEvent(*event);  // the wait keeps the record that it saw
  return done;
}

// The first piece that is large enough, whatever it is free behind: the stream waits for that.
bool TakeAndWait(Pool* pool, const StreamRef& stream, uint64_t bytes, uint64_t* address) {
  for (auto& [start, chunk] : pool->chunks) {
    for (const auto& [at, piece] : chunk.free) {
      if (piece.bytes < bytes || !OrderAfter(stream, piece.stream)) continue;
      stream->after[piece.stream] = std::max(stream->after[piece.stream], piece.sequence);
      *address = TakeFromPiece(&chunk, at, bytes);
      return true;
    }
  }
  return false;
}

CUresult AddChunk(Pool* pool, Context* ctx, uint64_t bytes, Pool::Chunk** out) {
  const uint64_t chunk_bytes = RoundUp(bytes, D().config(pool->device).pool_chunk_bytes);
  if (pool->max_bytes != 0 && pool->reserved + chunk_bytes > pool->max_bytes) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // The primary context outlives others, so pool memory is best held by it; and it is memory of the
  // pool's device, whatever device the stream is of.
  Context* holder = ctx->device == pool->device && !D().device(pool->device).primary.alive
                        ? ctx
                        : HolderFor(pool->device);
  if (holder == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  uint64_t address;
  Code code = holder->heap.AllocateSlabs(chunk_bytes, &address);
  if (code == Code::kOutOfMemory) {
    TrimPools(pool->device, true);
    code = holder->heap.AllocateSlabs(chunk_bytes, &address);
  }
  if (code != Code::kOk) return FromCode(code);
  Pool::Chunk& chunk = pool->chunks[address];
  chunk.bytes = chunk_bytes;
  chunk.ctx = holder;
  chunk.free[address] = {chunk_bytes, 0, 0};
  pool->reserved += chunk_bytes;
  pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  *out = &chunk;
  return CUDA_SUCCESS;
}

}  // namespace

CUmemoryPool HandleOf(Pool* pool) { return reinterpret_cast<CUmemoryPool>(pool); }

CUresult FindPool(CUmemoryPool handle, Pool** out) {
  auto* pool = reinterpret_cast<Pool*>(handle);
  if (!D().pools.contains(pool) || pool->destroyed) return CUDA_ERROR_INVALID_VALUE;
  *out = pool;
  return CUDA_SUCCESS;
}

Pool* NewPool(int device) {
  auto* pool = new Pool;
  pool->device = device;
  D().pools.insert(pool);
  return pool;
}

Pool* DefaultPool(int device) {
  Device& d = D().device(device);
  if (!d.default_pool) {
    d.default_pool = NewPool(device);
    d.default_pool->is_default = true;
  }
  if (!d.current_pool) d.current_pool = d.default_pool;
  return d.default_pool;
}

CUresult PoolAllocate(Pool* pool, Context* ctx, const StreamRef& stream, uint64_t bytes,
                      uint64_t* address) {
  if (RefusesAllocation(pool->device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t rounded = RoundUp(bytes, kBlockAlignment);
  bool found = false;
  for (auto& [at, chunk] : pool->chunks) {
    if (TakeFromChunk(*pool, &chunk, stream, rounded, address)) {
      found = true;
      break;
    }
  }
  for (auto chunk = pool->chunks.begin(); !found && chunk != pool->chunks.end(); ++chunk) {
    if (!pool->reuse_opportunistic) break;
    Settle(&chunk->second);  // pieces that can be joined by now
    found = TakeFromChunk(*pool, &chunk->second, stream, rounded, address);
  }
  if (!found) {
    Pool::Chunk* chunk = nullptr;
    const CUresult result = AddChunk(pool, ctx, rounded, &chunk);
    if (result == CUDA_SUCCESS) {
      TakeFromChunk(*pool, chunk, stream, rounded, address);
    } else if (result != CUDA_ERROR_OUT_OF_MEMORY || !pool->reuse_internal || !stream ||
               !TakeAndWait(pool, stream, rounded, address)) {
      return result;
    }
  }
  pool->used += rounded;
  pool->used_high = std::max(pool->used_high, pool->used);
  Memory memory;
  memory.kind = Memory::Kind::kPool;
  memory.base = *address;
  memory.bytes = bytes;
  memory.ctx = ctx->device == pool->device ? ctx : HolderFor(pool->device);
  memory.device = pool->device;
  memory.pool = pool;
  AddMemory(memory);
  return CUDA_SUCCESS;
}

uint64_t FreedBehindWork(const Pool& pool) {
  uint64_t bytes = 0;
  for (const auto& [at, chunk] : pool.chunks) {
    for (const auto& [address, piece] : chunk.free) {
      if (!ReachedByDevice(piece)) bytes += piece.bytes;
    }
  }
  return bytes;
}

void PoolFree(Pool* pool, uint64_t address, Handle stream, uint64_t sequence) {
  auto record = D().memory.find(address);
  if (record == D().memory.end()) return;
  if (pool->imported) return DropPoolImport(pool, address);
  if (record->second.name.handle != 0) D().machine->WithdrawExport(record->second.name);
  const uint64_t rounded = RoundUp(record->second.bytes, kBlockAlignment);
  D().memory.erase(record);
  pool->used -= rounded;
  auto chunk = std::prev(pool->chunks.upper_bound(address));
  chunk->second.free[address] = {rounded, stream, sequence};
  MergeFree(&chunk->second, address);
  if (pool->destroyed && pool->used == 0) {
    PoolTrim(pool, 0);
    if (pool->chunks.empty()) DeletePool(pool);
  }
}

void DropPoolImport(Pool* pool, uint64_t address) {
  const auto found = pool->imports.find(address);
  munmap(reinterpret_cast<void*>(found->second.mapping), found->second.mapped_bytes);
  D().machine->DropShare(found->second.share);
  D().memory.erase(address);
  pool->imports.erase(found);
  if (pool->destroyed && pool->imports.empty()) DeletePool(pool);
}

void DeletePool(Pool* pool) {
  if (pool->descriptor >= 0) {
    D().machine->WithdrawExport(pool->name);
    close(pool->descriptor);
  }
  D().pools.erase(pool);
  delete pool;
}

void PoolTrim(Pool* pool, uint64_t keep) {
  for (auto chunk = pool->chunks.begin(); chunk != pool->chunks.end();) {
    if (pool->reserved <= keep) return;
    Settle(&chunk->second);
    const bool fits = pool->reserved - chunk->second.bytes >= keep;
    if (!WhollyFree(chunk->second) || !fits) {
      ++chunk;
      continue;
    }
    pool->reserved -= chunk->second.bytes;
    chunk->second.ctx->heap.Free(chunk->first);
    chunk = pool->chunks.erase(chunk);
  }
}

void TrimPools(int device, bool ignore_thresholds) {
  for (Pool* pool : D().pools) {
    if (pool->device != device || pool->chunks.empty()) continue;
    const bool all = ignore_thresholds || Broken(Rule::kPoolsKeepThreshold);
    PoolTrim(pool, all ? 0 : pool->release_threshold);
  }
}

void PassPoolChunks(Context* ctx, Context* heir) {
  for (Pool* pool : D().pools) {
    for (auto& [address, chunk] : pool->chunks) {
      if (chunk.ctx == ctx && ctx->heap.Move(address, &heir->heap)) chunk.ctx = heir;
    }
  }
  for (auto& [address, memory] : D().memory) {
    if (memory.kind == Memory::Kind::kPool && memory.ctx == ctx) memory.ctx = heir;
  }
}

void DropPoolChunks(Context* ctx) {
  const std::set<Pool*> pools = D().pools;
  for (Pool* pool : pools) {
    std::vector<uint64_t> imported;
    for (const auto& [address, import] : pool->imports) {
      if (import.ctx == ctx) imported.push_back(address);
    }
    for (const uint64_t address : imported) DropPoolImport(pool, address);
    if (!D().pools.contains(pool)) continue;
    for (auto chunk = pool->chunks.begin(); chunk != pool->chunks.end();) {
      if (chunk->second.ctx != ctx) {
        ++chunk;
        continue;
      }
      uint64_t used = chunk->second.bytes;
      for (const auto& [at, piece] : chunk->second.free) used -= piece.bytes;
      pool->used -= used;
      pool->reserved -= chunk->second.bytes;
      // Blocks of the chunk that other contexts asked for go with it.
      auto& memory = D().memory;
      memory.erase(memory.lower_bound(chunk->first),
                   memory.lower_bound(chunk->first + chunk->second.bytes));
      chunk = pool->chunks.erase(chunk);
    }
  }
}

void AfterSynchronize(Context* ctx) {
  std::lock_guard lock(D().mutex);
  for (Pool* pool : D().pools) {
    // Without opportunism this is when completed frees become anybody's.
    if (pool->device != ctx->device || pool->reuse_opportunistic) continue;
    for (auto& [start, chunk] : pool->chunks) Settle(&chunk);
  }
  if (!Broken(Rule::kPoolsRelease)) TrimPools(ctx->device, false);
}

}  // namespace prorata::simgpu::driver
