#pragma once

#include <memory>

#include "sim/cuda/graph/graph.h"

namespace prorata::simgpu::driver {

// Everything that makes a node, checked: what it does, and what the program said.
struct Draft {
  StreamOp operation;
  Context* ctx = nullptr;
  CUDA_KERNEL_NODE_PARAMS kernel_params{};
  CUDA_MEMCPY3D copy_params{};
  CUDA_MEMSET_NODE_PARAMS fill_params{};
  std::shared_ptr<Graph> child;
  bool moves = false;  // the child is not a clone
};

// The child graph of a node. D().mutex held.
CUresult DraftChild(CUgraph handle, CUgraphChildGraphNodeOwnership ownership, Draft* draft);
// Adds a node made of a draft. D().mutex held.
CUresult PlaceNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                   Draft draft);
// The node of a graph, or with `exec` of an executable one, if it is of the type. D().mutex held.
CUresult FindNodeOfType(CUgraphExec exec, CUgraphNode handle, CUgraphNodeType type,
                        GraphNode** out);

}  // namespace prorata::simgpu::driver
