#pragma once

// What members are charged for on a device, by their own words as far as they were granted: to be
// set beside what NVML shows.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "agent/share/shares.h"

namespace prorata::agent {

// A process as a member that lives, in all shares: one that became another program by exec may be
// in two.
uint64_t ChargedToLiving(const Shares& shares, pid_t pid, size_t device);
// Whether a process became another program by exec, and its memory of before may not be gone yet.
bool HasDepartedTwin(const Shares& shares, pid_t pid, size_t device);
// All members of all shares, the dead too.
uint64_t ChargedOn(const Shares& shares, size_t device);

}  // namespace prorata::agent
