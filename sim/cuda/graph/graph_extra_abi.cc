// Graphs as text, and new parameters for the child graphs of executable ones.

#include <cstdio>
#include <map>
#include <string>

#include "generated/cuda_abi.h"
#include "sim/cuda/graph/graph_draft.h"
#include "sim/cuda/graph/graph_exec.h"
#include "sim/cuda/module/function.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

const char* NameOfType(CUgraphNodeType type) {
  constexpr const char* kNames[] = {"KERNEL",       "MEMCPY",     "MEMSET",     "HOST",
                                    "GRAPH",        "EMPTY",      "WAIT_EVENT", "EVENT_RECORD",
                                    "SEMS_SIGNAL",  "SEMS_WAIT",  "MEM_ALLOC",  "MEM_FREE",
                                    "BATCH_MEM_OP", "CONDITIONAL"};
  return static_cast<size_t>(type) < std::size(kNames) ? kNames[type] : "UNKNOWN";
}

// A node's name says where it is: graph_0_node_2 is the third node of the outermost graph.
void Print(const Graph& graph, int number, int* next_number, std::string* out) {
  const auto name = [&](size_t place) {
    return "graph_" + std::to_string(number) + "_node_" + std::to_string(place);
  };
  *out += "subgraph cluster_" + std::to_string(number) + " {\n";
  std::map<const GraphNode*, size_t> places;
  for (size_t i = 0; i < graph.nodes.size(); ++i) places[graph.nodes[i].get()] = i;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& node = *graph.nodes[i];
    *out += "\"" + name(i) + "\" [label=\"" + std::to_string(i) + "\\n" + NameOfType(node.type);
    if (const auto* kernel = std::get_if<KernelCall>(&node.operation)) {
      *out += "\\n" + kernel->function->name;
    }
    *out += "\"];\n";
    for (const GraphNode* dependency : node.dependencies) {
      *out += "\"" + name(places[dependency]) + "\" -> \"" + name(i) + "\";\n";
    }
    if (node.child) Print(*node.child, ++*next_number, next_number, out);
  }
  *out += "}\n";
}

// Operations of `from` for the nodes of `to`; the order of creation says which node is which. False
// when they are not alike in everything else.
bool Alike(const Graph& to, const Graph& from) {
  if (to.nodes.size() != from.nodes.size()) return false;
  std::map<const GraphNode*, size_t> places_to;
  std::map<const GraphNode*, size_t> places_from;
  for (size_t i = 0; i < to.nodes.size(); ++i) {
    places_to[to.nodes[i].get()] = places_from[from.nodes[i].get()] = i;
  }
  for (size_t i = 0; i < to.nodes.size(); ++i) {
    const GraphNode& a = *to.nodes[i];
    const GraphNode& b = *from.nodes[i];
    if (a.type != b.type || a.dependencies.size() != b.dependencies.size()) return false;
    for (size_t d = 0; d < a.dependencies.size(); ++d) {
      if (places_to[a.dependencies[d]] != places_from[b.dependencies[d]]) return false;
    }
    if (a.child && !Alike(*a.child, *b.child)) return false;
  }
  return true;
}

void TakeOperations(Graph* to, const Graph& from) {
  for (size_t i = 0; i < to->nodes.size(); ++i) {
    to->nodes[i]->operation = from.nodes[i]->operation;
    to->nodes[i]->ctx = from.nodes[i]->ctx;
    if (to->nodes[i]->child) TakeOperations(to->nodes[i]->child.get(), *from.nodes[i]->child);
  }
}

}  // namespace

namespace prorata::simgpu::driver {

// A: a clone, which must not hold memory nodes. B: the graph itself, which may, and which belongs
// to the node from then on. A graph that was moved is neither cloned nor moved into another.
CUresult DraftChild(CUgraph handle, CUgraphChildGraphNodeOwnership ownership, Draft* draft) {
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(handle, &graph)) return result;
  if (graph->moved && !Broken(Rule::kMovedGraphIsItsParents)) return CUDA_ERROR_INVALID_VALUE;
  if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
    if (graph->owned_by_node) return CUDA_ERROR_INVALID_VALUE;
    draft->child = std::move(graph);
    draft->moves = true;
    return CUDA_SUCCESS;
  }
  if (ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) return CUDA_ERROR_INVALID_VALUE;
  if (HasMemoryNodes(*graph) && !Broken(Rule::kCloneHasNoMemory)) return CUDA_ERROR_INVALID_VALUE;
  draft->child = CloneGraph(*graph);
  return CUDA_SUCCESS;
}

}  // namespace prorata::simgpu::driver

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int) {
  if (CUresult result = EnterCall()) return result;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  std::string text = "digraph dot {\n";
  {
    std::lock_guard lock(D().mutex);
    std::shared_ptr<Graph> graph;
    if (CUresult result = FindGraph(hGraph, &graph)) return result;
    int next_number = 0;
    Print(*graph, 0, &next_number, &text);
  }
  text += "}\n";
  FILE* file = std::fopen(path, "we");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUgraph childGraph) {
  if (CUresult result = EnterCall()) return result;
  if (!hGraphExec) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = FindNodeOfType(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_GRAPH, &node)) {
    return result;
  }
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(childGraph, &graph)) return result;
  if (HasMemoryNodes(*graph) || !Alike(*node->child, *graph)) return CUDA_ERROR_INVALID_VALUE;
  TakeOperations(node->child.get(), *graph);
  std::shared_ptr<GraphExec> exec;
  if (CUresult result = FindExec(hGraphExec, &exec)) return result;
  exec->planned = false;  // its nodes may belong to other contexts now
  return CUDA_SUCCESS;
}
