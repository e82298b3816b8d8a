#pragma once

#include <cstdint>
#include <vector>

#include "generated/cuda_abi.h"

namespace prorata::simgpu::driver {

// What cudart must find about one device, in the order of the ordinals.
struct IntegrityDevice {
  CUuuid uuid;
  int32_t pci_domain;
  int32_t pci_bus;
  int32_t pci_device;
};

struct IntegrityTables {
  const void* runtime_table;    // 6bd5fb6c-...
  const void* integrity_table;  // d4082055-...
  const void* integrity_slot1;
};

// The answer to the driver check that every copy of cudart makes while it starts (facts found by
// probing cudart 11.8 to 13.0 without disassembly; the same construction is described, as seven
// passes, by ZLUDA). A wrong answer makes every runtime call fail with
// cudaErrorSystemDriverMismatch or 103. `pid`, `thread` and the addresses are those of the calling
// process.
void IntegrityAnswer(uint32_t runtime_version, uint64_t unix_time, uint32_t driver_version,
                     uint32_t pid, uint32_t thread, const IntegrityTables& tables,
                     const std::vector<IntegrityDevice>& devices, uint64_t out[2]);

}  // namespace prorata::simgpu::driver
