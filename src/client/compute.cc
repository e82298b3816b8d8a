#include "client/compute.h"

#include "client/fences.h"
#include "client/launch_gate.h"
#include "client/lease_tick.h"
#include "client/library_world.h"

namespace prorata::client {

constinit DeviceCompute g_compute[protocol::kMaxDevices];
constinit Estimates g_estimates;
constinit LookTimer g_look_timer(g_compute);

void AwaitLaunch(uint32_t device) {
  LaunchWait wait(device);
  for (;;) {
    const LaunchWait::Next next = wait.Step(g_world);
    switch (next.what) {
      case LaunchWait::Do::kPass:
        return;
      case LaunchWait::Do::kAwaitLease:
        FutexWait(&LimitsOf(device).lease, next.lease, next.timeout_ns);
        break;
      case LaunchWait::Do::kAwaitFence:
        AwaitOldestFence(device);
        break;
    }
  }
}

int64_t TickCompute(int64_t now_ns) {
  HarvestAll();
  const bool silent = Silent(g_world);
  int64_t look_again_ns = LeaseWatch::kSeldomNs;
  for (uint32_t device = 0; device < g_share.device_count; ++device) {
    look_again_ns = Min(look_again_ns, TickDevice(g_world, device, now_ns, silent, OpenWorkOf));
  }
  return look_again_ns;
}

void LeasesRejoined() {
  for (DeviceCompute& compute : g_compute) compute.wanted_plus_1.store(0);
}

}  // namespace prorata::client
