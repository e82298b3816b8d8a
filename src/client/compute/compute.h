#pragma once

// Gating this process's launches by the leases of its share: the machines of device_compute.h with
// the threads and waits of the library. See DESIGN "Device time".

#include <cstdint>

#include "client/compute/device_compute.h"
#include "generated/cuda_abi.h"

namespace prorata::client {

extern DeviceCompute g_compute[protocol::kMaxDevices];
extern Estimates g_estimates;

// Waits until a launch on the device may pass. Holds nothing.
void AwaitLaunch(uint32_t device);

// Helper: looks after fences, leases and the heartbeat; answers when to look again, from now.
int64_t TickCompute(int64_t now_ns);

// The agent is a new one: what was wanted must be said again.
void LeasesRejoined();

// The end of a context, around the driver's call.
void WorkOfContextEnding(CUcontext context);  // nobody touches its events from here ...
void WorkOfContextStays(CUcontext context);   // ... until it turns out that it lives on
void WorkOfContextGone(CUcontext context);
// A context appeared or went: what the default stream means may have changed.
void ForgetStreamCache();

}  // namespace prorata::client
