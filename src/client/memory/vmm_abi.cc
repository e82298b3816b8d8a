// Physical memory, its handles and its mappings: charged from cuMemCreate until the driver holds it
// no more. vmm.h says what is counted, and why in this order.

#include "client/memory/allocations.h"
#include "client/memory/charge.h"
#include "client/memory/memory.h"
#include "client/memory/sharing.h"
#include "client/memory/vmm.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

constinit PhysicalRegistry g_registry;

// A sparse array's is its key among the allocations.
uint64_t OwnerKey(const CUarrayMapInfo& info) {
  return info.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
             ? KeyOf(Space::kMipmap, reinterpret_cast<uint64_t>(info.resource.mipmap))
             : KeyOf(Space::kArray, reinterpret_cast<uint64_t>(info.resource.array));
}
uint64_t OwnerKey(uint64_t multicast_record) { return multicast_record | uint64_t{1} << 63; }

void CountOne(const PhysicalRegistry::Gone& gone) {
  if (gone.number != 0) {
    ReferenceGone(gone.number, gone.device, gone.bytes);
  } else {
    Uncharge(gone.device, gone.bytes);
  }
}

// May run under locks of the registry; what other processes hold too is settled after it.
void Count(const PhysicalRegistry::Gone& gone) {
  if (gone.record == 0) return;
  CountOne(gone);
  g_registry.OwnerGone(OwnerKey(gone.record), CountOne);
}

void GiveBack(const PhysicalRegistry::Gone& gone) {
  Count(gone);
  SettleReferences();
}

void Drop(uint64_t record) {
  PhysicalRegistry::Gone gone;
  g_registry.Drop(record, 1, &gone);
  GiveBack(gone);
}

bool PutHandle(uint64_t handle, uint64_t record) {
  PhysicalRegistry::Gone gone;
  const bool put = g_registry.PutHandle(handle, record, &gone);
  GiveBack(gone);
  return put;
}

bool PutMapping(uint64_t address, uint64_t bytes, uint64_t record) {
  PhysicalRegistry::Gone gone;
  const bool put = g_registry.PutMapping(address, bytes, record, &gone);
  GiveBack(gone);
  return put;
}

// The driver gave a handle that the registry has no room for: it takes it back. Should it refuse
// that, the hold stays, since the memory does.
CUresult RefuseHandle(CUmemGenericAllocationHandle handle, uint64_t record) {
  if (PRORATA_REAL(cuMemRelease)(handle) == CUDA_SUCCESS) Drop(record);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Memory of another process that nobody in the share pays for is charged by mapping: a record of
// the mapping's own takes the place of the handle's. False: full; nothing is held then.
bool ChargeForeign(uint64_t size, uint64_t* record) {
  const uint32_t device = g_registry.Look(*record).device;
  const uint64_t bytes = ReserveFor(size);
  Drop(*record);
  if (!ChargeOrTrim(device, bytes)) return false;
  *record = g_registry.Make(device, bytes);
  if (*record == 0) Uncharge(device, bytes);
  return *record != 0;
}

// The name of a handle that is passed to another process. False: it cannot be known what it
// names.
bool NameOf(const void* handle, CUmemAllocationHandleType type, wire::MemoryName* name) {
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return NameOfDescriptor(*static_cast<const int*>(handle), name);
  }
  if (type != CU_MEM_HANDLE_TYPE_FABRIC) return false;
  *name = NameOfHandle(HandleKind::kFabric, handle, sizeof(CUmemFabricHandle));
  return true;
}

// A handle for others was made of what `handle` refers to.
void NoteExported(CUmemGenericAllocationHandle handle, const void* exported,
                  CUmemAllocationHandleType type) {
  wire::MemoryName name;
  const uint64_t record = g_registry.HoldHandle(handle);
  if (record == 0) return;
  const Physical physical = g_registry.Look(record);
  if (!physical.foreign && NameOf(exported, type, &name)) {
    uint64_t number = physical.number;
    NoteShared(name, physical.device, physical.bytes, &number);
    if (number != physical.number) g_registry.SetNumber(record, number);
  }
  Drop(record);
}

// The device of an imported handle, in the share.
uint32_t DeviceOfHandle(CUmemGenericAllocationHandle handle) {
  CUmemAllocationProp prop = {};
  const OwnCalls own;
  const CUresult result = PRORATA_REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, handle);
  return result == CUDA_SUCCESS && prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE
             ? IndexOf(prop.location.id)
             : kNoDevice;
}

// A record for what was imported, with one hold; 0: no memory for it. *known: there is one to make.
uint64_t RecordOfImport(CUmemGenericAllocationHandle handle, Opening opening, uint64_t number,
                        bool* known) {
  const uint32_t device = DeviceOfHandle(handle);
  *known = number != 0 || device != kNoDevice;
  if (!*known) return 0;
  if (opening == Opening::kUnknown) return g_registry.Make(device, 0, 0, true);
  const uint64_t record = g_registry.HoldNumber(number);
  if (record != 0) {  // imported before, or made here
    if (opening == Opening::kHeld) ReferenceGone(number, 0, 0);
    return record;
  }
  return g_registry.Make(device == kNoDevice ? 0 : device, 0, number);
}

void EndOpening(Opening opening, uint64_t number) {
  if (opening != Opening::kHeld) return;
  ReferenceGone(number, 0, 0);
  SettleReferences();
}

// Binds what the caller holds, `record`, to a multicast object.
template <typename Call>
CUresult Bind(CUmemGenericAllocationHandle multicast, uint64_t record, Call&& call) {
  if (record == 0) return call();
  const uint64_t owner = g_registry.HoldHandle(multicast);
  const CUresult result = call();
  // Where there is no room to remember it, the hold stays for ever: too high, never too low.
  if (result == CUDA_SUCCESS && owner != 0) g_registry.PutKept(OwnerKey(owner), record);
  if (result != CUDA_SUCCESS) Drop(record);
  if (owner != 0) Drop(owner);
  return result;
}

// Tiles of sparse arrays keep what they are mapped to.
template <typename Call>
CUresult MapTiles(const CUarrayMapInfo* list, unsigned int count, Call&& call) {
  if (!Governed() || list == nullptr) return call();
  // Before the call, and kept should it fail.
  for (unsigned int i = 0; i < count; ++i) {
    const CUarrayMapInfo& info = list[i];
    if (info.memOperationType != CU_MEM_OPERATION_TYPE_MAP) continue;
    const uint64_t record = g_registry.HoldHandle(info.memHandle.memHandle);
    if (record != 0) g_registry.PutKept(OwnerKey(info), record);
  }
  return call();
}

}  // namespace

void SparseArrayGone(uint64_t key) { g_registry.OwnerGone(key, CountOne); }

}  // namespace prorata::client

using namespace prorata::client;

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  const auto call = [&] { return PRORATA_REAL(cuMemCreate)(handle, size, prop, flags); };
  if (!Governed() || handle == nullptr || prop == nullptr || size == 0 ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return call();  // memory of the host is not the share's
  }
  const uint32_t device = IndexOf(prop->location.id);
  if (device == kNoDevice) return call();  // not a device; the driver says so
  const InFlightEpoch moving;
  const uint64_t bytes = ReserveFor(size);
  if (!ChargeOrTrim(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t record = g_registry.Make(device, bytes);
  if (record == 0) {
    Uncharge(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    Drop(record);
    return result;
  }
  return PutHandle(*handle, record) ? CUDA_SUCCESS : RefuseHandle(*handle, record);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const auto call = [&] { return PRORATA_REAL(cuMemRelease)(handle); };
  if (!Governed()) return call();
  const InFlightEpoch moving;
  const uint64_t stamp = g_registry.Stamp();
  const CUresult result = call();
  if (result != CUDA_SUCCESS) return result;
  PhysicalRegistry::Gone gone;
  g_registry.Released(handle, stamp, &gone);
  GiveBack(gone);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  const auto call = [&] { return PRORATA_REAL(cuMemRetainAllocationHandle)(handle, addr); };
  if (!Governed() || handle == nullptr) return call();
  const uint64_t record = g_registry.HoldMapped(reinterpret_cast<uint64_t>(addr));
  if (record == 0) return call();
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    Drop(record);
    return result;
  }
  return PutHandle(*handle, record) ? CUDA_SUCCESS : RefuseHandle(*handle, record);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  const auto call = [&] { return PRORATA_REAL(cuMemMap)(ptr, size, offset, handle, flags); };
  if (!Governed() || ptr == 0 || size == 0) return call();
  const InFlightEpoch moving;
  uint64_t record = g_registry.HoldHandle(handle);
  if (record == 0) return call();
  if (g_registry.Look(record).foreign && !ChargeForeign(size, &record))
    return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    Drop(record);
    return result;
  }
  if (PutMapping(ptr, size, record)) return CUDA_SUCCESS;
  if (PRORATA_REAL(cuMemUnmap)(ptr, size) == CUDA_SUCCESS) Drop(record);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  const auto call = [&] { return PRORATA_REAL(cuMemUnmap)(ptr, size); };
  if (!Governed()) return call();
  const InFlightEpoch moving;
  const uint64_t stamp = g_registry.Stamp();
  const CUresult result = call();
  if (result != CUDA_SUCCESS) return result;
  g_registry.Unmapped(ptr, size, stamp, Count);
  SettleReferences();
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType,
                                      unsigned long long flags) {
  const CUresult result =
      PRORATA_REAL(cuMemExportToShareableHandle)(shareableHandle, handle, handleType, flags);
  if (result == CUDA_SUCCESS && Governed() && shareableHandle != nullptr) {
    NoteExported(handle, shareableHandle, handleType);
  }
  return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                        CUmemAllocationHandleType shHandleType) {
  const auto call = [&] {
    return PRORATA_REAL(cuMemImportFromShareableHandle)(handle, osHandle, shHandleType);
  };
  if (!Governed() || handle == nullptr) return call();
  if (Live() != kGoverned) return CUDA_ERROR_OUT_OF_MEMORY;
  const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(osHandle));
  const bool is_descriptor = shHandleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (!is_descriptor && osHandle == nullptr) return call();
  prorata::wire::MemoryName name;
  uint64_t number = 0;
  Opening opening = Opening::kUnknown;
  if (NameOf(is_descriptor ? &descriptor : osHandle, shHandleType, &name)) {
    opening = BeginOpening(name, &number);
  }
  if (opening == Opening::kRefused) return CUDA_ERROR_NOT_PERMITTED;
  if (opening == Opening::kUnknown) number = 0;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    EndOpening(opening, number);
    return result;
  }
  bool known = false;
  const uint64_t record = RecordOfImport(*handle, opening, number, &known);
  if (!known) return CUDA_SUCCESS;
  if (record != 0) {
    return PutHandle(*handle, record) ? CUDA_SUCCESS : RefuseHandle(*handle, record);
  }
  PRORATA_REAL(cuMemRelease)(*handle);
  EndOpening(opening, number);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// A multicast object takes no memory of its own; what is bound to it does not go before it.
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* mcHandle,
                           const CUmulticastObjectProp* prop) {
  const auto call = [&] { return PRORATA_REAL(cuMulticastCreate)(mcHandle, prop); };
  if (!Governed() || mcHandle == nullptr) return call();
  const uint64_t record = g_registry.Make(0, 0);
  if (record == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    Drop(record);
    return result;
  }
  return PutHandle(*mcHandle, record) ? CUDA_SUCCESS : RefuseHandle(*mcHandle, record);
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags) {
  const auto call = [&] {
    return PRORATA_REAL(cuMulticastBindMem)(mcHandle, mcOffset, memHandle, memOffset, size, flags);
  };
  return Governed() ? Bind(mcHandle, g_registry.HoldHandle(memHandle), call) : call();
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                             CUdeviceptr memptr, size_t size, unsigned long long flags) {
  const auto call = [&] {
    return PRORATA_REAL(cuMulticastBindAddr)(mcHandle, mcOffset, memptr, size, flags);
  };
  return Governed() ? Bind(mcHandle, g_registry.HoldMapped(memptr), call) : call();
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo* mapInfoList, unsigned int count, CUstream hStream) {
  return MapTiles(mapInfoList, count,
                  [&] { return PRORATA_REAL(cuMemMapArrayAsync)(mapInfoList, count, hStream); });
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* mapInfoList, unsigned int count,
                                 CUstream hStream) {
  return MapTiles(mapInfoList, count, [&] {
    return PRORATA_REAL(cuMemMapArrayAsync_ptsz)(mapInfoList, count, hStream);
  });
}
