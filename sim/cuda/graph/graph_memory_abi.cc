// The memory of graphs, as the device accounts for it.

#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/graph/graph_memory.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  if (CUresult result = EnterDevice(device)) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  const GraphMemory& memory = D().graph_memory;
  cuuint64_t out = 0;
  switch (attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      out = GraphMemoryUsed(device);
      break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      out = memory.used_high[device];
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      out = GraphMemoryReserved(device);
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      out = memory.reserved_high[device];
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(value, &out, sizeof(out));
  return CUDA_SUCCESS;
}

// The high marks can be reset, and nothing else set.
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  if (CUresult result = EnterDevice(device)) return result;
  cuuint64_t asked = 1;
  if (value) std::memcpy(&asked, value, sizeof(asked));
  if (asked != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphMemory& memory = D().graph_memory;
  if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) {
    memory.used_high[device] = GraphMemoryUsed(device);
  } else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
    memory.reserved_high[device] = GraphMemoryReserved(device);
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  if (CUresult result = EnterDevice(device)) return result;
  std::lock_guard lock(D().mutex);
  TrimGraphMemory(device);
  return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS* params_out) {
  if (CUresult result = EnterCall()) return result;
  if (!params_out) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = FindNode(hNode, &node)) return result;
  const auto* alloc = std::get_if<GraphAllocCall>(&node->operation);
  const GraphAllocation* allocation = alloc ? FindGraphMemory(alloc->address) : nullptr;
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  *params_out = allocation->params;
  return CUDA_SUCCESS;
}
