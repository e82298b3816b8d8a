#include "sim/cuda/graph/graph_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "sim/cuda/graph/graph_exec.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/pool.h"

namespace prorata::simgpu::driver {
namespace {

GraphMemory& M() { return D().graph_memory; }
Arena& ArenaOf(const GraphAllocation& allocation) { return *D().device(allocation.device).arena; }

uint64_t Bytes(const std::vector<Extent>& extents) {
  uint64_t sum = 0;
  for (const Extent& extent : extents) sum += extent.length_bytes;
  return sum;
}

bool Done(const GraphAllocation& allocation) {
  if (allocation.last_stream == 0) return true;
  const Code code = D().machine->QueryStream(allocation.last_stream, allocation.last_sequence);
  return code != Code::kNotReady;
}

// Addresses with nothing behind them can be touched, so that a program that uses an allocation
// before its first launch harms itself only.
void MapNothing(uint64_t address, uint64_t bytes) {
  [[maybe_unused]] void* mapped =
      mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void Keep(Context* ctx, std::vector<Extent> extents) {
  auto& kept = M().kept[ctx];
  kept.insert(kept.end(), extents.begin(), extents.end());
}

void Detach(uint64_t address, GraphAllocation* allocation) {
  if (allocation->extents.empty()) return;
  MapNothing(address, allocation->mapped_bytes);
  Keep(allocation->ctx, std::exchange(allocation->extents, {}));
}

// Allocations that nothing can use any more go.
void Collect() {
  for (auto entry = M().allocations.begin(); entry != M().allocations.end();) {
    auto& [address, allocation] = *entry;
    if (allocation.owner || allocation.live || !Done(allocation)) {
      ++entry;
      continue;
    }
    Detach(address, &allocation);
    ArenaOf(allocation).Unmap(address, allocation.mapped_bytes);
    ArenaOf(allocation).Give(address, allocation.mapped_bytes);
    D().memory.erase(address);
    entry = M().allocations.erase(entry);
  }
}

// Slabs from what is kept, as far as that goes.
std::vector<Extent> TakeKept(Context* ctx, uint64_t bytes) {
  std::vector<Extent> out;
  auto& kept = M().kept[ctx];
  while (bytes > 0 && !kept.empty()) {
    Extent& last = kept.back();
    const uint64_t here = std::min(bytes, last.length_bytes);
    last.length_bytes -= here;
    out.push_back({last.offset_bytes + last.length_bytes, here});
    if (last.length_bytes == 0) kept.pop_back();
    bytes -= here;
  }
  return out;
}

CUresult Attach(uint64_t address, GraphAllocation* allocation) {
  if (!allocation->extents.empty()) return CUDA_SUCCESS;
  if (!allocation->ctx->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  std::vector<Extent> extents = TakeKept(allocation->ctx, allocation->mapped_bytes);
  if (const uint64_t missing = allocation->mapped_bytes - Bytes(extents); missing > 0) {
    const Handle ctx = allocation->ctx->handle;
    auto more = D().machine->AllocSlabs(ctx, missing);
    if (!more && more.error() == Code::kOutOfMemory) {
      TrimPools(allocation->device, true);
      TrimGraphMemory(allocation->device);
      more = D().machine->AllocSlabs(ctx, missing);
    }
    if (!more) {
      Keep(allocation->ctx, std::move(extents));
      return FromCode(more.error());
    }
    extents.insert(extents.end(), more->begin(), more->end());
  }
  if (!ArenaOf(*allocation).Map(address, extents)) {
    MapNothing(address, allocation->mapped_bytes);
    Keep(allocation->ctx, std::move(extents));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  allocation->extents = std::move(extents);
  return CUDA_SUCCESS;
}

// What a graph allocates and frees, child graphs included.
struct Uses {
  std::vector<uint64_t> allocates;
  std::vector<uint64_t> frees;
};

void AddUses(const Graph& graph, Uses* uses) {
  for (const auto& node : graph.nodes) {
    if (const auto* alloc = std::get_if<GraphAllocCall>(&node->operation)) {
      uses->allocates.push_back(alloc->address);
    } else if (const auto* free = std::get_if<GraphFreeCall>(&node->operation)) {
      uses->frees.push_back(free->address);
    }
    if (node->child) AddUses(*node->child, uses);
  }
}

bool Contains(const std::vector<uint64_t>& list, uint64_t address) {
  return std::find(list.begin(), list.end(), address) != list.end();
}

void NoteHigh(int device) {
  M().used_high[device] = std::max(M().used_high[device], GraphMemoryUsed(device));
  M().reserved_high[device] = std::max(M().reserved_high[device], GraphMemoryReserved(device));
}

}  // namespace

CUresult ReserveGraphMemory(Context* ctx, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  const int device = params->poolProps.location.id;
  if (device < 0 || device >= static_cast<int>(D().devices.size())) return CUDA_ERROR_INVALID_VALUE;
  // The primary context outlives others.
  Context* const primary = &D().device(device).primary;
  if (primary->alive) ctx = primary;
  if (ctx->device != device) return CUDA_ERROR_INVALID_VALUE;
  Collect();
  Arena& arena = *D().device(device).arena;
  const uint64_t slab = arena.slab_bytes();
  const uint64_t mapped = (params->bytesize + slab - 1) / slab * slab;
  const uint64_t address = arena.Take(mapped);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  MapNothing(address, mapped);
  params->dptr = address;
  GraphAllocation allocation;
  allocation.params = *params;
  allocation.device = device;
  allocation.ctx = ctx;
  allocation.mapped_bytes = mapped;
  M().allocations[address] = std::move(allocation);
  Memory memory;
  memory.kind = Memory::Kind::kPool;
  memory.base = address;
  memory.bytes = params->bytesize;
  memory.ctx = ctx;
  memory.device = device;
  AddMemory(memory);
  return Broken(Rule::kGraphMemoryAtLaunch) ? Attach(address, FindGraphMemory(address))
                                            : CUDA_SUCCESS;
}

GraphAllocation* FindGraphMemory(uint64_t address) {
  auto found = M().allocations.find(address);
  return found == M().allocations.end() ? nullptr : &found->second;
}

CUresult CheckFreeNode(const Graph* graph, uint64_t address) {
  const GraphAllocation* allocation = FindGraphMemory(address);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  if (!allocation->freed_by) return CUDA_SUCCESS;
  const bool by_owner = allocation->freed_by == allocation->owner;
  return by_owner || graph == allocation->owner ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

void DisownGraphMemory(const Graph* graph, const std::vector<uint64_t>& addresses) {
  for (uint64_t address : addresses) {
    GraphAllocation* allocation = FindGraphMemory(address);
    if (allocation && allocation->owner == graph) allocation->owner = nullptr;
  }
  for (auto& [address, allocation] : M().allocations) {
    if (allocation.freed_by == graph) allocation.freed_by = nullptr;
  }
  Collect();
}

CUresult AttachGraphMemory(const GraphExec& exec, bool launch) {
  Uses uses;
  AddUses(*exec.graph, &uses);
  if (uses.allocates.empty() && uses.frees.empty()) return CUDA_SUCCESS;
  Collect();
  const bool frees_itself = exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  for (uint64_t address : uses.allocates) {
    GraphAllocation* allocation = FindGraphMemory(address);
    if (!allocation) return CUDA_ERROR_INVALID_VALUE;
    const bool may_be_live = frees_itself || Broken(Rule::kGraphMemoryLiveOnce);
    if (launch && allocation->live && !may_be_live) return CUDA_ERROR_INVALID_VALUE;
  }
  for (uint64_t address : uses.frees) {
    const GraphAllocation* allocation = FindGraphMemory(address);
    if (Contains(uses.allocates, address)) continue;
    if (!allocation || (launch && !allocation->live)) return CUDA_ERROR_INVALID_VALUE;
  }
  for (uint64_t address : uses.allocates) {
    GraphAllocation* allocation = FindGraphMemory(address);
    if (CUresult result = Attach(address, allocation)) return result;
    NoteHigh(allocation->device);
  }
  return CUDA_SUCCESS;
}

void GraphMemoryLaunched(const GraphExec& exec, Handle stream, uint64_t sequence) {
  Uses uses;
  AddUses(*exec.graph, &uses);
  const auto mark = [&](uint64_t address, bool live) {
    GraphAllocation* allocation = FindGraphMemory(address);
    if (!allocation) return;
    allocation->live = live;
    allocation->last_stream = stream;
    allocation->last_sequence = sequence;
  };
  for (uint64_t address : uses.allocates) mark(address, true);
  for (uint64_t address : uses.frees) mark(address, false);
}

CUresult FreeGraphMemory(GraphAllocation* allocation, Handle stream, uint64_t sequence) {
  if (!allocation->live) return CUDA_ERROR_INVALID_VALUE;
  allocation->live = false;
  allocation->last_stream = stream;
  allocation->last_sequence = sequence;
  Collect();
  return CUDA_SUCCESS;
}

uint64_t GraphMemoryUsed(int device) {
  uint64_t sum = 0;
  for (const auto& [address, allocation] : M().allocations) {
    if (allocation.device == device) sum += Bytes(allocation.extents);
  }
  return sum;
}

uint64_t GraphMemoryReserved(int device) {
  uint64_t sum = GraphMemoryUsed(device);
  for (const auto& [ctx, extents] : M().kept) {
    if (ctx->device == device) sum += Bytes(extents);
  }
  return sum;
}

void TrimGraphMemory(int device) {
  Collect();
  for (auto& [address, allocation] : M().allocations) {
    if (allocation.device == device && !allocation.live && Done(allocation)) {
      Detach(address, &allocation);
    }
  }
  for (auto& [ctx, extents] : M().kept) {
    if (ctx->device != device || extents.empty()) continue;
    D().machine->FreeSlabs(ctx->handle, std::exchange(extents, {}));
  }
}

void DropGraphMemory(Context* ctx) {
  M().kept.erase(ctx);
  for (auto entry = M().allocations.begin(); entry != M().allocations.end();) {
    auto& [address, allocation] = *entry;
    if (allocation.ctx != ctx) {
      ++entry;
      continue;
    }
    ArenaOf(allocation).Unmap(address, allocation.mapped_bytes);
    ArenaOf(allocation).Give(address, allocation.mapped_bytes);
    D().memory.erase(address);
    entry = M().allocations.erase(entry);
  }
}

}  // namespace prorata::simgpu::driver
