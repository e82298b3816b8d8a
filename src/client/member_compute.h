#pragma once

// What one member keeps to gate its launches on one device, and what the machines that use it need
// of the world. The machines are launch_gate.h (may a launch pass, and what to wait for),
// launch_steps.h (a launch's way), fence_machine.h (how far the device has come) and lease_tick.h
// (what to tell the agent). They hold no clock, thread, socket or driver, and block nowhere: the
// client library gives them its own (library_world.h), the one-process simulation one simulated
// member each (tests/simulation/).
//
//   struct World {
//     int64_t NowNs();
//     int64_t AgentSilentNs();                   // for how long it has certainly been silent
//     const protocol::DeviceLimits& Limits(uint32_t device);
//     protocol::DeviceUsage& Usage(uint32_t device);
//     DeviceCompute& Compute(uint32_t device);
//     Estimates& estimates();
//     bool Send(protocol::MessageType, const protocol::LeaseEvent&);  // false: not connected
//     // Helper: writes look_ns and look_by_ns of the device; true: launches can move the look. And
//     // a launch: its look is to be then, if it may be moved yet. Each as a whole.
//     bool PlanLook(uint32_t device, int64_t at_ns, int64_t by_ns);
//     void MoveLook(uint32_t device, int64_t at_ns);
//     struct OwnCalls { explicit OwnCalls(World&); };   // around driver calls of our own making
//     bool CreateEvent(CUevent*);                 // once for a slot; these belong to the context
//     bool Record(const StreamRecord&, CUevent);
//     bool Pending(CUevent);                      // recorded, and the device is not past it
//     bool Elapsed(CUevent from, CUevent to, int64_t* ns);   // false: the driver does not say
//   };
//
// Everything is thread-safe unless it says who calls it. Freestanding.

#include <atomic>
#include <cstdint>

#include "client/backlog.h"
#include "client/contexts_once.h"
#include "client/estimates.h"
#include "client/idle_gaps.h"
#include "client/lease_watch.h"
#include "client/silence.h"
#include "protocol/limits_file.h"
#include "protocol/usage_file.h"
#include "protocol/wire.h"

namespace prorata::client {

struct alignas(64) DeviceCompute {
  Backlog backlog;
  LocalBucket bucket;
  // While the agent is silent the lease word says nothing about the limit: launches also ask the
  // bucket. Set and cleared by the helper.
  std::atomic<uint32_t> local_rule;
  // Nobody takes turns while the agent is silent: what runs beside this member's work is in its
  // elapsed times, from which nothing is learned then. Set and cleared by the helper.
  std::atomic<uint32_t> crowded;
  uint64_t time_at_beat_ns = 0;    // device time when the heartbeat last moved; helper only
  std::atomic<uint64_t> launches;  // of batches that were fenced
  std::atomic<uint32_t> unknown;   // fenced batches with a launch of unknown length
  std::atomic<uint32_t> at_bound;  // threads that wait for a fence, with the backlog at its bound
  ContextsOnce contexts;
  IdleGaps gaps;
  std::atomic<uint64_t> wanted_plus_1;   // last sequence that kLeaseWanted was sent for
  std::atomic<uint32_t> begun_sequence;  // last lease under which a batch was begun
  // At its last look, the estimate of what was behind no fence; no more than a batch.
  std::atomic<int64_t> tail_ns;
  // When the helper looks next, and until when launches may put that off; 0: they may not move it.
  std::atomic<int64_t> look_ns;
  std::atomic<int64_t> look_by_ns;
  LeaseWatch watch;  // helper only
};

inline uint32_t SequenceOf(uint32_t lease) { return lease >> protocol::kLeaseSequenceShift; }

// The bound of fenced work under this lease word.
inline uint64_t BoundNs(const protocol::DeviceLimits& limits, uint32_t lease) {
  const auto& bound = (lease & protocol::kLeaseContended) != 0 ? limits.backlog_contended_us
                                                               : limits.backlog_alone_us;
  return uint64_t{bound.load(std::memory_order_relaxed)} * 1000;
}

// The agent's heartbeat has stopped: leases say nothing any more.
template <typename World>
bool Silent(World& world) {
  return world.AgentSilentNs() >= static_cast<int64_t>(protocol::kAgentSilentAfterNs);
}

// What this member may use of the device while the agent is silent: its part of the share's limit.
inline uint32_t PartPpm(const protocol::DeviceLimits& limits) {
  const uint32_t limit = limits.compute_limit_ppm.load(std::memory_order_relaxed);
  const uint32_t members = limits.active_members.load(std::memory_order_relaxed);
  return limit < 1'000'000 && members > 1 ? limit / members : limit;
}

// After so long without work this member is idle. Where kernels wait for peers on other devices a
// pause is not the program's own.
inline int64_t IdleReportNs(const protocol::DeviceLimits& limits, const DeviceCompute& compute) {
  const auto most_ns = int64_t{limits.idle_report_us.load(std::memory_order_relaxed)} * 1000;
  const bool soon = IdleGaps::kSoonNs < most_ns && compute.gaps.AreLong() &&
                    limits.closely.load(std::memory_order_relaxed) == 0;
  return soon ? IdleGaps::kSoonNs : most_ns;
}

// Contexts with work on the device, this member's own included, so far as is known: each has its
// slices of it in turn.
inline uint32_t ContextsAtWork(const protocol::DeviceLimits& limits, const DeviceCompute& compute) {
  const uint32_t members = limits.members_at_work.load(std::memory_order_relaxed);
  const uint32_t own = compute.contexts.at_work();
  return (members > 1 ? members - 1 : 0) + (own > 1 ? own : 1);
}

// Measured device time of this member.
template <typename World>
void ChargeDevice(World& world, uint32_t device, uint64_t busy_ns) {
  world.Usage(device).device_time_ns.fetch_add(busy_ns, std::memory_order_relaxed);
  DeviceCompute& compute = world.Compute(device);
  if (compute.local_rule.load(std::memory_order_relaxed) != 0) compute.bucket.Spend(busy_ns);
}

}  // namespace prorata::client
