#include "simgpu/driver/graph.h"

#include <algorithm>
#include <map>

#include "simgpu/driver/pool.h"

namespace prorata::simgpu::driver {

Graph::~Graph() {
  // Runs under the Driver's lock, or as the process ends.
  for (uint64_t address : allocations) {
    if (Memory* memory = FindMemory(address); memory && memory->pool) {
      PoolFree(memory->pool, address, 0, 0);
    }
  }
}

CUgraphNodeType NodeTypeOf(const StreamOp& operation) {
  struct Visitor {
    CUgraphNodeType operator()(const EmptyCall&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const KernelCall&) const { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CopyCall&) const { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const FillCall&) const { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const HostCall&) const { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const RecordCall&) const { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    CUgraphNodeType operator()(const WaitCall&) const { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const ValueCall&) const { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const GraphAllocCall&) const { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
    CUgraphNodeType operator()(const GraphFreeCall&) const { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
  };
  return std::visit(Visitor{}, operation);
}

std::shared_ptr<Graph> NewGraph() { return std::make_shared<Graph>(); }

GraphNode* AddNode(Graph* graph, CUgraphNodeType type, StreamOp operation, Context* ctx,
                   std::vector<GraphNode*> dependencies) {
  auto node = std::make_unique<GraphNode>();
  node->type = type;
  node->operation = std::move(operation);
  node->ctx = ctx;
  node->dependencies = std::move(dependencies);
  node->order = graph->next_order++;
  if (const auto* alloc = std::get_if<GraphAllocCall>(&node->operation)) {
    graph->allocations.push_back(alloc->address);
  }
  D().nodes[node.get()] = graph;
  graph->nodes.push_back(std::move(node));
  return graph->nodes.back().get();
}

std::shared_ptr<Graph> CloneGraph(const Graph& graph) {
  auto copy = NewGraph();
  std::map<const GraphNode*, GraphNode*> copies;
  for (const auto& node : graph.nodes) {
    GraphNode* made = AddNode(copy.get(), node->type, node->operation, node->ctx, {});
    const uint64_t order = made->order;
    *made = *node;
    made->order = order;
    made->kernel_pointers.clear();
    made->cloned_from = reinterpret_cast<CUgraphNode>(node.get());
    if (node->child) made->child = CloneGraph(*node->child);
    copies[node.get()] = made;
  }
  for (const auto& node : copy->nodes) {
    for (GraphNode*& dependency : node->dependencies) dependency = copies[dependency];
  }
  copy->allocations.clear();  // the memory stays the original's
  return copy;
}

CUresult FindGraph(CUgraph handle, std::shared_ptr<Graph>* out) {
  auto found = D().graphs.find(handle);
  if (found == D().graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  *out = found->second;
  return CUDA_SUCCESS;
}

CUresult FindNode(CUgraphNode handle, GraphNode** out, Graph** graph) {
  auto found = D().nodes.find(handle);
  if (found == D().nodes.end()) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<GraphNode*>(handle);
  if (graph) *graph = found->second;
  return CUDA_SUCCESS;
}

void ForgetNodes(Graph* graph) {
  for (const auto& node : graph->nodes) {
    D().nodes.erase(node.get());
    if (node->child) ForgetNodes(node->child.get());
  }
}

}  // namespace prorata::simgpu::driver
