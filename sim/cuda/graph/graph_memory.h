#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/cuda/graph/graph.h"

// Memory of allocation nodes ("Graph Memory Nodes", CUDA C++ programming guide).
//
// An allocation has its address from the making of its node, and memory behind it from the first
// launch (or upload) on. A launch makes it live, unless the same graph frees it; it stays live
// until it is freed by a stream, by another graph, or by the next launch of a graph that frees by
// itself. When its graph is gone and it is not live, its memory is kept for other graphs of the
// process until cuDeviceGraphMemTrim. Where the driver lets graphs that do not run at once share
// memory, each allocation here has its own.

namespace prorata::simgpu::driver {

struct GraphExec;

struct GraphAllocation {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  int device = 0;
  Context* ctx = nullptr;  // whose slabs it uses
  uint64_t mapped_bytes = 0;
  std::vector<Extent> extents;      // empty: nothing behind it yet
  const Graph* owner = nullptr;     // null: gone
  const Graph* freed_by = nullptr;  // which has a free node for it
  bool live = false;
  // The last work that may use it.
  Handle last_stream = 0;
  uint64_t last_sequence = 0;
};

struct GraphMemory {
  std::map<uint64_t, GraphAllocation> allocations;  // by address
  std::map<Context*, std::vector<Extent>> kept;     // of nobody, until trimmed
  uint64_t used_high[kMaxDevices] = {};
  uint64_t reserved_high[kMaxDevices] = {};
};

// All need D().mutex.

// Addresses for an allocation; params->dptr gets them. CUDA_ERROR_OUT_OF_MEMORY when there are
// none.
CUresult ReserveGraphMemory(Context* ctx, CUDA_MEM_ALLOC_NODE_PARAMS* params);
// Null when `address` is not the beginning of one.
GraphAllocation* FindGraphMemory(uint64_t address);
// Whether `graph` may get a free node for it; CUDA_ERROR_INVALID_VALUE when another node frees it.
CUresult CheckFreeNode(const Graph* graph, uint64_t address);
// The graph goes.
void DisownGraphMemory(const Graph* graph, const std::vector<uint64_t>& addresses);

// Puts memory behind the allocations of a graph that is to be launched, and checks that none of
// them is live and that what it frees is: CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY.
CUresult AttachGraphMemory(const GraphExec& exec, bool launch);
// It was launched: what it allocates is live, what it frees is not, when that entry is reached.
void GraphMemoryLaunched(const GraphExec& exec, Handle stream, uint64_t sequence);
// Freed outside of graphs. CUDA_ERROR_INVALID_VALUE when it is not live.
CUresult FreeGraphMemory(GraphAllocation* allocation, Handle stream, uint64_t sequence);

// Bytes behind allocations, and those with what is kept.
uint64_t GraphMemoryUsed(int device);
uint64_t GraphMemoryReserved(int device);
// Gives back what no graph uses: what is kept, and what is behind allocations that are neither live
// nor used by work that is not done.
void TrimGraphMemory(int device);
// The context goes, and its slabs with it.
void DropGraphMemory(Context* ctx);

}  // namespace prorata::simgpu::driver
