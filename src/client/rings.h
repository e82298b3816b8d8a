#pragma once

// The rings of the process's contexts.

#include "client/fence_ring.h"

namespace prorata::client {

inline constexpr uint32_t kMaxRings = 64;

extern std::atomic<Ring*> g_rings[kMaxRings];

// The ring of a context, made if need be; nullptr: no memory.
Ring* RingOf(CUcontext context, uint32_t device);

}  // namespace prorata::client
