// Memory and events of other processes: cuIpc*.
//
// A handle is the name of an export in the machine's shared state (core/machine_shared.cc). Memory
// that is opened is the same pages of the device's file, mapped once more: what is written through
// one address is there at the other.

#include "sim/cuda/memory/ipc.h"

#include <sys/mman.h>

#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/copy/peer.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/memory.h"

namespace prorata::simgpu::driver {
namespace {

// Memory that a context has opened.
struct Opened {
  Context* ctx = nullptr;
  Handle name = 0;  // the export's handle
  Handle share = 0;
  uint64_t mapping = 0;
  uint64_t mapped_bytes = 0;
  int times = 1;
};

// By the address that the program got. Leaked, like the Driver.
std::map<uint64_t, Opened>& O() {
  static auto* const opened = new std::map<uint64_t, Opened>;
  return *opened;
}

struct Packed {
  uint64_t magic;
  uint32_t kind;
  uint32_t unused;
  Handle handle;
  uint64_t cookie;
};
constexpr uint64_t kMagic = 0x31637069'6d697370;  // "psimipc1"

uint64_t MappedBytesOf(const SharedMemory& shared) {
  uint64_t bytes = 0;
  for (const Extent& extent : shared.extents) bytes += extent.length_bytes;
  return bytes;
}

// What the machine has to forget goes with the share; what the process has mapped goes first.
void Close(std::map<uint64_t, Opened>::iterator opened) {
  munmap(reinterpret_cast<void*>(opened->second.mapping), opened->second.mapped_bytes);
  D().machine->DropShare(opened->second.share);
  D().memory.erase(opened->first);
  O().erase(opened);
}

}  // namespace

void PutName(IpcKind kind, const ShareName& name, void* handle) {
  const Packed packed = {kMagic, static_cast<uint32_t>(kind), 0, name.handle, name.cookie};
  std::memset(handle, 0, 64);
  std::memcpy(handle, &packed, sizeof packed);
}

bool TakeName(IpcKind kind, const void* handle, ShareName* name) {
  Packed packed;
  std::memcpy(&packed, handle, sizeof packed);
  *name = {packed.handle, packed.cookie};
  return packed.magic == kMagic && packed.kind == static_cast<uint32_t>(kind);
}

CUresult FromImportCode(Code code) {
  return code == Code::kOwn ? CUDA_ERROR_INVALID_CONTEXT : FromCode(code);
}

uint64_t MapShared(const SharedMemory& shared) {
  const uint64_t bytes = MappedBytesOf(shared);
  const uint64_t slab = D().machine->device(shared.device).slab_bytes;
  const uint64_t address = ReserveAnywhere(bytes, slab, 0);
  if (address == 0) return 0;
  const int fd = D().machine->memory_fd(shared.device);
  if (MapExtents(fd, address, shared.extents, PROT_READ | PROT_WRITE)) return address;
  munmap(reinterpret_cast<void*>(address), bytes);
  return 0;
}

void DropIpcMemory(Context* ctx) {
  for (auto at = O().begin(); at != O().end();) {
    const auto opened = at++;
    if (opened->second.ctx == ctx) Close(opened);
  }
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult Open(CUdeviceptr* dptr, Context* ctx, const ShareName& name, bool enable_peer) {
  for (auto& [address, opened] : O()) {
    if (opened.name != name.handle) continue;
    // "may only be opened by one CUcontext per CUdevice per other process"
    const bool elsewhere = opened.ctx != ctx && opened.ctx->device == ctx->device;
    if (elsewhere && !Broken(Rule::kIpcOneContext)) return CUDA_ERROR_INVALID_CONTEXT;
    if (opened.ctx != ctx) continue;
    if (!Broken(Rule::kIpcOpensAreCounted)) ++opened.times;
    *dptr = address;
    return CUDA_SUCCESS;
  }
  const auto shared = D().machine->Import(name, D().process, ctx->handle);
  if (!shared) return FromImportCode(shared.error());
  CUresult result = CUDA_SUCCESS;
  const int here = D().machine_index[ctx->device];
  if (shared->device != here) {
    const bool reachable = D().machine->config().LinkBetween(here, shared->device).peer_access();
    if (!reachable || !enable_peer) result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  const uint64_t mapping = result == CUDA_SUCCESS ? MapShared(*shared) : 0;
  if (mapping == 0) {
    D().machine->DropShare(shared->share);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_MAP_FAILED;
  }
  Memory memory;
  memory.kind = Memory::Kind::kImported;
  memory.base = mapping + shared->offset_bytes;
  memory.bytes = shared->length_bytes;
  memory.ctx = ctx;
  memory.device = OrdinalOf(shared->device, ctx->device);
  AddMemory(memory);
  O()[memory.base] = {ctx, name.handle, shared->share, mapping, MappedBytesOf(*shared), 1};
  *dptr = memory.base;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!pHandle) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  // Of an address inside an allocation: the allocation's, as programs rely on that ask for its
  // range beside it (UCX, NCCL).
  Memory* memory = FindMemory(dptr);
  if (!memory || memory->kind != Memory::Kind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  if (memory->name.handle == 0) {
    const Code code = memory->ctx->heap.Export(memory->base, memory->bytes, {}, &memory->name);
    if (code != Code::kOk) return FromCode(code);
  }
  PutName(IpcKind::kMemory, memory->name, pHandle->reserved);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  if (!pdptr || (Flags & ~unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS})) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ShareName name;
  if (!TakeName(IpcKind::kMemory, handle.reserved, &name)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  return Open(pdptr, ctx, name, (Flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

// Waits for the context first, as cuMemFree does: work that was submitted may still use the memory.
CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  Handle handle;
  {
    std::lock_guard lock(D().mutex);
    const auto opened = O().find(dptr);
    if (opened == O().end()) return CUDA_ERROR_INVALID_VALUE;
    if (opened->second.times > 1) return --opened->second.times, CUDA_SUCCESS;
    handle = opened->second.ctx->handle;
  }
  D().machine->WaitContext(handle);
  std::lock_guard lock(D().mutex);
  const auto opened = O().find(dptr);
  if (opened == O().end()) return CUDA_ERROR_INVALID_VALUE;
  if (--opened->second.times == 0) Close(opened);
  return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event_handle) {
  if (CUresult result = EnterCall()) return result;
  if (!pHandle) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  EventRef event;
  if (CUresult result = FindEvent(event_handle, &event)) return result;
  if (!(event->flags & CU_EVENT_INTERPROCESS) && !Broken(Rule::kIpcEventNeedsItsFlag)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const auto name = D().machine->ExportEvent(event->handle);
  if (!name) return FromCode(name.error());
  PutName(IpcKind::kEvent, *name, pHandle->reserved);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  ShareName name;
  if (!phEvent) return CUDA_ERROR_INVALID_VALUE;
  if (!TakeName(IpcKind::kEvent, handle.reserved, &name)) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(D().mutex);
  const auto share = D().machine->OpenEvent(name, ctx->handle);
  if (!share) {
    // One that was destroyed is no handle any more.
    const bool gone = share.error() == Code::kInvalidValue;
    return gone ? CUDA_ERROR_INVALID_HANDLE : FromImportCode(share.error());
  }
  auto event = std::make_shared<Event>();
  event->ctx = ctx;
  event->handle = name.handle;
  event->share = *share;
  event->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  *phEvent = reinterpret_cast<CUevent>(event.get());
  D().events[event.get()] = std::move(event);
  return CUDA_SUCCESS;
}
