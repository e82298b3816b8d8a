#pragma once

// The devices that executable graphs run on: a launch of one passes the gate of each, and keeps
// each until it is done. Found when a graph is made, in a process with contexts on several devices,
// and only there. It does not change later: the driver lets no update move a node to another
// context (cuGraphExecUpdate, cuGraphExec*SetParams).

#include <atomic>
#include <cstdint>

#include "generated/cuda_abi.h"

namespace prorata::client {

// `exec` was made of `graph`.
void ExecMade(CUgraphExec exec, CUgraph graph);
void ExecGone(CUgraphExec exec);

// Executable graphs whose devices are known.
extern std::atomic<uint32_t> g_placed_graphs;
uint32_t FindDevicesOfExec(CUgraphExec exec);

// The devices of its nodes, as bits; 0: none but the one it is launched on.
inline uint32_t DevicesOfExec(CUgraphExec exec) {
  if (g_placed_graphs.load(std::memory_order_relaxed) == 0) [[likely]]
    return 0;
  return FindDevicesOfExec(exec);
}

}  // namespace prorata::client
