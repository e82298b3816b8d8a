#pragma once

// The member's side of the memory ledger: steps M1 to M3 of shm/usage_file.h, on two words
// that the agent shares. Pure: no I/O, no lock; thread-safe.

#include <atomic>
#include <cstdint>

namespace prorata::client {

// Charges `bytes` to `used` if it then stays within `grant`. False: nothing is charged, and *wanted
// is what `used` would have had to reach. All seq_cst: M2 must not be read before M1 is seen by
// all.
inline bool TryCharge(std::atomic<uint64_t>* used, const std::atomic<uint64_t>* grant,
                      uint64_t bytes, uint64_t* wanted) {
  // A word that other threads write too is fetched once, to be written, not first to be read.
  __builtin_prefetch(used, 1);
  uint64_t before = used->load();
  do {
    *wanted = before + bytes;
    if (*wanted < bytes) {  // more than there are addresses
      *wanted = ~uint64_t{0};
      return false;
    }
    if (*wanted > grant->load()) return false;
  } while (!used->compare_exchange_weak(before, before + bytes));  // M1
  if (before + bytes <= grant->load()) return true;  // M2, M3
  used->fetch_sub(bytes);  // the agent recalled meanwhile; it has left those bytes in the grant
  return false;
}

}  // namespace prorata::client
