#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/cuda/state.h"
#include "sim/cuda/stream/operation.h"

namespace prorata::simgpu::driver {

struct GraphNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  StreamOp operation;
  Context* ctx = nullptr;  // where the operation runs
  std::vector<GraphNode*> dependencies;
  uint64_t order = 0;  // of creation
  // What the program gave, for the GetParams calls.
  CUDA_KERNEL_NODE_PARAMS kernel_params{};
  std::vector<void*> kernel_pointers;
  CUDA_MEMCPY3D copy_params{};
  CUDA_MEMSET_NODE_PARAMS fill_params{};
  std::map<int, CUkernelNodeAttrValue> attributes;
  std::shared_ptr<Graph> child;
  CUgraphNode cloned_from = nullptr;
  bool enabled = true;
};

struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;
  uint64_t next_order = 1;
  std::vector<uint64_t> allocations;  // addresses of its allocation nodes
  std::weak_ptr<GraphExec> instance;  // of a graph with memory nodes: the only one there may be
  bool owned_by_node = false;         // a child graph: cannot be destroyed by itself
  bool moved = false;                 // into its node: what it was made as is no graph by itself
  ~Graph();
};

// D().mutex held for all of these.
//
// Adds a node; dependencies must be nodes of the graph (checked by the caller).
GraphNode* AddNode(Graph* graph, CUgraphNodeType type, StreamOp operation, Context* ctx,
                   std::vector<GraphNode*> dependencies);
std::shared_ptr<Graph> NewGraph();
std::shared_ptr<Graph> CloneGraph(const Graph& graph);
// Makes `child` the graph of a child graph node: a clone, or the program's own, which moves.
void SetChild(GraphNode* node, std::shared_ptr<Graph> child);
CUresult FindGraph(CUgraph graph, std::shared_ptr<Graph>* out);
CUresult FindNode(CUgraphNode node, GraphNode** out, Graph** graph = nullptr);
// The nodes of a copy by the handles of the nodes that they are copies of, child graphs' included.
std::map<CUgraphNode, GraphNode*> NodesByOriginal(const Graph& copy);
// Graphs with memory nodes cannot be cloned, be cloned into a node, lose nodes or edges, or have
// two instances at a time (cuGraphAddMemAllocNode). They can be moved into a node; the graph that
// they are moved into then is one with memory nodes.
bool HasMemoryNodes(const Graph& graph);
// Whether it, or a graph of one of its nodes, has an instance that holds its memory nodes.
bool HasInstance(const Graph& graph);
// Whether `inner` is `graph`, or a graph of one of its nodes.
bool Holds(const Graph& graph, const Graph* inner);
// Takes the nodes out of the Driver's table; the handles are invalid from then on.
void ForgetNodes(Graph* graph);
// The node's type for an operation.
CUgraphNodeType NodeTypeOf(const StreamOp& operation);

}  // namespace prorata::simgpu::driver
