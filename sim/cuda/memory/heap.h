#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <vector>

#include "sim/core/types.h"

namespace prorata::simgpu {
class Machine;
}

namespace prorata::simgpu::driver {

class Arena;

// The plain allocations of one context. As far as is known of the driver: small ones share slabs of
// 2 MiB, aligned to 512 bytes; larger ones have slabs of their own, and so addresses aligned to
// them; a slab goes back to the device the moment it is empty, so memory that is freed can be had
// by another process at once.
//
// Not thread-safe: under the driver's lock.
class Heap {
 public:
  static constexpr uint64_t kAlignment = 512;
  static constexpr uint64_t kSmallLimit = uint64_t{1} << 20;  // larger ones get their own slabs

  Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  void Open(Machine* machine, Handle context, Arena* arena);

  // kOk and the address; kOutOfMemory when device or addresses are used up.
  Code Allocate(uint64_t bytes, uint64_t* address);
  // Slabs of its own whatever the size, for pools and arrays of chunks.
  Code AllocateSlabs(uint64_t bytes, uint64_t* address);
  // `address` must come from this heap. False when it does not.
  bool Free(uint64_t address);
  // A name by which other processes may hold the slabs that `address` is in.
  Code Export(uint64_t address, uint64_t bytes, const ShareName& pool, ShareName* name);
  // What AllocateSlabs gave becomes another heap's of the same device; addresses and bytes stay.
  // False, and nothing changed, when other processes may hold it.
  bool Move(uint64_t address, Heap* to);
  // Unmaps everything; the slabs themselves go with the machine's context.
  void Close();

 private:
  static constexpr unsigned kUnits = 4096;  // 512-byte units of a 2 MiB slab

  struct Range {
    uint64_t bytes = 0;
    std::vector<Extent> extents;
    Handle share = 0;  // not 0: other processes may hold it, too
  };
  struct Slab {
    std::bitset<kUnits> used;
    unsigned used_units = 0;
  };

  Code NewRange(uint64_t bytes, uint64_t* address);
  void DropRange(std::map<uint64_t, Range>::iterator range);
  static int FindUnits(const Slab& slab, unsigned units);
  uint64_t PlaceSmall(uint64_t slab_address, Slab* slab, unsigned at, unsigned units);

  Machine* machine_ = nullptr;
  Handle context_ = 0;
  Arena* arena_ = nullptr;
  std::map<uint64_t, Range> ranges_;    // all mapped ranges, by address
  std::map<uint64_t, Slab> slabs_;      // those of them that small allocations share
  std::map<uint64_t, unsigned> small_;  // address -> units
};

}  // namespace prorata::simgpu::driver
