// Graphs as data: making, asking, cloning, edges.

#include <algorithm>

#include "generated/cuda_abi.h"
#include "sim/cuda/graph/graph.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUgraphNode HandleOfNode(GraphNode* node) { return reinterpret_cast<CUgraphNode>(node); }

// The protocol of all list calls: without an array, the count; with one, as many as fit, the rest
// null, and the count of those written.
template <typename T>
CUresult List(const std::vector<T>& all, T* out, size_t* count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (!out) {
    *count = all.size();
    return CUDA_SUCCESS;
  }
  const size_t written = std::min(*count, all.size());
  std::copy_n(all.begin(), written, out);
  for (size_t i = written; i < *count; ++i) out[i] = T{};
  *count = written;
  return CUDA_SUCCESS;
}

CUresult Nodes(CUgraph handle, CUgraphNode* out, size_t* count, bool roots_only) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(handle, &graph)) return result;
  std::vector<CUgraphNode> all;
  for (const auto& node : graph->nodes) {
    if (!roots_only || node->dependencies.empty()) all.push_back(HandleOfNode(node.get()));
  }
  return List(all, out, count);
}

CUresult Edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
               size_t* count) {
  if (CUresult result = EnterCall()) return result;
  if (!count || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(handle, &graph)) return result;
  std::vector<CUgraphNode> sources;
  std::vector<CUgraphNode> targets;
  for (const auto& node : graph->nodes) {
    for (GraphNode* dependency : node->dependencies) {
      sources.push_back(HandleOfNode(dependency));
      targets.push_back(HandleOfNode(node.get()));
    }
  }
  size_t again = *count;
  if (CUresult result = List(sources, from, count)) return result;
  if (to) List(targets, to, &again);
  if (from && data) std::fill_n(data, *count, CUgraphEdgeData{});
  return CUDA_SUCCESS;
}

CUresult ChangeEdges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count,
                     bool add) {
  if (CUresult result = EnterCall()) return result;
  if (count > 0 && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(handle, &graph)) return result;
  if (!add && HasMemoryNodes(*graph)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    GraphNode* source;
    GraphNode* target;
    Graph* source_graph;
    Graph* target_graph;
    if (CUresult result = FindNode(from[i], &source, &source_graph)) return result;
    if (CUresult result = FindNode(to[i], &target, &target_graph)) return result;
    const bool mine = source_graph == graph.get() && target_graph == graph.get();
    if ((!mine && !Broken(Rule::kGraphNodesKeepTheirGraph)) || source == target) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto& list = target->dependencies;
    const bool there = std::find(list.begin(), list.end(), source) != list.end();
    if (there == add && Broken(Rule::kGraphEdgesAreOnce)) continue;
    if (there == add) return CUDA_ERROR_INVALID_VALUE;
    if (add) {
      list.push_back(source);
    } else {
      std::erase(list, source);
    }
  }
  return CUDA_SUCCESS;
}

CUresult Dependencies(CUgraphNode handle, CUgraphNode* out, size_t* count) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = FindNode(handle, &node)) return result;
  std::vector<CUgraphNode> all;
  for (GraphNode* dependency : node->dependencies) all.push_back(HandleOfNode(dependency));
  return List(all, out, count);
}

CUresult Dependents(CUgraphNode handle, CUgraphNode* out, size_t* count) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  Graph* graph;
  if (CUresult result = FindNode(handle, &node, &graph)) return result;
  std::vector<CUgraphNode> all;
  for (const auto& other : graph->nodes) {
    const auto& list = other->dependencies;
    if (std::find(list.begin(), list.end(), node) != list.end()) {
      all.push_back(HandleOfNode(other.get()));
    }
  }
  return List(all, out, count);
}

void Blank(CUgraphEdgeData* data, const size_t* count) {
  if (data) std::fill_n(data, *count, CUgraphEdgeData{});
}

}  // namespace

CUresult cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  if (CUresult result = EnterCall()) return result;
  if (!phGraph || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  auto graph = NewGraph();
  *phGraph = reinterpret_cast<CUgraph>(graph.get());
  D().graphs[graph.get()] = std::move(graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(hGraph, &graph)) return result;
  if (graph->owned_by_node) return CUDA_ERROR_INVALID_VALUE;
  ForgetNodes(graph.get());
  D().graphs.erase(hGraph);
  graph.reset();
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  if (CUresult result = EnterCall()) return result;
  if (!phGraphClone) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(originalGraph, &graph)) return result;
  if (HasMemoryNodes(*graph)) return CUDA_ERROR_INVALID_VALUE;
  auto copy = CloneGraph(*graph);
  *phGraphClone = reinterpret_cast<CUgraph>(copy.get());
  D().graphs[copy.get()] = std::move(copy);
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode* phNode, CUgraphNode hOriginalNode,
                                CUgraph hClonedGraph) {
  if (CUresult result = EnterCall()) return result;
  if (!phNode) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(hClonedGraph, &graph)) return result;
  for (const auto& node : graph->nodes) {
    if (node->cloned_from != hOriginalNode) continue;
    *phNode = HandleOfNode(node.get());
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  Graph* graph;
  if (CUresult result = FindNode(hNode, &node, &graph)) return result;
  if (HasMemoryNodes(*graph)) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& other : graph->nodes) std::erase(other->dependencies, node);
  D().nodes.erase(node);
  if (node->child) {
    ForgetNodes(node->child.get());
    D().graphs.erase(node->child.get());
  }
  std::erase_if(graph->nodes, [&](const auto& entry) { return entry.get() == node; });
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  if (CUresult result = EnterCall()) return result;
  if (!type) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = FindNode(hNode, &node)) return result;
  *type = node->type;
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  return Nodes(hGraph, nodes, numNodes, false);
}
CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes, size_t* numRootNodes) {
  return Nodes(hGraph, rootNodes, numRootNodes, true);
}
CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, size_t* numEdges) {
  return Edges(hGraph, from, to, nullptr, numEdges);
}
CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* edgeData, size_t* numEdges) {
  return Edges(hGraph, from, to, edgeData, numEdges);
}
CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                size_t numDependencies) {
  return ChangeEdges(hGraph, from, to, numDependencies, true);
}
CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t numDependencies) {
  return ChangeEdges(hGraph, from, to, numDependencies, true);
}
CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t numDependencies) {
  return ChangeEdges(hGraph, from, to, numDependencies, false);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode* from,
                                      const CUgraphNode* to, const CUgraphEdgeData*,
                                      size_t numDependencies) {
  return ChangeEdges(hGraph, from, to, numDependencies, false);
}
CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies,
                                    size_t* numDependencies) {
  return Dependencies(hNode, dependencies, numDependencies);
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies,
                                       CUgraphEdgeData* edgeData, size_t* numDependencies) {
  if (CUresult result = Dependencies(hNode, dependencies, numDependencies)) return result;
  if (dependencies) Blank(edgeData, numDependencies);
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                      size_t* numDependentNodes) {
  return Dependents(hNode, dependentNodes, numDependentNodes);
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                         CUgraphEdgeData* edgeData, size_t* numDependentNodes) {
  if (CUresult result = Dependents(hNode, dependentNodes, numDependentNodes)) return result;
  if (dependentNodes) Blank(edgeData, numDependentNodes);
  return CUDA_SUCCESS;
}
