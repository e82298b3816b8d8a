// The parameters of nodes, as they are now.

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/graph_draft.h"
#include "sim/cuda/graph/graph_exec.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult Get(CUgraphNode handle, CUgraphNodeType type, GraphNode** node) {
  if (CUresult result = EnterCall()) return result;
  if (CUresult result = FindNode(handle, node)) return result;
  return (*node)->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The parameters as they are now, also of captured nodes. kernelParams points into the node.
CUDA_KERNEL_NODE_PARAMS KernelParams(GraphNode* node) {
  auto& call = std::get<KernelCall>(node->operation);
  CUDA_KERNEL_NODE_PARAMS params = node->kernel_params;
  params.func = reinterpret_cast<CUfunction>(call.function.get());
  params.gridDimX = call.grid[0];
  params.gridDimY = call.grid[1];
  params.gridDimZ = call.grid[2];
  params.blockDimX = call.block[0];
  params.blockDimY = call.block[1];
  params.blockDimZ = call.block[2];
  params.sharedMemBytes = call.shared_bytes;
  params.extra = nullptr;
  params.ctx = node->ctx ? HandleOf(node->ctx) : nullptr;
  node->kernel_pointers.clear();
  auto* bytes = reinterpret_cast<char*>(call.parameter_bytes.data());
  for (uint32_t offset : call.parameter_offsets) node->kernel_pointers.push_back(bytes + offset);
  params.kernelParams = node->kernel_pointers.empty() ? nullptr : node->kernel_pointers.data();
  return params;
}

}  // namespace

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = Get(hNode, CU_GRAPH_NODE_TYPE_KERNEL, &node)) return result;
  *nodeParams = KernelParams(node);
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS wide;
  if (CUresult result = cuGraphKernelNodeGetParams_v2(hNode, &wide)) return result;
  *nodeParams = {wide.func,         wide.gridDimX,  wide.gridDimY,  wide.gridDimZ,
                 wide.blockDimX,    wide.blockDimY, wide.blockDimZ, wide.sharedMemBytes,
                 wide.kernelParams, wide.extra};
  return CUDA_SUCCESS;
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = Get(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, &node)) return result;
  *nodeParams = node->copy_params;
  return CUDA_SUCCESS;
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = Get(hNode, CU_GRAPH_NODE_TYPE_MEMSET, &node)) return result;
  const auto& fill = std::get<FillCall>(node->operation);
  *nodeParams = {fill.dst, fill.pitch, fill.value, fill.element_bytes, fill.width, fill.height};
  return CUDA_SUCCESS;
}
CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS* nodeParams) {
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = Get(hNode, CU_GRAPH_NODE_TYPE_HOST, &node)) return result;
  const auto& call = std::get<HostCall>(node->operation);
  *nodeParams = {call.function, call.user_data};
  return CUDA_SUCCESS;
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph* phGraph) {
  if (!phGraph) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = Get(hNode, CU_GRAPH_NODE_TYPE_GRAPH, &node)) return result;
  *phGraph = reinterpret_cast<CUgraph>(node->child.get());
  return CUDA_SUCCESS;
}
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) {
  if (!dptr_out) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = Get(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, &node)) return result;
  *dptr_out = std::get<GraphFreeCall>(node->operation).address;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<GraphExec> exec;
  if (CUresult result = FindExec(hGraphExec, &exec)) return result;
  GraphNode* node;
  if (CUresult result = FindExecNode(exec.get(), hNode, &node)) return result;
  const bool can = node->type == CU_GRAPH_NODE_TYPE_KERNEL ||
                   node->type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                   node->type == CU_GRAPH_NODE_TYPE_MEMSET;
  if (!can) return CUDA_ERROR_INVALID_VALUE;
  node->enabled = isEnabled != 0;
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int* isEnabled) {
  if (CUresult result = EnterCall()) return result;
  if (!isEnabled) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<GraphExec> exec;
  if (CUresult result = FindExec(hGraphExec, &exec)) return result;
  GraphNode* node;
  if (CUresult result = FindExecNode(exec.get(), hNode, &node)) return result;
  *isEnabled = node->enabled ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode,
                                        CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams_out) {
  if (!nodeParams_out) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = Get(hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &node)) return result;
  auto& batch = std::get<BatchCall>(node->operation);
  *nodeParams_out = {HandleOf(node->ctx), static_cast<unsigned>(batch.params.size()),
                     batch.params.data(), 0};
  return CUDA_SUCCESS;
}
