#pragma once

// What the helper does for one device each time it polls: finds out what is done, brings the usage
// memory up to date, and reports to the agent what LeaseWatch finds worth it.

#include "client/compute/work_tracker.h"

namespace prorata::client {

// Who holds a share to its limit: the agent, or, in failsafe mode, each member its own part. Then
// nobody schedules, and all that have work are on the device at once: this member's part of the
// time in which it was busy is what its kernels were measured or estimated to take, but no less
// than if so many shared the device equally.
inline constexpr uint32_t kFailsafeCrowd = 4;
template <typename World>
void KeepFailsafe(World& world, const shm::DeviceLimits& limits, const shm::DeviceUsage& usage,
                  DeviceCompute& compute, int64_t now_ns, bool lost) {
  const uint64_t occupied_ns = usage.occupied_ns.load(std::memory_order_relaxed);
  const uint64_t measured_ns = usage.device_time_ns.load(std::memory_order_relaxed);
  const int64_t heartbeat_lost_ns = world.HeartbeatLostNs();
  // Other threads observe the heartbeat too, so it may be a while since it was seen to move.
  if (heartbeat_lost_ns == 0 || now_ns - heartbeat_lost_ns > compute.looked_ns) {
    compute.part_ns = compute.used_ns = 0;
    compute.measured_ns = measured_ns;
  } else {
    compute.part_ns +=
        (occupied_ns - compute.occupied_ns) / Max(kFailsafeCrowd, ContextsAtWork(limits, compute));
  }
  compute.looked_ns = world.NowNs();
  compute.occupied_ns = occupied_ns;
  const uint64_t used_ns = Max(measured_ns - compute.measured_ns, compute.part_ns);
  compute.crowded.store(lost ? 1 : 0, std::memory_order_relaxed);
  const bool failsafe =
      lost && limits.compute_limit_ppm.load(std::memory_order_relaxed) < 1'000'000;
  if (failsafe && compute.failsafe.load(std::memory_order_relaxed) == 0) {
    compute.bucket.Begin(now_ns, heartbeat_lost_ns, used_ns, PartPpm(limits));
  } else if (failsafe && used_ns > compute.used_ns) {
    compute.bucket.Spend(used_ns - compute.used_ns);
  }
  compute.used_ns = used_ns;
  compute.failsafe.store(failsafe ? 1 : 0, std::memory_order_relaxed);
}

// Whether it matters now what is done of what no fence is behind: else it is enough to know now and
// then.
inline bool MustKnow(const shm::DeviceLimits& limits, const DeviceCompute& compute, uint32_t lease,
                     int64_t now_ns) {
  if ((lease & shm::kLeaseOpen) == 0) return true;
  const bool matters = (lease & shm::kLeaseContended) != 0 ||
                       compute.failsafe.load(std::memory_order_relaxed) != 0 ||
                       limits.compute_limit_ppm.load(std::memory_order_relaxed) < 1'000'000;
  // While there is fenced work for longer, the device is not idle whatever is behind it.
  if (matters) return compute.backlog.StillNs(now_ns) < 2 * kFenceAtNs;
  return now_ns - compute.tails_ns >= LeaseWatch::kIdlePollNs;
}

// Answers when to poll again, from now: the caller writes that down as `looks_by_ns` before it
// sleeps. Helper only.
template <typename World>
int64_t TickDevice(World& world, uint32_t device, int64_t now_ns, bool lost) {
  const shm::DeviceLimits& limits = world.Limits(device);
  shm::DeviceUsage& usage = world.Usage(device);
  DeviceCompute& compute = world.Compute(device);
  const uint32_t lease = limits.lease.load();  // first (work.h, 4)
  const bool tails = MustKnow(limits, compute, lease, now_ns);
  WorkTracker<World> tracker(world);
  OpenWork open;
  bool any_open = false;
  uint32_t late = 0;
  bool all_polled = true;  // else another thread is at it
  world.ForEachWork(device, [&](ContextWork& work) {
    all_polled &= tracker.Poll(&work);
    late += tracker.LateLaunches(&work, now_ns);
    if (tails) any_open |= tracker.FenceTails(&work, now_ns);
    open.Add(work);
  });
  if (tails && !any_open) compute.tails_ns = now_ns;
  const uint32_t all_launching = compute.launching.load();
  const bool launching = all_launching > late;
  const bool occupied = launching || compute.occupancy.reasons() != 0;
  const bool blocked = !occupied && (compute.blocked.load() != 0 || all_launching != 0);
  const bool at_bound = compute.at_bound.load() != 0;
  const bool busy = occupied || blocked;
  compute.contexts.store(open.contexts, std::memory_order_relaxed);
  usage.launches.store(compute.launches.load(std::memory_order_relaxed) + open.launches,
                       std::memory_order_relaxed);
  usage.persistent_ns.store(open.persistent_ns, std::memory_order_relaxed);
  const uint64_t still_ns = compute.backlog.StillNs(now_ns) + open.ns;
  const int64_t ended_ns = compute.occupancy.ended_ns();
  // Above 0 until all is proven done, however much longer it takes than was expected.
  usage.backlog_ns.store(!busy ? 0 : still_ns > 0 ? still_ns : 1, std::memory_order_relaxed);
  usage.expected_end_ns.store(busy ? now_ns + static_cast<int64_t>(still_ns) : ended_ns,
                              std::memory_order_relaxed);
  // Of work that is in no stream of this device it is not known when it was submitted.
  if (compute.occupancy.reasons() > open.streams) open.oldest_ns = 0;
  if (all_polled) compute.occupancy.Settle(usage, open.oldest_ns, open.ns, now_ns);
  compute.occupancy.Publish(usage, now_ns);
  KeepFailsafe(world, limits, usage, compute, now_ns, lost);
  const int64_t submitted_ns = compute.submitted_ns.load(std::memory_order_relaxed);
  const int64_t fences_end_ns = compute.backlog.end_ns();
  const LeaseWatch::Act act = compute.watch.Step(
      {.now_ns = now_ns,
       .lease = lease,
       .busy = busy,
       .about_to = launching || usage.waiting.load() != 0 || at_bound,
       .at_bound = at_bound,
       .open = open.launches != 0 && compute.backlog.StillNs(now_ns) < kFenceAtNs,
       .persistent = open.persistent_ns != 0,
       .blocked = blocked,
       // What a stream's kernels took beside other streams' is known within bounds only.
       .erratic = now_ns < compute.erratic_until_ns.load(std::memory_order_relaxed) ||
                  ((lease & shm::kLeaseOpen) == 0 && compute.occupancy.reasons() > 1),
       .failsafe = compute.failsafe.load(std::memory_order_relaxed) != 0,
       .last_work_ns = submitted_ns > ended_ns ? submitted_ns : ended_ns,
       .end_ns = still_ns > 0 ? now_ns + static_cast<int64_t>(still_ns) : fences_end_ns,
       .batches = compute.batches.load(std::memory_order_relaxed),
       .idle_report_ns = int64_t{limits.idle_report_us.load(std::memory_order_relaxed)} * 1000});
  // The agent sees in the usage what it is.
  usage.blocked.store(act.blocked ? 1 : 0);
  const bool was_away =
      shm::IsLate(usage.looks_by_ns.load(), now_ns) && (busy || usage.waiting.load() != 0);
  if (act.poll || was_away) world.Send(wire::MessageType::kLeaseIdle, {device, 0});
  if (act.drained) {
    usage.drained_sequence.store(act.sequence);
    world.Send(wire::MessageType::kLeaseDrained, {device, act.sequence});
  }
  if (act.idle) world.Send(wire::MessageType::kLeaseIdle, {device, act.sequence});
  return act.poll_again_ns;
}

}  // namespace prorata::client
