#pragma once

// Gating this process's launches by the leases of its share: the machines of device_compute.h with
// the threads and waits of the library. See DESIGN "Device time".

#include <cstdint>

#include "client/compute/device_compute.h"
#include "generated/cuda_abi.h"

namespace prorata::client {

extern DeviceCompute g_compute[shm::kMaxDevices];
extern Estimates g_estimates;

// Waits until a launch on the device may pass. Holds nothing.
void AwaitLaunch(uint32_t device);

// Helper: looks after fences, leases and the heartbeat; answers when to poll again, from now.
int64_t TickCompute(int64_t now_ns);

// The agent is a new one: what was wanted must be said again.
void LeasesRejoined();

// The end of a context, around the driver's call. The driver gives the handle out again as soon as
// the context is gone, so from its end on another of that handle is another: what is its own is
// known by the number of its ending.
uint32_t WorkOfContextEnding(CUcontext context);  // nobody touches its events from here ...
void WorkOfContextStays(uint32_t ending);         // ... until it turns out that it lives on
void WorkOfContextGone(uint32_t ending);
// A context that others may hold too: nobody touches its events, but it is still the same.
void WorkOfContextPausing(CUcontext context);
void WorkOfContextGoesOn(CUcontext context);
// Those events are left alone by all others now; or a while has passed.
void AwaitUsersOfWork(CUcontext context);
// A context appeared or went: what the default stream means may have changed.
void ForgetStreamCache();

}  // namespace prorata::client
