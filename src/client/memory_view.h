#pragma once

// What a share shows of its memory. Pure; used for the driver API and for NVML.

#include <cstdint>

namespace prorata::client {

struct MemoryView {
  uint64_t total;
  uint64_t free;
};

// `limit` and `granted` of the share; `mine` and `used` are this member's grant and use (both 0 for
// a process that is no member); `real_*` is what the device says. What other members hold of their
// grants beyond their use counts as taken: it is theirs until the agent recalls it.
inline MemoryView ViewMemory(uint64_t limit, uint64_t granted, uint64_t mine, uint64_t used,
                             uint64_t real_total, uint64_t real_free) {
  const uint64_t total = limit < real_total ? limit : real_total;
  uint64_t free = limit > granted ? limit - granted : 0;
  if (mine > used) free += mine - used;
  if (free > total) free = total;
  if (free > real_free) free = real_free;
  return {total, free};
}

}  // namespace prorata::client
