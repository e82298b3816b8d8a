#pragma once

// What the kinds have in common; the list of them is Kinds() in worker.h.

#include "worker.h"

namespace prorata::stress {

inline uint64_t Slabs(uint64_t bytes) {
  constexpr uint64_t kSlab = 2 << 20;
  return (bytes + kSlab - 1) / kSlab * kSlab;
}

CUmemAllocationProp PhysicalProperties(CUdevice device);

// Maps physical memory. The handle is the result's, or released if that is none; now and then it is
// released at once, and the mapping alone holds the memory.
std::optional<Held> Map(Worker& worker, CUmemGenericAllocationHandle handle, uint64_t bytes);

// shared_kinds.cc
std::optional<Held> IpcExport(Worker& worker);
std::optional<Held> IpcImport(Worker& worker);
std::optional<Held> VmmExport(Worker& worker);
std::optional<Held> VmmImport(Worker& worker);

}  // namespace prorata::stress
