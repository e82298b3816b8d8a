#include "client/memory.h"

#include "client/charge.h"
#include "client/pools.h"
#include "client/share.h"

namespace prorata::client {
namespace {

constinit Allocations g_allocations;
constinit Slabs g_slabs;

uint64_t LastSlab(uint64_t address, uint64_t bytes) { return (address + bytes - 1) >> kSlabShift; }

// Drops the slabs from `first` up to, not including, `end`.
void DropSlabs(uint32_t device, uint64_t first, uint64_t end) {
  for (uint64_t slab = first; slab < end; ++slab) {
    if (g_slabs.Drop(slab)) Uncharge(device, kSlabBytes);
  }
}

void Release(uint64_t key, const Allocation& allocation) {
  switch (allocation.kind) {
    case Kind::kNone:
      return;
    case Kind::kSmall:
      DropSlabs(allocation.device, key >> kSlabShift, LastSlab(key, allocation.bytes) + 1);
      return;
    case Kind::kPool:
      PoolAllocationGone();
      return;
    default:
      Uncharge(allocation.device, allocation.bytes);
  }
}

bool Remember(uint64_t key, const Allocation& allocation) {
  Allocation replaced;
  if (!g_allocations.Remember(key, allocation, &replaced)) return false;
  Release(key, replaced);
  return true;
}

// Counts a small allocation in its slab, or, where a driver lets one straddle, in each of them.
// *needed: the charge of the slabs that were empty. False: no memory, nothing counted.
bool AddSlabs(uint32_t device, uint64_t address, uint64_t bytes, uint64_t* needed) {
  *needed = 0;
  const uint64_t first = address >> kSlabShift, last = LastSlab(address, bytes);
  for (uint64_t slab = first; slab <= last; ++slab) {
    bool empty = false;
    if (!g_slabs.Add(slab, &empty)) {
      ChargeTaken(device, *needed);  // so that DropSlabs may give back what was not charged yet
      DropSlabs(device, first, slab);
      return false;
    }
    if (empty) *needed += kSlabBytes;
  }
  return true;
}

}  // namespace

uint32_t CurrentDevice() { return CurrentPlace().device; }

Place CurrentPlace() {
  Place place;
  if (PRORATA_REAL(cuCtxGetCurrent)(&place.context) != CUDA_SUCCESS || place.context == nullptr) {
    return {};
  }
  place.device = g_share.ordinals == 1 ? IndexOf(0) : DeviceOfCurrent(place.context);
  if (g_green_contexts.load(std::memory_order_relaxed) != 0) [[unlikely]]
    place.context = OwnerOf(place.context);
  return place;
}

uint32_t DeviceOfStream(CUstream stream, const Place& current) {
  const bool of_current = reinterpret_cast<uint64_t>(stream) <= 2;  // a default stream
  if (g_share.ordinals == 1 || of_current) return current.device;
  const OwnCalls own;
  CUcontext context = nullptr;
  // A driver that does not know the stream refuses the allocation itself.
  if (PRORATA_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS ||
      context == current.context || PRORATA_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) {
    return current.device;
  }
  const uint32_t device = DeviceOfCurrent(context);
  PRORATA_REAL(cuCtxPopCurrent_v2)(&context);
  return device;
}

uint64_t ReserveFor(uint64_t bytes) {
  if (bytes < kSlabBytes) return kSlabBytes;
  return bytes > ~uint64_t{0} - kSlabBytes ? ~uint64_t{0} : RoundUp(bytes, kSlabBytes);
}

bool AccountLinear(const Place& place, uint64_t address, uint64_t bytes, uint64_t reserved) {
  Allocation allocation;
  allocation.context = reinterpret_cast<uint64_t>(place.context);
  allocation.device = static_cast<uint8_t>(place.device);
  allocation.kind = bytes < kSlabBytes ? Kind::kSmall : Kind::kLarge;
  allocation.bytes = bytes < kSlabBytes ? bytes : RoundUp(bytes, kSlabBytes);
  uint64_t needed = allocation.bytes;
  if (allocation.kind == Kind::kSmall && !AddSlabs(place.device, address, bytes, &needed)) {
    Uncharge(place.device, reserved);
    return false;
  }
  // From here the slabs that were empty count `needed`, and `reserved` is what is charged for it.
  bool covered = true;
  if (needed < reserved) Uncharge(place.device, reserved - needed);
  if (needed > reserved && !ChargeOrTrim(place.device, needed - reserved)) {
    ChargeTaken(place.device, needed - reserved);
    covered = false;
  }
  if (covered && Remember(address, allocation)) return true;
  Release(address, allocation);
  return false;
}

bool AccountWhole(uint64_t key, const Allocation& allocation) {
  if (Remember(key, allocation)) return true;
  Release(key, allocation);
  return false;
}

Allocation ForgetForFree(uint64_t key) {
  Allocation allocation;
  g_allocations.Forget(key, &allocation);
  return allocation;
}

void AfterFree(uint64_t key, const Allocation& allocation, CUresult result) {
  if (allocation.kind == Kind::kNone) return;
  if (result == CUDA_SUCCESS || !Remember(key, allocation)) Release(key, allocation);
}

void MarkMemoryOfContext(CUcontext context, bool dying) {
  g_allocations.MarkContext(reinterpret_cast<uint64_t>(context), dying);
}

void MemoryOfContextGone(CUcontext context) {
  g_allocations.TakeDying(reinterpret_cast<uint64_t>(context), Release);
}

}  // namespace prorata::client
