// Executable graphs: instantiate, update, destroy.

#include "sim/cuda/graph/graph_exec.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/graph_memory.h"

namespace prorata::simgpu::driver {

CUresult Instantiate(const std::shared_ptr<Graph>& graph, Context* ctx, cuuint64_t flags,
                     CUgraphExec* out) {
  auto exec = std::make_shared<GraphExec>();
  GraphPlan plan;
  if (!MakePlan(*graph, {ctx, 0}, false, &plan)) return CUDA_ERROR_INVALID_VALUE;
  exec->graph = CloneGraph(*graph);
  exec->original = graph;
  exec->ctx = ctx;
  exec->flags = flags;
  exec->nodes = NodesByOriginal(*exec->graph);
  // The copies are reachable through the executable graph only.
  ForgetNodes(exec->graph.get());
  *out = reinterpret_cast<CUgraphExec>(exec.get());
  D().execs[exec.get()] = std::move(exec);
  return CUDA_SUCCESS;
}

CUresult FindExec(CUgraphExec handle, std::shared_ptr<GraphExec>* out) {
  auto found = D().execs.find(handle);
  if (found == D().execs.end()) return CUDA_ERROR_INVALID_VALUE;
  *out = found->second;
  return CUDA_SUCCESS;
}

CUresult FindExecNode(GraphExec* exec, CUgraphNode node, GraphNode** out) {
  auto found = exec->nodes.find(node);
  if (found == exec->nodes.end()) return CUDA_ERROR_INVALID_VALUE;
  *out = found->second;
  return CUDA_SUCCESS;
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult MakeExec(CUgraphExec* out, CUgraph handle, cuuint64_t flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  constexpr cuuint64_t kKnown =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (flags & ~kKnown) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(handle, &graph)) return result;
  if (graph->moved && !Broken(Rule::kMovedGraphIsItsParents)) return CUDA_ERROR_INVALID_VALUE;
  const bool has_memory = HasMemoryNodes(*graph);
  if (has_memory && HasInstance(*graph)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = Instantiate(graph, ctx, flags, out)) return result;
  if (has_memory) graph->instance = D().execs[*out];
  return CUDA_SUCCESS;
}

CUresult MakeExecOld(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log,
                     size_t log_bytes) {
  if (error_node) *error_node = nullptr;
  if (log && log_bytes > 0) log[0] = '\0';
  return MakeExec(out, graph, 0);
}

// A node that can never be reached, because it depends on itself by some way; null when there is
// none.
CUgraphNode NodeOfCircle(const Graph& graph) {
  std::set<const GraphNode*> reached;
  bool more = true;
  while (more) {
    more = false;
    for (const auto& node : graph.nodes) {
      const auto& before = node->dependencies;
      const bool ready = std::all_of(before.begin(), before.end(), [&](const GraphNode* other) {
        return reached.contains(other);
      });
      if (ready && reached.insert(node.get()).second) more = true;
    }
  }
  for (const auto& node : graph.nodes) {
    if (!reached.contains(node.get())) return reinterpret_cast<CUgraphNode>(node.get());
  }
  return nullptr;
}

// An executable graph that cannot be uploaded is none.
CUresult UploadNew(CUgraphExec* out) {
  std::lock_guard lock(D().mutex);
  const CUresult result = AttachGraphMemory(*D().execs[*out], false);
  if (result != CUDA_SUCCESS) D().execs.erase(std::exchange(*out, nullptr));
  return result;
}

CUresult MakeExecWithParams(CUgraphExec* out, CUgraph graph,
                            CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = MakeExec(out, graph, params->flags);
  params->hErrNode_out = nullptr;
  params->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  if (result == CUDA_SUCCESS && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
    return UploadNew(out);
  }
  if (result != CUDA_ERROR_INVALID_VALUE) return result;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Graph> found;
  if (FindGraph(graph, &found) != CUDA_SUCCESS) return result;
  params->hErrNode_out = NodeOfCircle(*found);
  if (params->hErrNode_out) params->result_out = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  return result;
}

// Whether two graphs are alike in everything but their nodes' parameters; the order of creation
// says which node is which, as it does for graphs captured from the same code.
bool SameShape(const Graph& a, const Graph& b, CUgraphExecUpdateResultInfo* why) {
  why->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  if (a.nodes.size() != b.nodes.size()) return false;
  std::map<const GraphNode*, size_t> place_a;
  std::map<const GraphNode*, size_t> place_b;
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    place_a[a.nodes[i].get()] = i;
    place_b[b.nodes[i].get()] = i;
  }
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    const GraphNode& x = *a.nodes[i];
    const GraphNode& y = *b.nodes[i];
    why->errorNode = reinterpret_cast<CUgraphNode>(b.nodes[i].get());
    if (x.type != y.type) {
      why->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
      return false;
    }
    std::set<size_t> from_a;
    std::set<size_t> from_b;
    for (const GraphNode* node : x.dependencies) from_a.insert(place_a[node]);
    for (const GraphNode* node : y.dependencies) from_b.insert(place_b[node]);
    if (from_a != from_b) return false;
    if (x.child && y.child && !SameShape(*x.child, *y.child, why)) return false;
  }
  why->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  why->errorNode = nullptr;
  return true;
}

CUresult Update(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo* why) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindExec(handle, &exec)) return result;
  if (CUresult result = FindGraph(graph_handle, &graph)) return result;
  if (graph->moved && !Broken(Rule::kMovedGraphIsItsParents)) {
    why->result = CU_GRAPH_EXEC_UPDATE_ERROR;
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!SameShape(*exec->graph, *graph, why)) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  CUgraphExec fresh;
  if (CUresult result = Instantiate(graph, exec->ctx, exec->flags, &fresh)) return result;
  std::shared_ptr<GraphExec> updated;
  FindExec(fresh, &updated);
  D().execs.erase(fresh);
  // A launch in progress elsewhere keeps the old object; the handle names the new content.
  exec->graph.swap(updated->graph);
  exec->nodes.swap(updated->nodes);
  exec->original.swap(updated->original);
  exec->planned = false;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                            char* logBuffer, size_t bufferSize) {
  return MakeExecOld(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                               char* logBuffer, size_t bufferSize) {
  return MakeExecOld(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                     unsigned long long flags) {
  return MakeExec(phGraphExec, hGraph, flags);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  return MakeExecWithParams(phGraphExec, hGraph, instantiateParams);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  return MakeExecWithParams(phGraphExec, hGraph, instantiateParams);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  return D().execs.erase(hGraphExec) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  if (CUresult result = EnterCall()) return result;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<GraphExec> exec;
  if (CUresult result = FindExec(hGraphExec, &exec)) return result;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo* resultInfo) {
  if (!resultInfo) return CUDA_ERROR_INVALID_VALUE;
  *resultInfo = {};
  return Update(hGraphExec, hGraph, resultInfo);
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) {
  if (!updateResult_out) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = Update(hGraphExec, hGraph, &info);
  if (hErrorNode_out) *hErrorNode_out = info.errorNode;
  *updateResult_out = info.result;
  return result;
}
