// Access of one device to another's memory.
//
// A context may use a peer's memory once it was enabled: that is checked where the driver itself
// looks at addresses (fills, copies of boxes, words). What a kernel is given, it can use: the
// simulated GPU has no page tables of its own.

#include "sim/cuda/copy/peer.h"

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/pool.h"
#include "sim/cuda/memory/vmm.h"

namespace prorata::simgpu::driver {

int OrdinalOf(int machine_device, int otherwise) {
  const auto& visible = D().machine_index;
  for (size_t ordinal = 0; ordinal < visible.size(); ++ordinal) {
    if (visible[ordinal] == machine_device) return static_cast<int>(ordinal);
  }
  return otherwise;
}

bool LinkedForPeers(int device, int peer) {
  const auto& index = D().machine_index;
  return device != peer &&
         D().machine->config().LinkBetween(index[device], index[peer]).peer_access();
}

bool Reaches(const Context* ctx, const Memory& memory, uint64_t address) {
  if (Broken(Rule::kPeerAccessIsEnabled)) return true;
  if (memory.kind == Memory::Kind::kMapped) return MappingAllows(address, ctx->device);
  if (memory.kind == Memory::Kind::kImported) return memory.ctx->device == ctx->device;
  const bool on_one_device = memory.on_device() && memory.kind != Memory::Kind::kManaged;
  if (!on_one_device || memory.device == ctx->device) return true;
  // Memory of graphs has no pool of the program's.
  if (memory.kind == Memory::Kind::kPool) {
    return memory.pool == nullptr || memory.pool->peers.contains(ctx->device);
  }
  return ctx->peers.contains(memory.ctx);
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (CUresult result = EnterDevice(peerDev)) return result;
  if (!canAccessPeer) return CUDA_ERROR_INVALID_VALUE;
  *canAccessPeer = LinkedForPeers(dev, peerDev) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                 CUdevice dstDevice) {
  if (CUresult result = EnterDevice(srcDevice)) return result;
  if (CUresult result = EnterDevice(dstDevice)) return result;
  if (srcDevice == dstDevice) return CUDA_ERROR_INVALID_DEVICE;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const auto& index = D().machine_index;
  const LinkConfig& link = D().machine->config().LinkBetween(index[srcDevice], index[dstDevice]);
  switch (attrib) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:  // less is better
      *value = link.type == LinkType::kNvlink ? 0 : 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = link.peer_access() ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      *value = link.type == LinkType::kNvlink ? 1 : 0;
      return CUDA_SUCCESS;
    default:
      break;
  }
  if (attrib < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK) return CUDA_ERROR_INVALID_VALUE;
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Context* peer;
  if (!peerContext) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult result = LiveContext(peerContext, &peer)) return result;
  if (peer == ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (!LinkedForPeers(ctx->device, peer->device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const bool fresh = ctx->peers.insert(peer).second;
  return fresh || Broken(Rule::kPeerAccessOnce) ? CUDA_SUCCESS
                                                : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  std::lock_guard lock(D().mutex);
  Context* peer;
  if (!peerContext) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult result = LiveContext(peerContext, &peer)) return result;
  return ctx->peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
