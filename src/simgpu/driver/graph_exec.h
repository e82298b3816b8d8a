#pragma once

#include "simgpu/driver/graph.h"

namespace prorata::simgpu::driver {

// Nodes in an order that respects the edges, of those possible the order of creation; child graphs
// in place of their node. False when the edges form a circle.
bool TopologicalOrder(const Graph& graph, std::vector<GraphNode*>* out);

// Makes an executable copy of the graph. D().mutex held.
CUresult Instantiate(const std::shared_ptr<Graph>& graph, Context* ctx, cuuint64_t flags,
                     CUgraphExec* out);
CUresult FindExec(CUgraphExec handle, std::shared_ptr<GraphExec>* out);
// The node of the executable graph that stands for a node of the original.
CUresult FindExecNode(GraphExec* exec, CUgraphNode node, GraphNode** out);

}  // namespace prorata::simgpu::driver
