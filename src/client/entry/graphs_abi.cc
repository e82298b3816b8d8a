// Graphs that allocate: made, instantiated, uploaded, trimmed. Launching one is in launch_abi.cc.

#include "client/compute/graph_devices.h"
#include "client/memory/graphs.h"
#include "client/memory/memory.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

template <typename Call>
CUresult Instantiate(CUgraphExec* exec, CUgraph graph, bool uploads, Call call) {
  const CUresult result = InstantiateGraph(
      exec, graph, uploads, [](void* data) { return (*static_cast<Call*>(data))(); }, &call);
  if (result == CUDA_SUCCESS && exec != nullptr && Governed()) ExecMade(*exec, graph);
  return result;
}

CUresult Noted(CUresult result, bool allocates) {
  if (result == CUDA_SUCCESS && allocates) GraphAllocates();
  return result;
}

bool Allocates(const CUgraphNodeParams* params) {
  return params != nullptr && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
}

bool Uploads(const CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return params != nullptr && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                const CUgraphNode* dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
  return Noted(PRORATA_REAL(cuGraphAddMemAllocNode)(phGraphNode, hGraph, dependencies,
                                                    numDependencies, nodeParams),
               true);
}

CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                        size_t numDependencies, CUgraphNodeParams* nodeParams) {
  return Noted(
      PRORATA_REAL(cuGraphAddNode)(phGraphNode, hGraph, dependencies, numDependencies, nodeParams),
      Allocates(nodeParams));
}

CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                           const CUgraphNode* dependencies, const CUgraphEdgeData* dependencyData,
                           size_t numDependencies, CUgraphNodeParams* nodeParams) {
  return Noted(PRORATA_REAL(cuGraphAddNode_v2)(phGraphNode, hGraph, dependencies, dependencyData,
                                               numDependencies, nodeParams),
               Allocates(nodeParams));
}

CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                            char* logBuffer, size_t bufferSize) {
  return Instantiate(phGraphExec, hGraph, false, [&] {
    return PRORATA_REAL(cuGraphInstantiate)(phGraphExec, hGraph, phErrorNode, logBuffer,
                                            bufferSize);
  });
}

CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                               char* logBuffer, size_t bufferSize) {
  return Instantiate(phGraphExec, hGraph, false, [&] {
    return PRORATA_REAL(cuGraphInstantiate_v2)(phGraphExec, hGraph, phErrorNode, logBuffer,
                                               bufferSize);
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                     unsigned long long flags) {
  const bool uploads = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
  return Instantiate(phGraphExec, hGraph, uploads, [&] {
    return PRORATA_REAL(cuGraphInstantiateWithFlags)(phGraphExec, hGraph, flags);
  });
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  return Instantiate(phGraphExec, hGraph, Uploads(instantiateParams), [&] {
    return PRORATA_REAL(cuGraphInstantiateWithParams)(phGraphExec, hGraph, instantiateParams);
  });
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  return Instantiate(phGraphExec, hGraph, Uploads(instantiateParams), [&] {
    return PRORATA_REAL(cuGraphInstantiateWithParams_ptsz)(phGraphExec, hGraph, instantiateParams);
  });
}

CUresult cuGraphUpload(CUgraphExec hGraph, CUstream hStream) {
  return WithGraphMemory(hGraph, hStream, false,
                         [&] { return PRORATA_REAL(cuGraphUpload)(hGraph, hStream); });
}

CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return WithGraphMemory(hGraphExec, hStream, true,
                         [&] { return PRORATA_REAL(cuGraphUpload_ptsz)(hGraphExec, hStream); });
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  // Forgotten before the call: the handle may be another's as soon as it returns. Should it fail,
  // the graph's memory is charged by what is reserved, after its next launch.
  if (Governed()) {
    GraphExecGone(hGraphExec);
    ExecGone(hGraphExec);
  }
  return PRORATA_REAL(cuGraphExecDestroy)(hGraphExec);
}

CUresult cuDeviceGraphMemTrim(CUdevice device) { return TrimGraphs(device); }
