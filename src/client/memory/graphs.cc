#include "client/memory/graphs.h"

#include "client/memory/allocations.h"
#include "client/memory/pools.h"
#include "client/platform/os.h"
#include "client/session/graph_nodes.h"
#include "client/session/share.h"

namespace prorata::client {

std::atomic<uint32_t> g_allocating_graphs;

namespace {

// What an executable graph may take on one device.
struct ExecMemory {
  uint64_t bytes = 0;
  uint64_t trims = 0;  // of the device at its last launch; 0: it was not launched yet
};
constinit Table<ExecMemory> g_execs;  // by executable graph and device
std::atomic<bool> g_allocates;

struct OfDevice {
  std::atomic<uint64_t> trims{1};
  std::atomic<uint32_t> launching{0};
};
OfDevice g_devices[shm::kMaxDevices];

// Addresses are multiples of 16, devices fewer.
static_assert(shm::kMaxDevices <= 16);
uint64_t ExecKey(CUgraphExec exec, uint32_t device) {
  return reinterpret_cast<uint64_t>(exec) << 4 | device;
}

struct Sum {
  uint64_t bytes[shm::kMaxDevices] = {};
  bool any = false;
};

void AddNode(CUgraphNode node, CUgraphNodeType type, Sum* sum) {
  if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return;
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  if (PRORATA_REAL(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS ||
      params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return;
  }
  const uint32_t device = IndexOf(params.poolProps.location.id);
  if (device == kNoDevice) return;
  sum->bytes[device] += RoundUp(params.bytesize, kSlabBytes);
  sum->any = true;
}

// Raises `launching` and reserves what the pool may grow by. False: refused, and nothing is left of
// it.
bool ReserveOn(uint32_t device, uint64_t bytes, uint64_t trims_seen, GraphReservation* out) {
  OfDevice& of = g_devices[device];
  of.launching.fetch_add(1);
  out->trims[device] = of.trims.load();
  const uint32_t number = PoolNumber(GraphPool(device), device);
  const bool grows = trims_seen != out->trims[device];
  // While it is reserved for, a trim for its own sake is welcome: what it takes is not counted yet.
  if (grows) of.launching.fetch_sub(1);
  if (number == kNoPool || (grows && !ReservePoolBytes(number, bytes, &out->pending[device]))) {
    if (!grows) of.launching.fetch_sub(1);
    return false;
  }
  if (grows) {
    of.launching.fetch_add(1);
    out->trims[device] = of.trims.load();
  }
  out->devices |= 1U << device;
  return true;
}

void SettleOn(const GraphReservation& reservation) {
  for (uint32_t device = 0; device < g_share.device_count; ++device) {
    if ((reservation.devices >> device & 1) == 0) continue;
    SettlePool(PoolNumber(GraphPool(device), device), reservation.pending[device]);
    g_devices[device].launching.fetch_sub(1);
  }
}

}  // namespace

void GraphAllocates() { g_allocates.store(true, std::memory_order_relaxed); }

CUresult InstantiateGraph(CUgraphExec* exec, CUgraph graph, bool uploads, CUresult (*call)(void*),
                          void* data) {
  const auto real = [&] { return call(data); };
  if (!Governed() || !g_allocates.load(std::memory_order_relaxed) || exec == nullptr) {
    return real();
  }
  Sum sum;
  {
    const OwnCalls own;
    const Visited visited = ForEachNode(
        graph, [&](CUgraphNode node, CUgraphNodeType type) { AddNode(node, type, &sum); });
    // What it allocates is not known, so it must not be had. A graph whose nodes the driver does
    // not list is none, or one that it refuses to instantiate.
    if (visited == Visited::kNoMemory) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!sum.any) return real();
  const InFlightEpoch moving;
  GraphReservation reservation;
  for (uint32_t device = 0; uploads && device < g_share.device_count; ++device) {
    if (sum.bytes[device] == 0 || ReserveOn(device, sum.bytes[device], 0, &reservation)) continue;
    SettleOn(reservation);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = real();
  if (result == CUDA_SUCCESS) {
    for (uint32_t device = 0; device < g_share.device_count; ++device) {
      if (sum.bytes[device] == 0) continue;
      g_execs.Update(ExecKey(*exec, device), [&](ExecMemory& memory, bool made) {
        if (made) g_allocating_graphs.fetch_add(1);
        memory = {sum.bytes[device], reservation.trims[device]};
        return true;
      });
    }
  }
  SettleOn(reservation);
  return result;
}

void GraphExecGone(CUgraphExec exec) {
  if (g_allocating_graphs.load() == 0) return;
  for (uint32_t device = 0; device < g_share.device_count; ++device) {
    ExecMemory gone;
    if (g_execs.Take(ExecKey(exec, device), &gone)) g_allocating_graphs.fetch_sub(1);
  }
}

bool ReserveGraph(CUgraphExec exec, GraphReservation* reservation) {
  for (uint32_t device = 0; device < g_share.device_count; ++device) {
    ExecMemory memory;
    const bool known = g_execs.Find(ExecKey(exec, device), [&](const ExecMemory& found) {
      memory = found;
      return true;
    });
    if (!known || ReserveOn(device, memory.bytes, memory.trims, reservation)) continue;
    SettleOn(*reservation);
    return false;
  }
  return true;
}

void SettleGraph(CUgraphExec exec, const GraphReservation& reservation, bool success) {
  for (uint32_t device = 0; success && device < g_share.device_count; ++device) {
    if ((reservation.devices >> device & 1) == 0) continue;
    g_execs.Find(ExecKey(exec, device), [&](ExecMemory& memory) {
      memory.trims = reservation.trims[device];
      return true;
    });
  }
  SettleOn(reservation);
}

bool MayTrimGraphs(uint32_t device) {
  g_devices[device].trims.fetch_add(1);
  return g_devices[device].launching.load() == 0;
}

CUresult TrimGraphs(CUdevice ordinal) {
  const uint32_t device = Governed() ? IndexOf(ordinal) : kNoDevice;
  const InFlightEpoch moving;
  if (device != kNoDevice) MayTrimGraphs(device);
  const CUresult result = PRORATA_REAL(cuDeviceGraphMemTrim)(ordinal);
  if (device != kNoDevice) SettlePoolHandle(GraphPool(device));
  return result;
}

}  // namespace prorata::client
