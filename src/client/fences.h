#pragma once

// The library's fences: those of all contexts of the process. See fence_ring.h.

#include "client/fence_ring.h"

namespace prorata::client {

OpenWork OpenWorkOf(uint32_t device);

// Helper: takes what is done out of all rings.
void HarvestAll();

// Waits until the oldest fence of a device is done, or a millisecond if it cannot be waited for.
void AwaitOldestFence(uint32_t device);

void FencesOfStreamGone(CUstream stream);
void FencesOfContextEnding(CUcontext context);  // nobody touches its events from here ...
void FencesOfContextStay(CUcontext context);    // ... until it turns out that it lives on
void FencesOfContextGone(CUcontext context);
// A context appeared or went: what the default stream means may have changed.
void ForgetStreamCache();

}  // namespace prorata::client
