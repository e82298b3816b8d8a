#pragma once

#include <map>
#include <memory>
#include <vector>

#include "sim/cuda/state.h"

namespace prorata::simgpu::driver {

// A team of devices, and what is bound to it (multicast_abi.cc).
struct Multicast {
  struct Binding {
    uint64_t memory = 0;  // handle
    uint64_t bytes = 0;
  };
  CUmulticastObjectProp prop{};
  std::vector<int> devices;
  std::map<std::pair<int, uint64_t>, Binding> bindings;  // by device and offset
};

// Memory of a device without addresses. What is the process's own is a context's of its device and
// goes with it; what was imported is held by the process.
struct Physical {
  Context* holder = nullptr;  // null: imported
  int device = 0;
  CUmemAllocationProp prop{};
  uint64_t bytes = 0;
  std::vector<Extent> extents;
  Handle share = 0;  // not 0: other processes may hold it, too
  Handle block = 0;
  int handles = 1;
  int mappings = 0;  // and tiles of arrays, and bindings
  uint64_t view = 0;
  std::unique_ptr<Multicast> multicast;  // then it has no memory and no holder

  Physical() = default;
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical();
};

struct Mapping {
  Physical* physical = nullptr;
  uint64_t bytes = 0;
  std::map<int, CUmemAccess_flags> access;  // by device
};

struct Vmm {
  std::map<uint64_t, std::unique_ptr<Physical>> physical;  // by handle
  std::map<uint64_t, uint64_t> reservations;               // address -> bytes
  std::map<uint64_t, Mapping> mappings;                    // by address
};

// All of it. Leaked, like the Driver; D().mutex held.
Vmm& V();

// The memory of a handle that the program still has.
CUresult FindPhysical(uint64_t handle, Physical** out);

// The same; of a multicast object when its team is complete, waiting for that.
CUresult FindWithTeam(uint64_t handle, std::unique_lock<std::mutex>* lock, Physical** out);
// The multicast object goes: nothing is bound to it any more.
void DropBindings(Multicast* multicast);
// One mapping, tile or binding less; it goes with the last, when the program has no handle of it.
void LetGo(Physical* physical);
// All of it mapped at once, for what has no addresses of the program (tiles of arrays); null when
// there are no addresses left for that.
uint8_t* ViewOf(Physical* physical);

// The context goes: the physical memory that it holds becomes the other's. D().mutex held.
void PassMappings(Context* ctx, Context* heir);
// What is left of it leaves the addresses where it is mapped. D().mutex held.
void DropMappings(Context* ctx);
// The reservation around an address; false when it is not reserved. D().mutex held.
bool FindReservation(uint64_t address, uint64_t* base, uint64_t* bytes);

// Whether a device may use the mapped memory at `address`. D().mutex held.
bool MappingAllows(uint64_t address, int device);

}  // namespace prorata::simgpu::driver
