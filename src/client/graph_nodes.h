#pragma once

// Visiting the nodes of a graph and of its child graphs.

#include <cstdint>

#include "client/guest.h"
#include "client/real.h"
#include "generated/cuda_abi.h"

namespace prorata::client {

inline constexpr uint32_t kMaxGraphLevels = 64;  // of child graphs

// Runs f(node, type) for every node, the child graphs' own instead of the nodes that hold them.
// False: some could not be visited. The caller is inside OwnCalls.
template <typename F>
bool ForEachNode(CUgraph graph, F&& f, uint32_t level = 0) {
  size_t count = 0;
  if (level == kMaxGraphLevels) return false;
  if (PRORATA_REAL(cuGraphGetNodes)(graph, nullptr, &count) != CUDA_SUCCESS) return false;
  if (count == 0) return true;
  const size_t bytes = count * sizeof(CUgraphNode);
  auto* nodes = static_cast<CUgraphNode*>(MapPages(bytes));
  if (nodes == nullptr) return false;
  bool all = PRORATA_REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS;
  for (size_t i = 0; all && i < count; ++i) {
    CUgraphNodeType type;
    CUgraph child;
    if (PRORATA_REAL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS) {
      all = false;
    } else if (type != CU_GRAPH_NODE_TYPE_GRAPH) {
      f(nodes[i], type);
    } else {
      all = PRORATA_REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS &&
            ForEachNode(child, f, level + 1);
    }
  }
  UnmapPages(nodes, bytes);
  return all;
}

}  // namespace prorata::client
