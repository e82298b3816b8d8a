#include "client/memory/managed.h"

#include <atomic>

#include "client/memory/charge.h"
#include "client/memory/memory.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

// What of an allocation is charged on devices other than Allocation::device. Of a small one: 1
// where it is counted in its slabs.
struct Elsewhere {
  uint64_t bytes[shm::kMaxDevices];
};
// By Allocation::elsewhere, a number of its own: an address may be given out again before what was
// there is released.
constinit Table<Elsewhere> g_elsewhere;
std::atomic<uint32_t> g_next;
constinit Table<uint32_t> g_slab_counts;  // of small ones, by slab and device

static_assert(shm::kMaxDevices <= 16);
uint64_t SlabKey(uint64_t slab, uint32_t device) { return slab << 4 | device; }

uint64_t FirstSlab(uint64_t base) { return base >> kSlabShift; }
uint64_t EndSlab(uint64_t base, uint64_t bytes) { return (base + bytes - 1) / kSlabBytes + 1; }

// Counts the allocation in its slabs there; the charge of those that were empty.
uint64_t AddSlabs(uint64_t base, uint64_t bytes, uint32_t device) {
  uint64_t needed = 0;
  for (uint64_t slab = FirstSlab(base); slab < EndSlab(base, bytes); ++slab) {
    g_slab_counts.Update(SlabKey(slab, device), [&](uint32_t& count, bool) {
      if (count++ == 0) needed += kSlabBytes;
      return true;
    });
  }
  return needed;
}

uint64_t DropSlabs(uint64_t base, uint64_t bytes, uint32_t device) {
  uint64_t freed = 0;
  for (uint64_t slab = FirstSlab(base); slab < EndSlab(base, bytes); ++slab) {
    g_slab_counts.Find(SlabKey(slab, device), [&](uint32_t& count) {
      if (--count == 0) freed += kSlabBytes;
      return count != 0;
    });
  }
  return freed;
}

// Gives back what is charged on all devices but `kept`.
void LeaveOthers(uint64_t base, const Allocation& allocation, uint32_t kept, Elsewhere* elsewhere) {
  for (uint32_t device = 0; device < g_share.device_count; ++device) {
    uint64_t& bytes = elsewhere->bytes[device];
    if (bytes == 0 || device == kept) continue;
    const bool small = allocation.kind == Kind::kSmall;
    Uncharge(device, small ? DropSlabs(base, allocation.bytes, device) : bytes);
    bytes = 0;
  }
}

// `charged` becomes `needed`.
void Correct(uint32_t device, uint64_t charged, uint64_t needed) {
  if (charged > needed) Uncharge(device, charged - needed);
  if (charged < needed) ChargeTaken(device, needed - charged);
}

// The table of the allocations is locked. Another thread may have moved it since it was reserved.
void Enter(const Prefetch& prefetch, Allocation* allocation, Elsewhere* elsewhere) {
  const uint32_t device = prefetch.device;
  uint64_t& there = elsewhere->bytes[device];
  if (allocation->device == device) {
    Uncharge(device, prefetch.charged);
  } else if (allocation->kind == Kind::kSmall) {
    const uint64_t needed = there != 0 ? 0 : AddSlabs(prefetch.base, allocation->bytes, device);
    Correct(device, prefetch.charged, needed);
    there = 1;
  } else if (prefetch.whole) {
    Correct(device, there + prefetch.charged, allocation->bytes);
    Uncharge(allocation->device, allocation->bytes);
    allocation->device = static_cast<uint8_t>(device);
    there = 0;
  } else {
    const uint64_t needed = Min(there + prefetch.charged, allocation->bytes);
    Correct(device, there + prefetch.charged, needed);
    there = needed;
  }
  if (prefetch.whole) LeaveOthers(prefetch.base, *allocation, device, elsewhere);
}

}  // namespace

bool ReservePrefetch(CUdeviceptr address, uint64_t bytes, uint32_t device, Prefetch* out) {
  CUdeviceptr base = 0;
  size_t size = 0;
  Allocation allocation;
  {
    const OwnCalls own;
    if (PRORATA_REAL(cuMemGetAddressRange_v2)(&base, &size, address) != CUDA_SUCCESS) return true;
  }
  if (bytes == 0 || bytes > size - (address - base)) return true;  // see managed.h
  if (!FindAllocation(KeyOf(Space::kPointer, base), &allocation)) return true;
  if (allocation.shared || (allocation.kind != Kind::kLarge && allocation.kind != Kind::kSmall)) {
    return true;
  }
  Elsewhere elsewhere{};
  g_elsewhere.Find(allocation.elsewhere, [&](const Elsewhere& found) {
    elsewhere = found;
    return true;
  });
  const uint64_t there = elsewhere.bytes[device];
  const uint64_t slabs = EndSlab(address, bytes) - FirstSlab(address);
  uint64_t needed = 0;
  if (allocation.device != device) {
    needed = allocation.kind == Kind::kLarge
                 ? Min(slabs * kSlabBytes, allocation.bytes - Min(there, allocation.bytes))
             : there != 0 ? 0
                          : (EndSlab(base, size) - FirstSlab(base)) * kSlabBytes;
  }
  if (needed != 0 && !ChargeOrTrim(device, needed)) return false;
  *out = {base, needed, device, address == base && bytes == size};
  return true;
}

void SettlePrefetch(const Prefetch& prefetch, bool success) {
  if (prefetch.base == 0) return;
  bool entered = false;
  auto enter = [&](Allocation& allocation) {
    if (allocation.kind != Kind::kLarge && allocation.kind != Kind::kSmall) return;
    while (allocation.elsewhere == 0) allocation.elsewhere = g_next.fetch_add(1) + 1;
    // Without memory to remember it in it stays charged on both.
    g_elsewhere.Update(allocation.elsewhere, [&](Elsewhere& elsewhere, bool) {
      Enter(prefetch, &allocation, &elsewhere);
      return true;
    });
    entered = true;
  };
  if (success) ChangeAllocation(KeyOf(Space::kPointer, prefetch.base), enter);
  if (!entered) Uncharge(prefetch.device, prefetch.charged);
}

void ElsewhereGone(uint64_t key, const Allocation& allocation) {
  Elsewhere elsewhere;
  if (!g_elsewhere.Take(allocation.elsewhere, &elsewhere)) return;
  LeaveOthers(key, allocation, kNoDevice, &elsewhere);
}

}  // namespace prorata::client
