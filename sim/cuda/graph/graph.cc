#include "sim/cuda/graph/graph.h"

#include <algorithm>
#include <map>

#include "sim/cuda/graph/graph_memory.h"

namespace prorata::simgpu::driver {

// Runs under the Driver's lock, or as the process ends.
Graph::~Graph() { DisownGraphMemory(this, allocations); }

CUgraphNodeType NodeTypeOf(const StreamOp& operation) {
  struct Visitor {
    CUgraphNodeType operator()(const EmptyCall&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const KernelCall&) const { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CopyCall&) const { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const FillCall&) const { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const HostCall&) const { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const RecordCall&) const { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    CUgraphNodeType operator()(const WaitCall&) const { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const BatchCall&) const { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const GraphAllocCall&) const { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
    CUgraphNodeType operator()(const TilesCall&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
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
    if (GraphAllocation* allocation = FindGraphMemory(alloc->address)) allocation->owner = graph;
  } else if (const auto* free = std::get_if<GraphFreeCall>(&node->operation)) {
    GraphAllocation* allocation = FindGraphMemory(free->address);
    if (allocation) allocation->freed_by = graph;
  }
  D().nodes[node.get()] = graph;
  graph->nodes.push_back(std::move(node));
  return graph->nodes.back().get();
}

std::shared_ptr<Graph> CloneGraph(const Graph& graph) {
  auto copy = NewGraph();
  std::map<const GraphNode*, GraphNode*> copies;
  for (const auto& node : graph.nodes) {
    // Without its operation: what that allocates and frees stays the original's.
    GraphNode* made = AddNode(copy.get(), node->type, EmptyCall{}, node->ctx, {});
    const uint64_t order = made->order;
    *made = *node;
    made->order = order;
    made->kernel_pointers.clear();
    made->cloned_from = reinterpret_cast<CUgraphNode>(node.get());
    if (node->child) SetChild(made, CloneGraph(*node->child));
    copies[node.get()] = made;
  }
  for (const auto& node : copy->nodes) {
    for (GraphNode*& dependency : node->dependencies) dependency = copies[dependency];
  }
  return copy;
}

void SetChild(GraphNode* node, std::shared_ptr<Graph> child) {
  child->owned_by_node = true;
  D().graphs[child.get()] = child;
  node->child = std::move(child);
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

std::map<CUgraphNode, GraphNode*> NodesByOriginal(const Graph& copy) {
  std::map<CUgraphNode, GraphNode*> out;
  for (const auto& node : copy.nodes) {
    out[node->cloned_from] = node.get();
    if (node->child) out.merge(NodesByOriginal(*node->child));
  }
  return out;
}

bool HasMemoryNodes(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
           node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
           (node->child && HasMemoryNodes(*node->child));
  });
}

bool HasInstance(const Graph& graph) {
  return !graph.instance.expired() ||
         std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const auto& node) { return node->child && HasInstance(*node->child); });
}

bool Holds(const Graph& graph, const Graph* inner) {
  return &graph == inner ||
         std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&](const auto& node) { return node->child && Holds(*node->child, inner); });
}

void ForgetNodes(Graph* graph) {
  for (const auto& node : graph->nodes) {
    D().nodes.erase(node.get());
    if (!node->child) continue;
    ForgetNodes(node->child.get());
    D().graphs.erase(node->child.get());
  }
}

}  // namespace prorata::simgpu::driver
