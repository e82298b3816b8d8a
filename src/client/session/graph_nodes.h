#pragma once

// Visiting the nodes of a graph and of its child graphs, however deep they lie: programs nest them
// without bound, and a node that is not visited is memory that nobody charges. So the way down is
// kept in pages of its own and not on the stack of the program's thread.

#include <cstdint>

#include "client/platform/os.h"
#include "client/session/driver_functions.h"
#include "generated/cuda_abi.h"

namespace prorata::client {

enum class Visited {
  kAll,
  kUnlisted,  // the driver did not name all nodes
  kNoMemory,  // to keep their handles in
};

// The nodes of one graph, and how far they are visited. Lies in pages, before the handles.
struct GraphLevel {
  GraphLevel* parent;
  size_t count;
  size_t next;
  size_t page_bytes;
  CUgraphNode* nodes() { return reinterpret_cast<CUgraphNode*>(this + 1); }

  static void Drop(GraphLevel** level) {
    GraphLevel* const gone = *level;
    *level = gone->parent;
    UnmapPages(gone, gone->page_bytes);
  }
};

// Puts the nodes of `graph` on top of *level; an empty graph needs no level.
inline Visited PushGraph(CUgraph graph, GraphLevel** level) {
  size_t count = 0;
  if (PRORATA_REAL(cuGraphGetNodes)(graph, nullptr, &count) != CUDA_SUCCESS) {
    return Visited::kUnlisted;
  }
  if (count == 0) return Visited::kAll;
  const size_t bytes = sizeof(GraphLevel) + count * sizeof(CUgraphNode);
  auto* made = static_cast<GraphLevel*>(MapPages(bytes));
  if (made == nullptr) return Visited::kNoMemory;
  *made = {*level, count, 0, bytes};
  *level = made;
  const CUresult result = PRORATA_REAL(cuGraphGetNodes)(graph, made->nodes(), &made->count);
  return result == CUDA_SUCCESS ? Visited::kAll : Visited::kUnlisted;
}

// Runs f(node, type) for every node, the child graphs' own instead of the nodes that hold them. The
// caller is inside OwnCalls.
template <typename F>
Visited ForEachNode(CUgraph graph, F&& f) {
  GraphLevel* level = nullptr;
  Visited visited = PushGraph(graph, &level);
  while (visited == Visited::kAll && level != nullptr) {
    if (level->next >= level->count) {
      GraphLevel::Drop(&level);
      continue;
    }
    const CUgraphNode node = level->nodes()[level->next++];
    CUgraphNodeType type;
    CUgraph child = nullptr;
    bool known = PRORATA_REAL(cuGraphNodeGetType)(node, &type) == CUDA_SUCCESS;
    const bool is_graph = known && type == CU_GRAPH_NODE_TYPE_GRAPH;
    if (is_graph) {
      known = PRORATA_REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS;
    }
    if (!known) {
      visited = Visited::kUnlisted;
    } else if (is_graph) {
      visited = PushGraph(child, &level);
    } else {
      f(node, type);
    }
  }
  while (level != nullptr) GraphLevel::Drop(&level);
  return visited;
}

}  // namespace prorata::client
