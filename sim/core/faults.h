#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

// Faults that the machine's file tells the simulated GPU to have: [[faults]] tables, described in
// docs/reference/simulated-gpu.md. The core has those that concern a device (lost, stalled); the
// driver room has those that concern a process's calls, and decides when the core's happen that are
// tied to a launch.

namespace prorata::simgpu {

enum class FaultKind : uint8_t {
  kAllocationRefused,  // out of memory, though there is some
  kContextError,       // a kernel ends in an error that stays
  kDeviceLost,         // off the bus, until the machine is made anew
  kSlow,               // kernels and copies take `factor` times as long
  kStall,              // the device does nothing for `for_ns`
  kInitFails,          // cuInit
  kLateLaunch,         // a launch reaches the device, and returns, late
  kHang,               // likewise, and no call of its process that looks anything up returns before
};

struct FaultConfig {
  FaultKind kind = FaultKind::kAllocationRefused;
  int device = -1;           // index in the machine; -1: any
  std::string process;       // name of the program's file; empty: any
  uint32_t nth_process = 0;  // of those that match, in the order of their cuInit; 0: all
  uint64_t nth = 1;          // allocation, launch or call that begins it, counted per process
  uint64_t count = 1;        // so many of them
  uint64_t above_bytes = 0;  // allocations larger than this only
  int64_t after_ns = -1;     // model time since the machine was made; -1: by launch
  int64_t for_ns = 0;        // kStall, kLateLaunch, kHang
  double factor = 1;         // kSlow
  std::string error;         // name of a CUresult
};

inline constexpr size_t kMaxFaults = 32;

// The text of one [[faults]] table has been parsed: `node` is its toml::table. Here untyped, so
// that users of this header need not parse TOML.
Result<FaultConfig> ReadFault(const void* table, const std::string& where);

// Every setting of every fault, for MachineConfig's canonical text.
std::string CanonicalText(const std::vector<FaultConfig>& faults);

}  // namespace prorata::simgpu
