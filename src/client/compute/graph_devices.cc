#include "client/compute/graph_devices.h"

#include "client/compute/device_work.h"
#include "client/platform/table.h"
#include "client/session/graph_nodes.h"
#include "client/session/known_contexts.h"

namespace prorata::client {

std::atomic<uint32_t> g_placed_graphs;

namespace {

constinit Table<uint32_t> g_exec_devices;  // devices, by executable graph
std::atomic<uint32_t> g_no_memory;         // an executable graph is missing there

constexpr uint32_t kUnknown = ~0U;  // the node may run on any device

uint32_t Bit(uint32_t device) { return device == kNoDevice ? kUnknown : 1U << device; }

uint32_t KernelDevices(CUgraphNode node) {
  CUDA_KERNEL_NODE_PARAMS params;
  if (PRORATA_REAL(cuGraphKernelNodeGetParams_v2)(node, &params) != CUDA_SUCCESS ||
      params.ctx == nullptr) {
    return kUnknown;
  }
  return Bit(DeviceOfContext(params.ctx));
}

uint32_t FillDevices(CUgraphNode node) {
  CUDA_MEMSET_NODE_PARAMS params;
  const bool known = PRORATA_REAL(cuGraphMemsetNodeGetParams)(node, &params) == CUDA_SUCCESS;
  return known ? Bit(DeviceOfAddress(params.dst)) : kUnknown;
}

// The device of one end, 0 for the host.
uint32_t EndDevice(CUmemorytype type, CUdeviceptr address) {
  if (type == CU_MEMORYTYPE_HOST) return 0;
  if (type == CU_MEMORYTYPE_ARRAY) return kUnknown;
  const uint32_t device = DeviceOfAddress(address);
  return device == kNoDevice ? 0 : Bit(device);
}

// Copies of the host's memory, and from one device to another, are no work of a device
// (device_work.h).
uint32_t CopyDevices(CUgraphNode node) {
  CUDA_MEMCPY3D box;
  if (PRORATA_REAL(cuGraphMemcpyNodeGetParams)(node, &box) != CUDA_SUCCESS) return kUnknown;
  return EndDevice(box.dstMemoryType, box.dstDevice) & EndDevice(box.srcMemoryType, box.srcDevice);
}

uint32_t NodeDevices(CUgraphNode node, CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return KernelDevices(node);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return CopyDevices(node);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return FillDevices(node);
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return 0;
    default:
      return kUnknown;  // a conditional node's body, and what is not invented yet
  }
}

}  // namespace

void ExecMade(CUgraphExec exec, CUgraph graph) {
  const uint32_t possible = DevicesWithContexts();
  // The handle may have been another's, whose context ended.
  if ((possible & (possible - 1)) == 0) return ExecGone(exec);
  uint32_t devices = 0;
  {
    const OwnCalls own;
    const Visited visited = ForEachNode(
        graph, [&](CUgraphNode node, CUgraphNodeType type) { devices |= NodeDevices(node, type); });
    if (visited != Visited::kAll) devices = kUnknown;
  }
  devices &= possible;
  const bool noted =
      g_exec_devices.Update(reinterpret_cast<uint64_t>(exec), [&](uint32_t& value, bool made) {
        if (made) g_placed_graphs.fetch_add(1);
        value = devices;
        return true;
      });
  if (!noted && g_no_memory.exchange(1) == 0) g_placed_graphs.fetch_add(1);
}

void ExecGone(CUgraphExec exec) {
  uint32_t devices;
  if (g_placed_graphs.load() == 0) return;
  if (g_exec_devices.Take(reinterpret_cast<uint64_t>(exec), &devices)) g_placed_graphs.fetch_sub(1);
}

uint32_t FindDevicesOfExec(CUgraphExec exec) {
  uint32_t devices = 0;
  const bool found = g_exec_devices.Find(reinterpret_cast<uint64_t>(exec), [&](uint32_t value) {
    devices = value;
    return true;
  });
  return found || g_no_memory.load() == 0 ? devices : DevicesWithContexts();
}

}  // namespace prorata::client
