#pragma once

// The share of this process, for who asks NVML about it. Such a process need not be a member (a
// monitor, nvidia-smi), so this library finds and maps the limits file by itself, and joins
// nothing.

#include <cstdint>

#include "client/nvml/nvml_functions.h"
#include "shm/limits_file.h"

namespace prorata::client {

struct NvmlShare {
  const shm::LimitsFile* limits;
  char folder[512];
};

// nullptr: none is configured, or it cannot be read; then NVML is as it is. The first answer
// stands.
const NvmlShare* TheShare();

inline constexpr uint32_t kNotInShare = ~uint32_t{0};

// Which device of the share a handle is (*index; kNotInShare: of this machine, and not in the
// share). What NVML says of a handle that it does not know, or when it is not initialized.
nvmlReturn_t Locate(const NvmlShare& share, nvmlDevice_t device, uint32_t* index);

struct ShareProcess {
  uint32_t pid;  // as processes beside the caller know it
  uint32_t host_pid;
  uint32_t busy_ppm;
  uint64_t used_bytes;
};

// The share's own processes that have memory on a device, at most kMaxMembers, to `out`.
uint32_t ListProcesses(const NvmlShare& share, uint32_t index, ShareProcess* out);
// The same of all its devices together, every process once.
uint32_t ListAllProcesses(const NvmlShare& share, ShareProcess* out);

}  // namespace prorata::client
