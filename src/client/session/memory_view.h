#pragma once

// What a share shows of its memory. Pure; used for the driver API and for NVML.

#include <cstdint>

namespace prorata::client {

struct MemoryView {
  uint64_t total;
  uint64_t used;  // the share's own, never more than the total
  uint64_t free;  // never more than total - used
};

// `limit` and `used` of the share; `real_*` is what the device says. A share that uses more than
// its limit (which was lowered, or the audit found overhead) is full. A device that has less to
// give than the share has left shows what it has: then used and free do not add up to the total,
// and what is missing is in others' hands.
inline MemoryView ViewMemory(uint64_t limit, uint64_t used, uint64_t real_total,
                             uint64_t real_free) {
  const uint64_t total = limit < real_total ? limit : real_total;
  const uint64_t shown = used < total ? used : total;
  const uint64_t left = total - shown;
  return {total, shown, left < real_free ? left : real_free};
}

}  // namespace prorata::client
