#include "client/compute.h"

#include "client/charge.h"
#include "client/connection.h"
#include "client/fences.h"
#include "client/lease_watch.h"

namespace prorata::client {

constinit DeviceCompute g_compute[protocol::kMaxDevices];
constinit Estimates g_estimates;

namespace {

using protocol::MessageType;

constinit LeaseWatch g_watch[protocol::kMaxDevices];  // helper only

constexpr int64_t kLookAgainNs = 20'000'000;
constexpr int64_t kLocalLookNs = 1'000'000;

uint32_t SequenceOf(uint32_t lease) { return lease >> protocol::kLeaseSequenceShift; }

void SayWanted(uint32_t device, uint32_t lease) {
  const uint64_t mark = uint64_t{SequenceOf(lease)} + 1;
  auto& wanted = g_compute[device].wanted_plus_1;
  if (wanted.load(std::memory_order_relaxed) == mark || wanted.exchange(mark) == mark) return;
  if (!Send(MessageType::kLeaseWanted, protocol::LeaseEvent{device, SequenceOf(lease)})) {
    wanted.store(0);
  }
}

bool BucketAllows(uint32_t device) {
  const uint32_t ppm = LimitsOf(device).compute_limit_ppm.load(std::memory_order_relaxed);
  return ppm >= 1'000'000 || g_compute[device].bucket.MayRun(NowNs(), ppm);
}

// Until the lease is open, or the agent is silent and the local rule lets one pass.
void AwaitLease(uint32_t device) {
  const protocol::DeviceLimits& limits = LimitsOf(device);
  for (;;) {
    const uint32_t lease = limits.lease.load(std::memory_order_acquire);
    const bool local = g_compute[device].local_rule.load(std::memory_order_relaxed) != 0;
    if ((lease & protocol::kLeaseOpen) != 0 && !local) return;
    if (local || AgentSilent()) {
      if (AgentSilent()) {
        if (BucketAllows(device)) return;
      } else if ((lease & protocol::kLeaseOpen) != 0) {
        return;  // it speaks again; the helper will notice
      }
      FutexWait(&limits.lease, lease, kLocalLookNs);
      continue;
    }
    SayWanted(device, lease);
    FutexWait(&limits.lease, lease, kLookAgainNs);
  }
}

int64_t TickDevice(uint32_t device, int64_t now_ns, bool silent) {
  const protocol::DeviceLimits& limits = LimitsOf(device);
  protocol::DeviceUsage& usage = UsageOf(device);
  DeviceCompute& compute = g_compute[device];
  const uint32_t lease = limits.lease.load();  // before the work is looked at: see StreamRecord
  const OpenWork open = OpenWorkOf(device);
  const uint64_t launches = compute.launches.load(std::memory_order_relaxed) + open.launches;
  usage.launches.store(launches, std::memory_order_relaxed);
  usage.backlog_ns.store(compute.backlog.ns() + open.ns, std::memory_order_relaxed);
  const bool limited = limits.compute_limit_ppm.load(std::memory_order_relaxed) < 1'000'000;
  compute.local_rule.store(silent && limited ? 1 : 0, std::memory_order_relaxed);
  const LeaseWatch::Act act =
      g_watch[device].Step({now_ns, lease, compute.backlog.count() != 0 || open.launching != 0,
                            usage.waiting.load() != 0, open.ns, launches,
                            limits.idle_report_us.load(std::memory_order_relaxed)});
  if (act.drained) {
    usage.drained_sequence.store(act.sequence);
    Send(MessageType::kLeaseDrained, protocol::LeaseEvent{device, act.sequence});
  }
  if (act.idle) Send(MessageType::kLeaseIdle, protocol::LeaseEvent{device, act.sequence});
  return act.look_again_ns;
}

}  // namespace

bool AgentSilent() {
  return AgentSilentNs() >= static_cast<int64_t>(protocol::kAgentSilentAfterNs);
}

void AwaitLaunch(uint32_t device) {
  const protocol::DeviceLimits& limits = LimitsOf(device);
  DeviceCompute& compute = g_compute[device];
  while (!MayLaunch(limits, compute)) {
    const uint32_t lease = limits.lease.load(std::memory_order_acquire);
    if ((lease & protocol::kLeaseOpen) != 0 && compute.backlog.Full(BoundNs(limits, lease))) {
      AwaitOldestFence(device);
      continue;
    }
    UsageOf(device).waiting.fetch_add(1);
    AwaitLease(device);
    UsageOf(device).waiting.fetch_sub(1);
    const uint32_t now = limits.lease.load(std::memory_order_acquire);
    if ((now & protocol::kLeaseOpen) != 0 && !compute.backlog.Full(BoundNs(limits, now))) return;
    // Let pass by the local rule. It bounds the backlog too.
    if (AgentSilent() && !compute.backlog.Full(BoundNs(limits, now))) return;
    if (compute.backlog.Full(BoundNs(limits, now))) AwaitOldestFence(device);
  }
}

void ChargeDevice(uint32_t device, uint64_t busy_ns) {
  UsageOf(device).device_time_ns.fetch_add(busy_ns, std::memory_order_relaxed);
  DeviceCompute& compute = g_compute[device];
  if (compute.local_rule.load(std::memory_order_relaxed) != 0) compute.bucket.Spend(busy_ns);
}

int64_t TickCompute(int64_t now_ns) {
  HarvestAll();
  const bool silent = AgentSilent();
  int64_t look_again_ns = LeaseWatch::kSeldomNs;
  for (uint32_t device = 0; device < g_share.device_count; ++device) {
    look_again_ns = Min(look_again_ns, TickDevice(device, now_ns, silent));
  }
  return look_again_ns;
}

void LeasesRejoined() {
  for (DeviceCompute& compute : g_compute) compute.wanted_plus_1.store(0);
}

}  // namespace prorata::client
