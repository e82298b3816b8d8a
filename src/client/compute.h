#pragma once

// Gating launches by the lease of a device. See DESIGN "Compute" and fences.h.

#include <atomic>
#include <cstdint>

#include "client/backlog.h"
#include "client/estimates.h"
#include "client/share.h"
#include "client/silence.h"

namespace prorata::client {

struct alignas(64) DeviceCompute {
  Backlog backlog;
  LocalBucket bucket;
  // While the agent is silent the lease word says nothing about the limit: launches also ask the
  // bucket. Set and cleared by the helper.
  std::atomic<uint32_t> local_rule;
  std::atomic<uint64_t> launches;       // of batches that were fenced
  std::atomic<uint64_t> wanted_plus_1;  // last sequence that kLeaseWanted was sent for
};
extern DeviceCompute g_compute[protocol::kMaxDevices];
extern Estimates g_estimates;

// The bound of fenced work under this lease word.
inline uint64_t BoundNs(const protocol::DeviceLimits& limits, uint32_t lease) {
  const auto& bound = (lease & protocol::kLeaseContended) != 0 ? limits.backlog_contended_us
                                                               : limits.backlog_alone_us;
  return uint64_t{bound.load(std::memory_order_relaxed)} * 1000;
}

// The agent's heartbeat has stopped: leases say nothing any more. Looks at the clock.
bool AgentSilent();

// Whether the lease, or the local rule, lets launches pass; the backlog apart.
inline bool LeaseAllows(const protocol::DeviceLimits& limits) {
  return (limits.lease.load() & protocol::kLeaseOpen) != 0 || AgentSilent();
}

// Whether a launch may pass at once: the lease is open, the backlog below its bound, and no local
// rule is in force.
inline bool MayLaunch(const protocol::DeviceLimits& limits, const DeviceCompute& compute) {
  const uint32_t lease = limits.lease.load(std::memory_order_acquire);
  return (lease & protocol::kLeaseOpen) != 0 &&
         compute.local_rule.load(std::memory_order_relaxed) == 0 &&
         !compute.backlog.Full(BoundNs(limits, lease));
}

// Waits until a launch on the device may pass. Holds nothing.
void AwaitLaunch(uint32_t device);

// Measured device time of this member.
void ChargeDevice(uint32_t device, uint64_t busy_ns);

// Helper: looks after fences, leases and silence; answers when to look again, from now.
int64_t TickCompute(int64_t now_ns);

// The agent is a new one: what was wanted must be said again.
void LeasesRejoined();

}  // namespace prorata::client
