#pragma once

// What the helper does for one device each time it looks: brings the usage memory up to date, and
// tells the agent what LeaseWatch finds worth telling.

#include "client/fence_ring.h"
#include "client/member_compute.h"

namespace prorata::client {

// Who holds a share to its limit: the agent, or, while it is silent, each member its own part.
template <typename World>
void KeepLocalRule(World& world, const protocol::DeviceLimits& limits,
                   const protocol::DeviceUsage& usage, DeviceCompute& compute, int64_t now_ns,
                   bool silent) {
  const uint64_t used_ns = usage.device_time_ns.load(std::memory_order_relaxed);
  const int64_t silent_ns = world.AgentSilentNs();
  if (silent_ns == 0) compute.time_at_beat_ns = used_ns;
  compute.crowded.store(silent ? 1 : 0, std::memory_order_relaxed);
  const bool local = silent && limits.compute_limit_ppm.load(std::memory_order_relaxed) < 1'000'000;
  if (local && compute.local_rule.load(std::memory_order_relaxed) == 0) {
    compute.bucket.Begin(now_ns, silent_ns, used_ns - compute.time_at_beat_ns, PartPpm(limits));
  }
  compute.local_rule.store(local ? 1 : 0, std::memory_order_relaxed);
}

// `look` gives the OpenWork of the device, and is called after the lease was read: the lease first,
// then the work (StreamRecord::launching says why). Answers when to look again, from now. Helper
// only.
template <typename World, typename Look>
int64_t TickDevice(World& world, uint32_t device, int64_t now_ns, bool silent, Look&& look) {
  const protocol::DeviceLimits& limits = world.Limits(device);
  protocol::DeviceUsage& usage = world.Usage(device);
  DeviceCompute& compute = world.Compute(device);
  const uint32_t lease = limits.lease.load();
  const OpenWork open = look(device);
  const uint64_t launches = compute.launches.load(std::memory_order_relaxed) + open.launches;
  usage.launches.store(launches, std::memory_order_relaxed);
  usage.persistent_ns.store(open.persistent_ns, std::memory_order_relaxed);
  // Above 0 as long as anything is outstanding, even if it takes longer than was expected.
  const uint64_t still_ns = compute.backlog.StillNs(now_ns) + open.ns;
  const uint64_t backlog_ns = still_ns == 0 && compute.backlog.count() != 0 ? 1 : still_ns;
  usage.backlog_ns.store(backlog_ns, std::memory_order_relaxed);
  usage.expected_end_ns.store(
      still_ns == 0 ? compute.backlog.end_ns() : now_ns + static_cast<int64_t>(still_ns),
      std::memory_order_relaxed);
  KeepLocalRule(world, limits, usage, compute, now_ns, silent);
  // Beside others' work estimates say less of when it is done.
  const bool together = limits.together.load(std::memory_order_relaxed) != 0;
  LeaseWatch::Act act =
      compute.watch.Step({.now_ns = now_ns,
                          .lease = lease,
                          .outstanding = compute.backlog.count() != 0 || open.launching != 0,
                          .waiting = usage.waiting.load() != 0,
                          .unfenced_ns = open.ns,
                          .backlog_ns = backlog_ns,
                          .launches = launches,
                          .idle_report_ns = IdleReportNs(limits, compute),
                          .expected_end_ns = compute.backlog.end_ns(),
                          .closely = limits.closely.load(std::memory_order_relaxed) != 0,
                          .persistent = open.persistent_ns != 0,
                          .unknown = compute.unknown.load(std::memory_order_relaxed) != 0,
                          .at_bound = compute.at_bound.load(std::memory_order_relaxed) != 0,
                          .unawaited = limits.drain_unawaited.load() == SequenceOf(lease),
                          .unfenced_launches = together ? 0 : open.launches,
                          .unfenced_began_ns = open.began_ns});
  // What no fence is behind was given its time: an idle member has no backlog, or it would not
  // count as idle until it launches again.
  if (compute.watch.quiet()) usage.backlog_ns.store(0, std::memory_order_relaxed);
  const int64_t tail_ns = open.launching == 0 ? static_cast<int64_t>(open.ns) : 0;
  constexpr auto kBatchNs = static_cast<int64_t>(kFenceAtNs);
  compute.tail_ns.store(tail_ns < kBatchNs ? tail_ns : kBatchNs, std::memory_order_relaxed);
  const bool movable = world.PlanLook(device, now_ns + act.look_again_ns,
                                      act.may_be_moved ? now_ns + act.move_within_ns : 0);
  // Of what no fence is behind the agent learns when it is looked at, and must ask for that.
  const uint32_t closing = tail_ns == 0 ? protocol::kMindsClosing : 0;
  usage.minds_lease.store(movable ? protocol::kMindsOpening | closing : 0);
  // Read after that is written: of a change before it, nobody tells.
  if (limits.lease.load() != lease) {
    act.look_again_ns = 0;
    world.PlanLook(device, now_ns, 0);
  }
  if (act.drained) {
    usage.expected_end_ns.store(act.done_ns, std::memory_order_relaxed);
    usage.drained_sequence.store(act.sequence);
    // Read after that is written: an agent that takes this back looks at that once more.
    if (limits.drain_unawaited.load() == act.sequence) return act.look_again_ns;
    world.Send(protocol::MessageType::kLeaseDrained, {device, act.sequence});
  }
  if (act.idle) world.Send(protocol::MessageType::kLeaseIdle, {device, act.sequence});
  return act.look_again_ns;
}

}  // namespace prorata::client
