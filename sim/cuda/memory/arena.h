#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "sim/core/types.h"

namespace prorata::simgpu::driver {

// The device addresses of one device in this process: a reserved range of the process's address
// space, in which pieces of the device's memory file are mapped where memory is allocated. So a
// device address can be followed by the CPU (host kernels, copies), is never handed to two devices,
// and costs nothing until it is touched.
//
// Not thread-safe: under the driver's lock.
class Arena {
 public:
  // Reserves `bytes` of addresses, or half of it, and so on, when the process has a limit.
  Arena(int memory_fd, uint64_t bytes, uint64_t slab_bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint64_t slab_bytes() const { return slab_bytes_; }
  bool Contains(uint64_t address) const { return address - base_ < bytes_; }

  // Addresses for `bytes` (rounded up to slabs), aligned to a slab. 0 when there are none left.
  uint64_t Take(uint64_t bytes);
  void Give(uint64_t address, uint64_t bytes);

  // Maps the extents one behind the other at `address`, readable and writable.
  bool Map(uint64_t address, std::span<const Extent> extents);
  // Nothing there any more; the addresses stay reserved.
  void Unmap(uint64_t address, uint64_t bytes);

 private:
  uint64_t RoundUp(uint64_t bytes) const { return (bytes + slab_bytes_ - 1) & ~(slab_bytes_ - 1); }

  int fd_;
  uint64_t base_ = 0;
  uint64_t bytes_ = 0;
  uint64_t slab_bytes_;
  std::map<uint64_t, uint64_t> free_;  // address -> bytes, no two touching
};

// Maps extents of a memory file at any address (VMM), with the protection given.
bool MapExtents(int fd, uint64_t address, std::span<const Extent> extents, int protection);
// Replaces whatever is mapped by inaccessible reserved addresses.
void ReserveAt(uint64_t address, uint64_t bytes);
// Reserves addresses anywhere (or at `hint` when free), aligned. 0 on failure.
uint64_t ReserveAnywhere(uint64_t bytes, uint64_t alignment, uint64_t hint);

}  // namespace prorata::simgpu::driver
