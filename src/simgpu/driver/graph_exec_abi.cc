// Executable graphs: instantiate, launch, update. Nodes run one after the other on the launching
// stream, in an order that respects the edges; branches do not overlap.

#include "simgpu/driver/graph_exec.h"

#include <algorithm>
#include <map>

#include "generated/cuda_abi.h"
#include "simgpu/driver/capture.h"
#include "simgpu/driver/context.h"

namespace prorata::simgpu::driver {

bool TopologicalOrder(const Graph& graph, std::vector<GraphNode*>* out) {
  std::map<const GraphNode*, size_t> waiting;
  std::map<const GraphNode*, std::vector<GraphNode*>> dependents;
  auto earlier = [](const GraphNode* a, const GraphNode* b) { return a->order < b->order; };
  std::set<GraphNode*, decltype(earlier)> ready(earlier);
  for (const auto& node : graph.nodes) {
    waiting[node.get()] = node->dependencies.size();
    for (GraphNode* dependency : node->dependencies) dependents[dependency].push_back(node.get());
    if (node->dependencies.empty()) ready.insert(node.get());
  }
  size_t placed = 0;
  while (!ready.empty()) {
    GraphNode* node = *ready.begin();
    ready.erase(ready.begin());
    ++placed;
    if (node->child) {
      if (!TopologicalOrder(*node->child, out)) return false;
    } else {
      out->push_back(node);
    }
    for (GraphNode* dependent : dependents[node]) {
      if (--waiting[dependent] == 0) ready.insert(dependent);
    }
  }
  return placed == graph.nodes.size();
}

CUresult Instantiate(const std::shared_ptr<Graph>& graph, Context* ctx, cuuint64_t flags,
                     CUgraphExec* out) {
  auto exec = std::make_shared<GraphExec>();
  exec->graph = CloneGraph(*graph);
  exec->original = graph;
  exec->ctx = ctx;
  exec->flags = flags;
  std::vector<GraphNode*> order;
  if (!TopologicalOrder(*exec->graph, &order)) {
    ForgetNodes(exec->graph.get());
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (GraphNode* node : order) exec->steps.push_back({node->cloned_from, node});
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
  for (const GraphExec::Step& step : exec->steps) {
    if (step.node != node) continue;
    *out = step.copy;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult MakeExec(CUgraphExec* out, CUgraph handle, cuuint64_t flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(handle, &graph)) return result;
  return Instantiate(graph, ctx, flags, out);
}

CUresult MakeExecOld(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log,
                     size_t log_bytes) {
  if (error_node) *error_node = nullptr;
  if (log && log_bytes > 0) log[0] = '\0';
  return MakeExec(out, graph, 0);
}

CUresult MakeExecWithParams(CUgraphExec* out, CUgraph graph,
                            CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = MakeExec(out, graph, params->flags);
  params->hErrNode_out = nullptr;
  params->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult Launch(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  StreamRef stream;
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<Graph> graph;  // keeps the nodes while an update replaces them
  std::vector<GraphExec::Step> steps;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindExec(handle, &exec)) return result;
    if (CUresult result = FindStream(stream_handle, per_thread, ctx, &stream)) return result;
    graph = exec->graph;
    steps = exec->steps;
  }
  std::vector<Work> work;
  for (const GraphExec::Step& step : steps) {
    if (!step.copy->enabled) continue;
    StreamOp operation = step.copy->operation;
    bool captured = false;
    // Launched into a capturing stream, its nodes become nodes of that capture.
    if (CUresult result = CaptureOperation(stream, &operation, &captured)) return result;
    if (captured) continue;
    if (CUresult result = MakeWork(stream->ctx, operation, &work)) return result;
    if (auto* record = std::get_if<RecordCall>(&operation)) record->event->recorded = true;
  }
  return SubmitWork(stream, work);
}

CUresult Upload(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<GraphExec> exec;
  if (CUresult result = FindExec(handle, &exec)) return result;
  StreamRef stream;
  return FindStream(stream_handle, per_thread, ctx, &stream);
}

// Whether two graphs are alike in everything but their nodes' parameters; the order of creation
// says which node is which, as it does for graphs captured from the same code.
bool SameShape(const Graph& a, const Graph& b, CUgraphExecUpdateResult* why) {
  *why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
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
    if (x.type != y.type) {
      *why = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
      return false;
    }
    std::set<size_t> from_a;
    std::set<size_t> from_b;
    for (const GraphNode* node : x.dependencies) from_a.insert(place_a[node]);
    for (const GraphNode* node : y.dependencies) from_b.insert(place_b[node]);
    if (from_a != from_b) return false;
    if (x.child && y.child && !SameShape(*x.child, *y.child, why)) return false;
  }
  *why = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  return true;
}

CUresult Update(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResult* why) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindExec(handle, &exec)) return result;
  if (CUresult result = FindGraph(graph_handle, &graph)) return result;
  if (!SameShape(*exec->graph, *graph, why)) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  CUgraphExec fresh;
  if (CUresult result = Instantiate(graph, exec->ctx, exec->flags, &fresh)) return result;
  std::shared_ptr<GraphExec> updated;
  FindExec(fresh, &updated);
  D().execs.erase(fresh);
  // A launch in progress elsewhere keeps the old object; the handle names the new content.
  exec->graph.swap(updated->graph);
  exec->steps.swap(updated->steps);
  exec->original.swap(updated->original);
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

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream) {
  return Launch(hGraph, hStream, false);
}
CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return Launch(hGraphExec, hStream, true);
}
CUresult cuGraphUpload(CUgraphExec hGraph, CUstream hStream) {
  return Upload(hGraph, hStream, false);
}
CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return Upload(hGraphExec, hStream, true);
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
  return Update(hGraphExec, hGraph, &resultInfo->result);
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) {
  if (!updateResult_out) return CUDA_ERROR_INVALID_VALUE;
  if (hErrorNode_out) *hErrorNode_out = nullptr;
  return Update(hGraphExec, hGraph, updateResult_out);
}
