// Nodes that a program adds to a graph itself, and their parameters.

#include <algorithm>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/copy/copy.h"
#include "sim/cuda/graph/graph_draft.h"
#include "sim/cuda/graph/graph_exec.h"
#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/stream/launch.h"
#include "sim/cuda/stream/stream_value.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult ContextFor(CUcontext handle, Context** out) { return LiveContext(handle, out); }

CUresult DraftKernel(const CUDA_KERNEL_NODE_PARAMS& params, Draft* draft) {
  std::shared_ptr<Function> function;
  CUfunction handle = params.func ? params.func : reinterpret_cast<CUfunction>(params.kern);
  if (CUresult result = FindFunction(handle, &function)) return result;
  Context* ctx = function->module->ctx;
  if (!ctx) {
    if (CUresult result = ContextFor(params.ctx, &ctx)) return result;
  }
  KernelCall call;
  const LaunchRequest request = {{params.gridDimX, params.gridDimY, params.gridDimZ},
                                 {params.blockDimX, params.blockDimY, params.blockDimZ},
                                 params.sharedMemBytes,
                                 params.kernelParams,
                                 params.extra};
  if (CUresult result =
          MakeKernelCall(std::move(function), request, D().config(ctx->device), &call)) {
    return result;
  }
  draft->operation = std::move(call);
  draft->ctx = ctx;
  draft->kernel_params = params;
  draft->kernel_params.func = handle;
  return CUDA_SUCCESS;
}

CUDA_KERNEL_NODE_PARAMS Widen(const CUDA_KERNEL_NODE_PARAMS_v1& old) {
  return {old.func,         old.gridDimX,  old.gridDimY,  old.gridDimZ,
          old.blockDimX,    old.blockDimY, old.blockDimZ, old.sharedMemBytes,
          old.kernelParams, old.extra,     nullptr,       nullptr};
}

CUresult DraftCopy(const CUDA_MEMCPY3D& params, CUcontext ctx, Draft* draft) {
  if (CUresult result = ContextFor(ctx, &draft->ctx)) return result;
  CopyCall copy;
  if (CUresult result = MakeBoxCopy(params, &copy)) return result;
  if (copy.bytes() == 0) return CUDA_ERROR_INVALID_VALUE;
  draft->operation = std::move(copy);
  draft->copy_params = params;
  return CUDA_SUCCESS;
}

CUresult DraftFill(const CUDA_MEMSET_NODE_PARAMS& params, CUcontext ctx, Draft* draft) {
  if (CUresult result = ContextFor(ctx, &draft->ctx)) return result;
  const unsigned element = params.elementSize;
  if ((element != 1 && element != 2 && element != 4) || params.width == 0 || params.height == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t row = uint64_t{params.width} * element;
  if (params.dst % element != 0 || (params.height > 1 && params.pitch < row)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!DeviceRangeIsValid(params.dst, (params.height - 1) * uint64_t{params.pitch} + row)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  draft->operation =
      FillCall{params.dst, params.pitch, params.value, element, params.width, params.height};
  draft->fill_params = params;
  return CUDA_SUCCESS;
}

CUresult DraftHost(const CUDA_HOST_NODE_PARAMS& params, Draft* draft) {
  if (!params.fn) return CUDA_ERROR_INVALID_VALUE;
  draft->operation = HostCall{.function = params.fn, .user_data = params.userData};
  return CUDA_SUCCESS;
}

CUresult DraftEvent(CUevent handle, bool record, Draft* draft) {
  EventRef event;
  if (CUresult result = FindEvent(handle, &event)) return result;
  if (record) {
    draft->operation = RecordCall{std::move(event)};
  } else {
    draft->operation = WaitCall{std::move(event)};
  }
  return CUDA_SUCCESS;
}

CUresult DraftAlloc(CUDA_MEM_ALLOC_NODE_PARAMS* params, Draft* draft) {
  if (!params || params->bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  if (params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult result = ContextFor(nullptr, &draft->ctx)) return result;
  if (CUresult result = ReserveGraphMemory(draft->ctx, params)) return result;
  draft->operation = GraphAllocCall{params->dptr, params->bytesize};
  return CUDA_SUCCESS;
}

CUresult DraftBatch(const CUDA_BATCH_MEM_OP_NODE_PARAMS& params, Draft* draft) {
  if (params.flags != 0 || params.count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = ContextFor(params.ctx, &draft->ctx)) return result;
  BatchCall batch;
  if (CUresult result = MakeBatch(params.paramArray, params.count, &batch)) return result;
  draft->operation = std::move(batch);
  return CUDA_SUCCESS;
}

CUresult DraftFree(CUdeviceptr address, Draft* draft) {
  if (!FindGraphMemory(address)) return CUDA_ERROR_INVALID_VALUE;
  draft->operation = GraphFreeCall{address};
  return CUDA_SUCCESS;
}

}  // namespace

namespace prorata::simgpu::driver {

CUresult PlaceNode(CUgraphNode* out, CUgraph graph_handle, const CUgraphNode* dependencies,
                   size_t count, Draft draft) {
  if (!out || (count > 0 && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Graph> graph;
  if (CUresult result = FindGraph(graph_handle, &graph)) return result;
  std::vector<GraphNode*> nodes;
  for (size_t i = 0; i < count; ++i) {
    GraphNode* node;
    Graph* owner;
    if (CUresult result = FindNode(dependencies[i], &node, &owner)) return result;
    const bool twice = std::find(nodes.begin(), nodes.end(), node) != nodes.end();
    if (owner != graph.get() || twice) return CUDA_ERROR_INVALID_VALUE;
    nodes.push_back(node);
  }
  const auto* free = std::get_if<GraphFreeCall>(&draft.operation);
  const bool memory = free || std::holds_alternative<GraphAllocCall>(draft.operation);
  if (memory && graph->owned_by_node && !Broken(Rule::kMovedGraphIsItsParents)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (draft.moves && Holds(*draft.child, graph.get())) return CUDA_ERROR_INVALID_VALUE;
  if (free) {
    if (CUresult result = CheckFreeNode(graph.get(), free->address)) return result;
  }
  const CUgraphNodeType type = draft.child ? CU_GRAPH_NODE_TYPE_GRAPH : NodeTypeOf(draft.operation);
  GraphNode* node =
      AddNode(graph.get(), type, std::move(draft.operation), draft.ctx, std::move(nodes));
  node->kernel_params = draft.kernel_params;
  node->copy_params = draft.copy_params;
  node->fill_params = draft.fill_params;
  if (draft.child) {
    draft.child->moved = draft.moves;
    SetChild(node, std::move(draft.child));
  }
  *out = reinterpret_cast<CUgraphNode>(node);
  return CUDA_SUCCESS;
}

CUresult FindNodeOfType(CUgraphExec exec_handle, CUgraphNode handle, CUgraphNodeType type,
                        GraphNode** out) {
  if (exec_handle) {
    std::shared_ptr<GraphExec> exec;
    if (CUresult result = FindExec(exec_handle, &exec)) return result;
    if (CUresult result = FindExecNode(exec.get(), handle, out)) return result;
  } else if (CUresult result = FindNode(handle, out)) {
    return result;
  }
  return (*out)->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace prorata::simgpu::driver

namespace {

// Runs `make` (which fills a Draft) and places the node.
template <typename Make>
CUresult Add(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
             Make make) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Draft draft;
  if (CUresult result = make(&draft)) return result;
  return PlaceNode(out, graph, dependencies, count, std::move(draft));
}

void Apply(Draft draft, GraphNode* node) {
  node->operation = std::move(draft.operation);
  node->ctx = draft.ctx;
  node->kernel_params = draft.kernel_params;
  node->copy_params = draft.copy_params;
  node->fill_params = draft.fill_params;
}

// New parameters for a node of the right type, in a graph (exec null) or an executable graph.
template <typename Make>
CUresult Set(CUgraphExec exec_handle, CUgraphNode handle, CUgraphNodeType type, Make make) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = FindNodeOfType(exec_handle, handle, type, &node)) return result;
  Draft draft;
  if (CUresult result = make(&draft)) return result;
  Apply(std::move(draft), node);
  return CUDA_SUCCESS;
}

template <typename Params, typename Make>
CUresult Checked(const Params* params, Draft* draft, Make make) {
  return params ? make(*params, draft) : CUDA_ERROR_INVALID_VALUE;
}

CUresult AllocOf(CUgraphNodeParams* params, Draft* draft) {
  CUDA_MEM_ALLOC_NODE_PARAMS_v2& given = params->alloc;
  CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
  alloc.poolProps = given.poolProps;
  alloc.accessDescs = given.accessDescs;
  alloc.accessDescCount = given.accessDescCount;
  alloc.bytesize = given.bytesize;
  const CUresult result = DraftAlloc(&alloc, draft);
  given.dptr = alloc.dptr;
  return result;
}

CUresult DraftOf(CUgraphNodeParams* params, Draft* draft) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS_v3& k = params->kernel;
      return DraftKernel({k.func, k.gridDimX, k.gridDimY, k.gridDimZ, k.blockDimX, k.blockDimY,
                          k.blockDimZ, k.sharedMemBytes, k.kernelParams, k.extra, k.kern, k.ctx},
                         draft);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return DraftCopy(params->memcpy.copyParams, params->memcpy.copyCtx, draft);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& m = params->memset;
      return DraftFill({m.dst, m.pitch, m.value, m.elementSize, m.width, m.height}, m.ctx, draft);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      return DraftHost({params->host.fn, params->host.userData}, draft);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return DraftChild(params->graph.graph, params->graph.ownership, draft);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return DraftEvent(params->eventWait.event, false, draft);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return DraftEvent(params->eventRecord.event, true, draft);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2& b = params->memOp;
      return DraftBatch({b.ctx, b.count, b.paramArray, b.flags}, draft);
    }
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return AllocOf(params, draft);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return DraftFree(params->free.dptr, draft);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

#define PRORATA_ADD(name, param, make)                                                     \
  CUresult name(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, \
                size_t numDependencies PRORATA_REST param) {                               \
    return Add(phGraphNode, hGraph, dependencies, numDependencies,                         \
               [&]([[maybe_unused]] Draft* draft) { return make; });                       \
  }
#define PRORATA_REST(...) __VA_OPT__(, ) __VA_ARGS__

PRORATA_ADD(cuGraphAddEmptyNode, (), CUDA_SUCCESS)
PRORATA_ADD(cuGraphAddKernelNode, (const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams),
            nodeParams ? DraftKernel(Widen(*nodeParams), draft) : CUDA_ERROR_INVALID_VALUE)
PRORATA_ADD(cuGraphAddKernelNode_v2, (const CUDA_KERNEL_NODE_PARAMS* nodeParams),
            Checked(nodeParams, draft, DraftKernel))
PRORATA_ADD(cuGraphAddMemcpyNode, (const CUDA_MEMCPY3D* copyParams, CUcontext ctx),
            copyParams ? DraftCopy(*copyParams, ctx, draft) : CUDA_ERROR_INVALID_VALUE)
PRORATA_ADD(cuGraphAddMemsetNode, (const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx),
            memsetParams ? DraftFill(*memsetParams, ctx, draft) : CUDA_ERROR_INVALID_VALUE)
PRORATA_ADD(cuGraphAddHostNode, (const CUDA_HOST_NODE_PARAMS* nodeParams),
            Checked(nodeParams, draft, DraftHost))
PRORATA_ADD(cuGraphAddChildGraphNode, (CUgraph childGraph),
            DraftChild(childGraph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, draft))
PRORATA_ADD(cuGraphAddEventRecordNode, (CUevent event), DraftEvent(event, true, draft))
PRORATA_ADD(cuGraphAddEventWaitNode, (CUevent event), DraftEvent(event, false, draft))
PRORATA_ADD(cuGraphAddMemAllocNode, (CUDA_MEM_ALLOC_NODE_PARAMS * nodeParams),
            DraftAlloc(nodeParams, draft))
PRORATA_ADD(cuGraphAddBatchMemOpNode, (const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams),
            Checked(nodeParams, draft, DraftBatch))
PRORATA_ADD(cuGraphAddMemFreeNode, (CUdeviceptr dptr), DraftFree(dptr, draft))
PRORATA_ADD(cuGraphAddNode, (CUgraphNodeParams * nodeParams), DraftOf(nodeParams, draft))

#undef PRORATA_ADD
#undef PRORATA_REST

CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                           const CUgraphNode* dependencies, const CUgraphEdgeData*,
                           size_t numDependencies, CUgraphNodeParams* nodeParams) {
  return cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_NOT_SUPPORTED;
  return Set(nullptr, hNode, nodeParams->type,
             [&](Draft* draft) { return DraftOf(nodeParams, draft); });
}
CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                  CUgraphNodeParams* nodeParams) {
  if (!nodeParams || !hGraphExec) return CUDA_ERROR_INVALID_VALUE;
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    if (nodeParams->graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, nodeParams->graph.graph);
  }
  return Set(hGraphExec, hNode, nodeParams->type,
             [&](Draft* draft) { return DraftOf(nodeParams, draft); });
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                       const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return Set(nullptr, hNode, CU_GRAPH_NODE_TYPE_KERNEL,
             [&](Draft* draft) { return Checked(nodeParams, draft, DraftKernel); });
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                    const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS wide = Widen(*nodeParams);
  return cuGraphKernelNodeSetParams_v2(hNode, &wide);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  if (!hGraphExec) return CUDA_ERROR_INVALID_VALUE;
  return Set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_KERNEL,
             [&](Draft* draft) { return Checked(nodeParams, draft, DraftKernel); });
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS wide = Widen(*nodeParams);
  return cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &wide);
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  return Set(nullptr, hNode, CU_GRAPH_NODE_TYPE_MEMCPY,
             [&](Draft* draft) { return DraftCopy(*nodeParams, nullptr, draft); });
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  if (!copyParams || !hGraphExec) return CUDA_ERROR_INVALID_VALUE;
  return Set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMCPY,
             [&](Draft* draft) { return DraftCopy(*copyParams, ctx, draft); });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  return Set(nullptr, hNode, CU_GRAPH_NODE_TYPE_MEMSET,
             [&](Draft* draft) { return DraftFill(*nodeParams, nullptr, draft); });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS* memsetParams,
                                        CUcontext ctx) {
  if (!memsetParams || !hGraphExec) return CUDA_ERROR_INVALID_VALUE;
  return Set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMSET,
             [&](Draft* draft) { return DraftFill(*memsetParams, ctx, draft); });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS* nodeParams) {
  return Set(nullptr, hNode, CU_GRAPH_NODE_TYPE_HOST,
             [&](Draft* draft) { return Checked(nodeParams, draft, DraftHost); });
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS* nodeParams) {
  if (!hGraphExec) return CUDA_ERROR_INVALID_VALUE;
  return Set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_HOST,
             [&](Draft* draft) { return Checked(nodeParams, draft, DraftHost); });
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return Set(nullptr, hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
             [&](Draft* draft) { return Checked(nodeParams, draft, DraftBatch); });
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  if (!hGraphExec) return CUDA_ERROR_INVALID_VALUE;
  return Set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
             [&](Draft* draft) { return Checked(nodeParams, draft, DraftBatch); });
}
