#pragma once

// What the helper does for one device each time it looks: brings the usage memory up to date, and
// tells the agent what LeaseWatch finds worth telling.

#include "client/fence_ring.h"
#include "client/member_compute.h"

namespace prorata::client {

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
  const uint64_t backlog_ns = compute.backlog.ns() + open.ns;
  usage.backlog_ns.store(backlog_ns, std::memory_order_relaxed);
  const bool limited = limits.compute_limit_ppm.load(std::memory_order_relaxed) < 1'000'000;
  compute.local_rule.store(silent && limited ? 1 : 0, std::memory_order_relaxed);
  const LeaseWatch::Act act =
      compute.watch.Step({now_ns, lease, compute.backlog.count() != 0 || open.launching != 0,
                          usage.waiting.load() != 0, open.ns, backlog_ns, launches,
                          limits.idle_report_us.load(std::memory_order_relaxed)});
  if (act.drained) {
    usage.drained_sequence.store(act.sequence);
    world.Send(protocol::MessageType::kLeaseDrained, {device, act.sequence});
  }
  if (act.idle) world.Send(protocol::MessageType::kLeaseIdle, {device, act.sequence});
  return act.look_again_ns;
}

}  // namespace prorata::client
