#pragma once

// Gating this process's launches by the leases of its share: the machines of member_compute.h with
// the threads and waits of the library. See DESIGN "Compute".

#include <cstdint>

#include "client/look_timer.h"
#include "client/member_compute.h"

namespace prorata::client {

extern DeviceCompute g_compute[protocol::kMaxDevices];
extern Estimates g_estimates;
extern LookTimer g_look_timer;

// Waits until a launch on the device may pass. Holds nothing.
void AwaitLaunch(uint32_t device);

// Helper: looks after fences, leases and silence; answers when to look again, from now, if nothing
// puts that off.
int64_t TickCompute(int64_t now_ns);

// The agent is a new one: what was wanted must be said again.
void LeasesRejoined();

}  // namespace prorata::client
