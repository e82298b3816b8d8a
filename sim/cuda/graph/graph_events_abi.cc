// Graph nodes that record an event or wait for one: which event it is.

#include "generated/cuda_abi.h"
#include "sim/cuda/graph/graph_exec.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// RecordCall or WaitCall of a node of that kind, in a graph (exec null) or an executable graph.
template <typename Call>
CUresult Find(CUgraphExec exec_handle, CUgraphNode handle, Call** out) {
  GraphNode* node;
  if (exec_handle) {
    std::shared_ptr<GraphExec> exec;
    if (CUresult result = FindExec(exec_handle, &exec)) return result;
    if (CUresult result = FindExecNode(exec.get(), handle, &node)) return result;
  } else if (CUresult result = FindNode(handle, &node)) {
    return result;
  }
  *out = std::get_if<Call>(&node->operation);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

template <typename Call>
CUresult Get(CUgraphNode node, CUevent* event) {
  if (CUresult result = EnterCall()) return result;
  if (!event) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Call* call;
  if (CUresult result = Find(nullptr, node, &call)) return result;
  *event = reinterpret_cast<CUevent>(call->event.get());
  return CUDA_SUCCESS;
}

template <typename Call>
CUresult Set(CUgraphExec exec, CUgraphNode node, CUevent event) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Call* call;
  EventRef found;
  if (CUresult result = Find(exec, node, &call)) return result;
  if (CUresult result = FindEvent(event, &found)) return result;
  call->event = std::move(found);
  std::shared_ptr<GraphExec> executable;
  // The event may be of another context, and its record belongs in a stream of that.
  if (exec && FindExec(exec, &executable) == CUDA_SUCCESS) executable->planned = false;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  return Get<RecordCall>(hNode, event_out);
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  return Get<WaitCall>(hNode, event_out);
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return Set<RecordCall>(nullptr, hNode, event);
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return Set<WaitCall>(nullptr, hNode, event);
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUevent event) {
  if (!hGraphExec) return CUDA_ERROR_INVALID_VALUE;
  return Set<RecordCall>(hGraphExec, hNode, event);
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          CUevent event) {
  if (!hGraphExec) return CUDA_ERROR_INVALID_VALUE;
  return Set<WaitCall>(hGraphExec, hNode, event);
}
