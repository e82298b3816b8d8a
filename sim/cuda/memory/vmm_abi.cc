// Virtual memory management: physical memory, reserved addresses, and the one mapped at the other.
//
// The machine accounts memory to contexts, so physical memory is held by a context of the process
// on its device (the primary one if it lives) and goes with it; a device outlives contexts here.

#include "sim/cuda/memory/vmm.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/copy/peer.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/pool.h"

namespace prorata::simgpu::driver {
namespace {

void DropIfUnused(Physical* physical) {
  if (physical->handles > 0 || physical->mappings > 0) return;
  if (physical->multicast) {
    DropBindings(physical->multicast.get());
  } else if (physical->share != 0) {
    D().machine->DropShare(physical->share);
  } else if (physical->holder->alive) {
    D().machine->FreeSlabs(physical->holder->handle, physical->extents);
  }
  std::erase_if(V().physical, [&](const auto& entry) { return entry.second.get() == physical; });
}

// The reservation that holds the whole range.
bool IsReserved(uint64_t address, uint64_t bytes) {
  auto after = V().reservations.upper_bound(address);
  if (after == V().reservations.begin()) return false;
  const auto& [base, size] = *std::prev(after);
  return address - base <= size && bytes <= size - (address - base);
}

bool OverlapsMapping(uint64_t address, uint64_t bytes) {
  auto at = V().mappings.lower_bound(address);
  if (at != V().mappings.end() && at->first < address + bytes) return true;
  return at != V().mappings.begin() && std::prev(at)->first + std::prev(at)->second.bytes > address;
}

// The mappings that make up exactly the range; empty when they do not.
std::vector<uint64_t> MappingsOf(uint64_t address, uint64_t bytes) {
  std::vector<uint64_t> out;
  while (bytes > 0) {
    auto found = V().mappings.find(address);
    if (found == V().mappings.end() || found->second.bytes > bytes) return {};
    out.push_back(address);
    address += found->second.bytes;
    bytes -= found->second.bytes;
  }
  return out;
}

std::vector<Extent> FirstBytes(const std::vector<Extent>& extents, uint64_t bytes) {
  std::vector<Extent> out;
  for (const Extent& extent : extents) {
    if (bytes == 0) break;
    out.push_back({extent.offset_bytes, std::min(extent.length_bytes, bytes)});
    bytes -= out.back().length_bytes;
  }
  return out;
}

void Unmap(uint64_t address) {
  auto mapping = V().mappings.find(address);
  ReserveAt(address, mapping->second.bytes);
  Physical* physical = mapping->second.physical;
  V().mappings.erase(mapping);
  D().memory.erase(address);
  LetGo(physical);
}

CUresult CheckProp(const CUmemAllocationProp* prop) {
  if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  // Fabric handles need a fabric, the others another operating system.
  if (prop->requestedHandleTypes & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return EnterDevice(prop->location.id);
}

}  // namespace

Vmm& V() {
  static Vmm* const vmm = new Vmm;
  return *vmm;
}

Physical::~Physical() {
  if (view != 0) munmap(reinterpret_cast<void*>(view), bytes);
}

void LetGo(Physical* physical) {
  --physical->mappings;
  DropIfUnused(physical);
}

uint8_t* ViewOf(Physical* physical) {
  if (physical->view == 0) {
    const uint64_t address = ReserveAnywhere(physical->bytes, D().config(0).slab_bytes, 0);
    if (address == 0) return nullptr;
    const int fd = D().machine->memory_fd(D().machine_index[physical->device]);
    if (!MapExtents(fd, address, physical->extents, PROT_READ | PROT_WRITE)) {
      munmap(reinterpret_cast<void*>(address), physical->bytes);
      return nullptr;
    }
    physical->view = address;
  }
  return reinterpret_cast<uint8_t*>(physical->view);
}

CUresult FindPhysical(uint64_t handle, Physical** out) {
  auto found = V().physical.find(handle);
  if (found == V().physical.end() || found->second->handles == 0) return CUDA_ERROR_INVALID_VALUE;
  *out = found->second.get();
  return CUDA_SUCCESS;
}

bool MappingAllows(uint64_t address, int device) {
  auto after = V().mappings.upper_bound(address);
  if (after == V().mappings.begin()) return false;
  const auto& [base, mapping] = *std::prev(after);
  const auto access = mapping.access.find(device);
  return address - base < mapping.bytes && access != mapping.access.end() &&
         access->second != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

bool FindReservation(uint64_t address, uint64_t* base, uint64_t* bytes) {
  auto after = V().reservations.upper_bound(address);
  if (after == V().reservations.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  if (address - start >= size) return false;
  *base = start;
  *bytes = size;
  return true;
}

void PassMappings(Context* ctx, Context* heir) {
  for (const auto& [handle, physical] : V().physical) {
    if (physical->holder != ctx) continue;
    const Code code = physical->share != 0
                          ? D().machine->PassShare(physical->share, heir->handle)
                          : D().machine->MoveSlabs(ctx->handle, heir->handle, physical->extents);
    if (code == Code::kOk) physical->holder = heir;
  }
  for (const auto& [address, mapping] : V().mappings) {
    if (mapping.physical->holder == heir) D().memory[address].ctx = heir;
  }
}

void DropMappings(Context* ctx) {
  std::vector<uint64_t> mapped;
  for (const auto& [address, mapping] : V().mappings) {
    if (mapping.physical->holder == ctx) mapped.push_back(address);
  }
  for (uint64_t address : mapped) Unmap(address);
  std::erase_if(V().physical, [&](const auto& entry) { return entry.second->holder == ctx; });
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags) {
  if (CUresult result = EnterCall()) return result;
  if (!granularity) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CheckProp(prop)) return result;
  *granularity = D().config(prop->location.id).slab_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  if (CUresult result = EnterCall()) return result;
  if (!handle || size == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CheckProp(prop)) return result;
  const int device = prop->location.id;
  if (size % D().config(device).slab_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Context* holder = HolderFor(device);
  if (!holder) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult result = ErrorOf(*holder)) return result;
  if (RefusesAllocation(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto extents = D().machine->AllocSlabs(holder->handle, size);
  if (!extents && extents.error() == Code::kOutOfMemory) {
    TrimPools(device, true);
    extents = D().machine->AllocSlabs(holder->handle, size);
  }
  if (!extents) return FromCode(extents.error());
  auto physical = std::make_unique<Physical>();
  physical->holder = holder;
  physical->device = device;
  physical->prop = *prop;
  physical->bytes = size;
  physical->extents = std::move(*extents);
  *handle = D().next_id++;
  V().physical[*handle] = std::move(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Physical* physical;
  if (CUresult result = FindPhysical(handle, &physical)) return result;
  --physical->handles;
  DropIfUnused(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  if (CUresult result = EnterCall()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  auto after = V().mappings.upper_bound(AddressOf(addr));
  if (after == V().mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto& [address, mapping] = *std::prev(after);
  if (AddressOf(addr) - address >= mapping.bytes) return CUDA_ERROR_INVALID_VALUE;
  for (auto& [known, physical] : V().physical) {
    if (physical.get() != mapping.physical) continue;
    ++physical->handles;
    *handle = known;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  if (CUresult result = EnterCall()) return result;
  if (!prop) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Physical* physical;
  if (CUresult result = FindPhysical(handle, &physical)) return result;
  if (physical->multicast) return CUDA_ERROR_INVALID_VALUE;
  *prop = physical->prop;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  if (CUresult result = EnterCall()) return result;
  const uint64_t slab = D().config(0).slab_bytes;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (!ptr || size == 0 || size % page != 0 || addr % page != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t address = ReserveAnywhere(size, std::max<uint64_t>(alignment, slab), addr);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(D().mutex);
  V().reservations[address] = size;
  *ptr = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  auto found = V().reservations.find(ptr);
  if (found == V().reservations.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
  if (OverlapsMapping(ptr, size) && !Broken(Rule::kMappedStaysReserved)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  V().reservations.erase(found);
  munmap(reinterpret_cast<void*>(ptr), size);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  if (CUresult result = EnterCall()) return result;
  if (offset != 0 || flags != 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(D().mutex);
  Physical* physical;
  if (CUresult result = FindWithTeam(handle, &lock, &physical)) return result;
  const int device = physical->device;
  const uint64_t slab = D().config(device).slab_bytes;
  if (size > physical->bytes || size % slab != 0 || ptr % slab != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!IsReserved(ptr, size) || OverlapsMapping(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
  const int fd = D().machine->memory_fd(D().machine_index[device]);
  const bool open = Broken(Rule::kMappingsAreClosed) && !physical->multicast;
  // Not accessible until cuMemSetAccess.
  if (!physical->multicast && !MapExtents(fd, ptr, FirstBytes(physical->extents, size),
                                          open ? PROT_READ | PROT_WRITE : PROT_NONE)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++physical->mappings;
  V().mappings[ptr] = {physical, size, {}};
  if (open) {
    V().mappings[ptr].access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  Memory memory;
  memory.kind = Memory::Kind::kMapped;
  memory.base = ptr;
  memory.bytes = size;
  memory.ctx = physical->holder;
  memory.device = device;
  memory.readable = open;
  AddMemory(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  if (CUresult result = EnterCall()) return result;
  std::vector<Handle> users;
  {
    std::lock_guard lock(D().mutex);
    const auto mapped = MappingsOf(ptr, size);
    if (mapped.empty()) {
      return Broken(Rule::kUnmapsWhole) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    const Context* holder = V().mappings[mapped.front()].physical->holder;
    for (const Context* ctx : D().contexts) {
      if (ctx->alive && (holder == nullptr || holder == ctx)) users.push_back(ctx->handle);
    }
  }
  for (const Handle ctx : users) D().machine->WaitContext(ctx);  // work may still use it
  std::lock_guard lock(D().mutex);
  for (uint64_t address : MappingsOf(ptr, size)) Unmap(address);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  if (CUresult result = EnterCall()) return result;
  if (!desc || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  const auto mapped = MappingsOf(ptr, size);
  if (mapped.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult result = EnterDevice(desc[i].location.id)) return result;
    const auto flags = static_cast<CUmemAccess_flags>(desc[i].flags);
    for (uint64_t address : mapped) {
      Mapping& mapping = V().mappings[address];
      const int device = mapping.physical->device;
      if (device != desc[i].location.id && !LinkedForPeers(desc[i].location.id, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      mapping.access[desc[i].location.id] = flags;
      if (mapping.physical->multicast) continue;  // there is nothing to reach
      // The process has one set of pages for all devices: what any of them may do.
      int protection = PROT_NONE;
      for (const auto& [unused, each] : mapping.access) {
        if (each == CU_MEM_ACCESS_FLAGS_PROT_READ) protection |= PROT_READ;
        if (each == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_READ | PROT_WRITE;
      }
      if (mprotect(reinterpret_cast<void*>(address), mapping.bytes, protection) != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
      }
      D().memory[address].readable = protection != PROT_NONE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  if (CUresult result = EnterCall()) return result;
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  auto after = V().mappings.upper_bound(ptr);
  if (after == V().mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto& [base, mapping] = *std::prev(after);
  if (ptr - base >= mapping.bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto access = location->type == CU_MEM_LOCATION_TYPE_DEVICE
                          ? mapping.access.find(location->id)
                          : mapping.access.end();
  *flags = access != mapping.access.end() ? access->second : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}
