#include "client/memory/memory.h"

#include "client/memory/charge.h"
#include "client/memory/managed.h"
#include "client/memory/pools.h"
#include "client/memory/sharing.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

constinit Allocations g_allocations;
constinit Slabs g_slabs;
constinit Table<uint64_t> g_numbers;  // of shared allocations, by key

uint64_t LastSlab(uint64_t address, uint64_t bytes) { return (address + bytes - 1) >> kSlabShift; }

// Drops the slabs from `first` up to, not including, `end`; the charge of those that are empty now.
uint64_t DropSlabs(uint64_t first, uint64_t end) {
  uint64_t bytes = 0;
  for (uint64_t slab = first; slab < end; ++slab) {
    if (g_slabs.Drop(slab)) bytes += kSlabBytes;
  }
  return bytes;
}

// What is to be uncharged when the allocation goes.
uint64_t TakeCharge(uint64_t key, const Allocation& allocation) {
  switch (allocation.kind) {
    case Kind::kNone:
      return 0;
    case Kind::kSmall:
      if (allocation.elsewhere != 0) ElsewhereGone(key, allocation);
      return DropSlabs(key >> kSlabShift, LastSlab(key, allocation.bytes) + 1);
    case Kind::kPool:
      PoolAllocationGone(allocation.pool);
      return 0;
    case Kind::kLarge:
      if (allocation.elsewhere != 0) ElsewhereGone(key, allocation);
      return allocation.bytes;
    default:
      return allocation.bytes;
  }
}

// May run under a lock of the allocations; what others hold too is settled later.
void Release(uint64_t key, const Allocation& allocation) {
  if (allocation.kind == Kind::kSparse) SparseArrayGone(key);
  const uint64_t bytes = TakeCharge(key, allocation);
  uint64_t number = 0;
  if (allocation.shared && g_numbers.Take(key, &number)) {
    ReferenceGone(number, allocation.device, bytes);
  } else {
    Uncharge(allocation.device, bytes);
  }
}

// Whether what others hold, too, may have to be settled when it goes.
bool MayHold(const Allocation& allocation) {
  return allocation.shared || allocation.kind == Kind::kSparse;
}

bool Remember(uint64_t key, const Allocation& allocation) {
  Allocation replaced;
  if (!g_allocations.Remember(key, allocation, &replaced)) return false;
  Release(key, replaced);
  if (MayHold(replaced)) SettleReferences();
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
      Uncharge(device, DropSlabs(first, slab));
      return false;
    }
    if (empty) *needed += kSlabBytes;
  }
  return true;
}

}  // namespace

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
  if (MayHold(allocation)) SettleReferences();
}

bool FindAllocation(uint64_t key, Allocation* allocation) {
  return g_allocations.Find(key, [allocation](const Allocation& found) {
    *allocation = found;
    return true;
  });
}

void ChangeAllocation(uint64_t key, void (*change)(Allocation&, void*), void* data) {
  g_allocations.Find(key, [&](Allocation& found) {
    change(found, data);
    return true;
  });
}

uint64_t NumberOfAllocation(uint64_t key) {
  uint64_t number = 0;
  g_numbers.Find(key, [&](const uint64_t& found) {
    number = found;
    return true;
  });
  return number;
}

bool SetNumberOfAllocation(uint64_t key, uint64_t number) {
  return g_allocations.Find(key, [&](Allocation& found) {
    found.shared = g_numbers.Update(key, [&](uint64_t& slot, bool) {
      slot = number;
      return true;
    });
    return true;
  });
}

bool AccountOpened(const Place& place, uint64_t key, uint64_t bytes, uint64_t number) {
  Allocation allocation;
  allocation.context = reinterpret_cast<uint64_t>(place.context);
  allocation.bytes = bytes;
  allocation.device = static_cast<uint8_t>(place.device);
  allocation.kind = Kind::kOpened;
  allocation.times = 1;
  allocation.shared = number != 0;
  // The same address again: the driver only counts. What was charged, or held, for this is given
  // back: it is already.
  const bool again = g_allocations.Find(key, [&](Allocation& found) {
    if (found.kind != Kind::kOpened) return true;
    ++found.times;
    allocation.kind = Kind::kNone;
    return true;
  });
  if (again && allocation.kind == Kind::kNone) {
    if (number != 0) {
      ReferenceGone(number, place.device, bytes);
      SettleReferences();
    } else {
      Uncharge(place.device, bytes);
    }
    return true;
  }
  if (number != 0 && !g_numbers.Update(key, [number](uint64_t& slot, bool) {
        slot = number;
        return true;
      })) {
    ReferenceGone(number, place.device, bytes);
    SettleReferences();
    return false;
  }
  return AccountWhole(key, allocation);
}

void AfterClose(uint64_t key, Allocation allocation, CUresult result) {
  if (allocation.kind == Kind::kOpened && result == CUDA_SUCCESS && allocation.times > 1) {
    --allocation.times;
    result = CUDA_ERROR_INVALID_VALUE;  // it is open still
  }
  AfterFree(key, allocation, result);
}

void MarkMemoryOfContext(CUcontext context, bool dying) {
  g_allocations.MarkContext(reinterpret_cast<uint64_t>(context), dying);
}

void MemoryOfContextGone(CUcontext context) {
  g_allocations.TakeDying(reinterpret_cast<uint64_t>(context), Release);
  SettleReferences();
}

}  // namespace prorata::client
