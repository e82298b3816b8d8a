#pragma once

// The memory of graphs: allocation nodes, made by hand or by capturing cuMemAllocAsync.
//
// The driver keeps one pool of it per device, apart from the others, and takes memory for a graph
// when it is uploaded or launched; until it is trimmed the pool keeps it, also when the graph is
// gone. It is charged as every pool is (pools.h), by what is reserved. What it may grow by is known
// from the graph: when it is instantiated its nodes are looked through, in a process that has made
// an allocation node before, and only then. So a launch of a graph without allocations costs one
// load.
//
// A graph that has its memory does not grow the pool by being launched again, and nothing may be
// reserved for it, or a share would be full at half its size. It may have lost it to a trim:
//
//   launch   launching++; read the trims; if they are those of its last launch, reserve nothing;
//            driver; note the trims that were read; settle; launching--
//   trim     trims++; unless launching is 0, leave it for later; driver; settle
//
// Either the launch reads the new count, or the trim sees the launch. A trim that the program asks
// for cannot be left for later: it may let one launch take memory back before it is charged.

#include <atomic>
#include <cstdint>

#include "client/memory/memory.h"
#include "client/session/driver_functions.h"
#include "client/session/share.h"
#include "shm/limits_file.h"

namespace prorata::client {

// The process has made an allocation node.
void GraphAllocates();

// Instantiates `graph` by call(); `uploads`: memory is taken at once.
CUresult InstantiateGraph(CUgraphExec* exec, CUgraph graph, bool uploads, CUresult (*call)(void*),
                          void* data);
void GraphExecGone(CUgraphExec exec);

// How many executable graphs with allocations there are.
extern std::atomic<uint32_t> g_allocating_graphs;

struct GraphReservation {
  uint64_t pending[shm::kMaxDevices] = {};
  uint64_t trims[shm::kMaxDevices] = {};
  uint32_t devices = 0;  // bits: launching
};
// Before and after a launch or upload. False: refused, nothing to settle.
bool ReserveGraph(CUgraphExec exec, GraphReservation* reservation);
void SettleGraph(CUgraphExec exec, const GraphReservation& reservation, bool success);

// A launch into a captured stream runs nothing, so it takes nothing.
template <typename Call>
inline CUresult WithGraphMemory(CUgraphExec exec, CUstream stream, bool per_thread, Call&& call) {
  if (g_allocating_graphs.load(std::memory_order_relaxed) == 0) [[likely]]
    return call();
  if (!Governed() || IsCaptured(stream, per_thread)) return call();
  const InFlightEpoch moving;
  GraphReservation reservation;
  if (!ReserveGraph(exec, &reservation)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  SettleGraph(exec, reservation, result == CUDA_SUCCESS);
  return result;
}

// cuDeviceGraphMemTrim.
CUresult TrimGraphs(CUdevice ordinal);

}  // namespace prorata::client
