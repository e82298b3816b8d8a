#pragma once

// Managed memory on a share of several devices. The driver moves its pages to whoever touches them,
// without a call that we could see; what a call says is a prefetch. So each allocation is charged
// where it is taken to be:
//
//   A. from its making, all of it on the device that was current then, though nothing of it is
//      there before it is touched;
//   B. prefetched as a whole to another device: all of it there, and nowhere else any more;
//   C. prefetched in part: the part there as well, the sum of all parts being the whole at most.
//      Where the rest is left nobody says, so A or B stays charged for all;
//   D. prefetched to the host: as before, for the next access of a device brings it back.
//
// What a device's accesses bring without a prefetch the audit finds, and what a prefetch brings
// whose range is not within one allocation (a driver may allow that). A small allocation shares its
// slab with others, so it is charged by slabs wherever it goes, and stays charged where it was
// made.

#include <cstdint>

#include "client/memory/allocations.h"
#include "client/session/driver_functions.h"

namespace prorata::client {

// One range of a prefetch.
struct Prefetch {
  uint64_t base = 0;  // of the allocation; 0: nothing to account for
  uint64_t charged = 0;
  uint32_t device = 0;
  bool whole = false;
};

// Before and after the driver's call. False: refused, and nothing is charged.
bool ReservePrefetch(CUdeviceptr address, uint64_t bytes, uint32_t device, Prefetch* out);
void SettlePrefetch(const Prefetch& prefetch, bool success);

// The allocation at `key` is gone: what it is charged on other devices is given back. May run under
// a lock of the allocations.
void ElsewhereGone(uint64_t key, const Allocation& allocation);

}  // namespace prorata::client
