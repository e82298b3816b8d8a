#pragma once

// Whether a launch may pass, and what its thread must wait for if not: the lease; and, up to a
// slice, that the backlog falls below its bound. A fence may stand behind something that this very
// thread has yet to do (a stream wait, a host function, a flag that a kernel spins on), so it is
// polled and never waited for without end: after kGiveUpNs the bound is raised until the fence that
// was the oldest then is done. It may just be a long kernel, so by little at first: each time twice
// as late as the last, and by four times as much. The agent's charge is by its own clock, and needs
// no bound.

#include "client/compute/work_tracker.h"

namespace prorata::client {

// Whether a launch may pass at once: the lease is open, the backlog below its bound, and the member
// not in failsafe mode. All that a launch costs while its lease is open.
inline bool MayLaunch(const shm::DeviceLimits& limits, const DeviceCompute& compute) {
  const uint32_t lease = limits.lease.load(std::memory_order_acquire);
  return (lease & shm::kLeaseOpen) != 0 && compute.failsafe.load(std::memory_order_relaxed) == 0 &&
         !compute.backlog.Full(BoundNs(limits, compute, lease));
}

// What a thread at the gate of a device is counted as.
struct AtGate {
  bool waits = false;     // for the lease
  bool at_bound = false;  // for the backlog
};

// One thread's wait until a launch on the device may pass. Step, do what it says, Step again, until
// it says kPass. While it waits for the lease the thread is counted in the member's `waiting`.
class LaunchWait {
 public:
  enum class Do : uint8_t {
    kPass,
    kAwaitLease,    // until the lease word is not `lease` any more, or for timeout_ns
    kAwaitBacklog,  // for timeout_ns
  };
  struct Next {
    Do what = Do::kPass;
    uint32_t lease = 0;
    int64_t timeout_ns = 0;
  };

  // The lease's opening wakes the thread. By itself it looks whether the agent is still there, the
  // sooner the longer it has waited.
  static constexpr int64_t kPollLeaseNs = 20'000'000;
  static constexpr int64_t kPollLeaseAgainNs = 10'000'000;
  static constexpr int64_t kPollFailsafeNs = 1'000'000;
  static constexpr int64_t kGiveUpNs = 13'000'000;  // a slice
  static constexpr int64_t kMinPollNs = 50'000, kMaxPollNs = 1'000'000;
  static constexpr int64_t kErraticPollNs = 100'000;
  // Where more threads want to run than there are processors, a thread wakes late, and the device
  // has run dry by then. So the bound grows by how late threads wake, up to this: a little more
  // than what another thread has of the processor at a time (3 ms, measured on Linux 6.18).
  static constexpr int64_t kMaxLateNs = 4'000'000;
  // A shorter delay does not count: up to 1 ms the bound itself covers it.
  static constexpr int64_t kLateNs = 1'500'000;
  // Nor does a longer one: the thread was stopped, or its container's processor quota was used up.
  static constexpr int64_t kStoppedNs = 20'000'000;

  // `left`: of this thread's last wait here, which a signal's handler may have left by siglongjmp.
  explicit LaunchWait(uint32_t device, AtGate left = {}) : device_(device), at_(left) {}

  const AtGate& at_gate() const { return at_; }

  template <typename World>
  Next Step(World& world) {
    DeviceCompute& compute = world.Compute(device_);
    if (at_.at_bound) {
      compute.at_bound.fetch_sub(1, std::memory_order_relaxed);
      if (wakes_ns_ != 0) SeeLate(compute, world.NowNs() - wakes_ns_);
    }
    const Next next = Decide(world);
    at_.at_bound = next.what == Do::kAwaitBacklog;
    if (at_.at_bound) compute.at_bound.fetch_add(1, std::memory_order_relaxed);
    return next;
  }

 private:
  template <typename World>
  Next Decide(World& world) {
    const shm::DeviceLimits& limits = world.Limits(device_);
    DeviceCompute& compute = world.Compute(device_);
    for (;;) {
      if (!at_.waits) {
        if (MayLaunch(limits, compute)) return {};
        const uint32_t lease = limits.lease.load(std::memory_order_acquire);
        if ((lease & shm::kLeaseOpen) != 0 &&
            compute.failsafe.load(std::memory_order_relaxed) == 0) {
          return AtBound(world, lease);
        }
        world.Usage(device_).waiting.fetch_add(1);
        at_.waits = true;
      }
      if (compute.backlog.count() == 0) full_since_ns_ = 0;  // what filled it has run
      Next next;
      if (!LeasePasses(world, limits, compute, &next)) return next;
      world.Usage(device_).waiting.fetch_sub(1);
      at_.waits = false;
      if (extra_) return {};
      // The lease, or failsafe mode, lets it pass; either bounds the backlog too.
      const uint32_t now = limits.lease.load(std::memory_order_acquire);
      if ((now & shm::kLeaseOpen) != 0 || HeartbeatLost(world)) return AtBound(world, now);
      // It has closed again.
    }
  }

  template <typename World>
  Next AtBound(World& world, uint32_t lease) {
    DeviceCompute& compute = world.Compute(device_);
    const uint64_t bound_ns = BoundNs(world.Limits(device_), compute, lease);
    if (!compute.backlog.Full(bound_ns)) return {};
    const bool raised = compute.bound_given_up.load() != 0;
    if (raised && compute.backlog.ns() < compute.raised_bound_ns.load()) return {};
    const int64_t now_ns = world.NowNs();
    if (compute.backlog.StillNs(now_ns) >= bound_ns) {
      WorkTracker<World> tracker(world);
      world.ForEachWork(device_, [&](ContextWork& work) { tracker.Poll(&work); });
    }
    const uint64_t still_ns = compute.backlog.StillNs(now_ns);
    if (!compute.backlog.Full(bound_ns) || still_ns < bound_ns) return {};
    if (full_since_ns_ == 0) full_since_ns_ = now_ns;
    const int64_t patience_ns = kGiveUpNs << (raised ? compute.give_ups.load() : 0);
    const int64_t left_ns = full_since_ns_ + patience_ns - now_ns;
    if (left_ns <= 0) {
      WorkTracker<World>(world).GiveUpBound(device_, bound_ns);
      return {};
    }
    auto wait_ns = static_cast<int64_t>(still_ns - bound_ns);
    if (wait_ns < kMinPollNs) wait_ns = kMinPollNs;
    const bool erratic = now_ns < compute.erratic_until_ns.load(std::memory_order_relaxed);
    const int64_t most_ns = erratic ? kErraticPollNs : kMaxPollNs;
    if (wait_ns > most_ns) wait_ns = most_ns;
    if (wait_ns > left_ns) wait_ns = left_ns;
    wakes_ns_ = now_ns + wait_ns;
    return {Do::kAwaitBacklog, lease, wait_ns};
  }

  // It was to be awake so long ago. The latest counts, and less with each wait after it.
  static void SeeLate(DeviceCompute& compute, int64_t late_ns) {
    if (late_ns < kLateNs || late_ns > kStoppedNs) late_ns = 0;
    const int64_t before_ns = compute.woken_late_ns.load(std::memory_order_relaxed);
    const int64_t latest_ns = Max(Min(late_ns, kMaxLateNs), before_ns - before_ns / 16);
    compute.woken_late_ns.store(latest_ns, std::memory_order_relaxed);
  }

  // Until the lease is open or lets this one pass, or the heartbeat is lost and the bucket does.
  template <typename World>
  bool LeasePasses(World& world, const shm::DeviceLimits& limits, DeviceCompute& compute,
                   Next* next) {
    const uint32_t lease = limits.lease.load(std::memory_order_acquire);
    const bool open = (lease & shm::kLeaseOpen) != 0;
    const bool failsafe = compute.failsafe.load(std::memory_order_relaxed) != 0;
    if (open && !failsafe) return true;
    *next = {Do::kAwaitLease, lease, kPollFailsafeNs};
    if (HeartbeatLost(world)) return BucketAllows(world, limits, compute);
    if (failsafe) return open;  // the heart beats again; the helper will notice
    extra_ = TakeExtraLaunch(limits, compute, lease);
    if (extra_) return true;
    const bool again = waited_ == lease + 1;
    if (!again) drain_reports_ = WillReportDrain(world, compute, lease);
    const bool drained = world.Usage(device_).drained_sequence.load() == SequenceOf(lease);
    if (!drain_reports_ || (again && !drained)) NotifyWanted(world, compute, lease);
    next->timeout_ns = again ? kPollLeaseAgainNs : kPollLeaseNs;
    if (drained && RunsLate(world, compute)) next->timeout_ns = kMaxPollNs;
    waited_ = lease + 1;
    return false;
  }

  // A thread may be stopped after it passed the gate, and launch when the lease has closed and the
  // drain was reported. The helper looks seldom then, and until somebody does the member is taken
  // to be busy, and charged for that.
  template <typename World>
  bool RunsLate(World& world, const DeviceCompute& compute) {
    if (compute.occupancy.reasons() == 0 || compute.blocked.load() != 0) return false;
    WorkTracker<World> tracker(world);
    world.ForEachWork(device_, [&](ContextWork& work) { tracker.Poll(&work); });
    return compute.occupancy.reasons() != 0;
  }

  // Whether the helper has yet to report that the member's work has drained. The agent reads
  // `waiting` then, in which this thread is counted already: a message of its own would only wake
  // the agent once more. Work behind waits may not drain for long. A helper that is late is not
  // relied on: after the first time-out the thread reports by itself.
  template <typename World>
  bool WillReportDrain(World& world, DeviceCompute& compute, uint32_t lease) {
    return world.Usage(device_).drained_sequence.load() != SequenceOf(lease) &&
           compute.occupancy.reasons() != 0 && compute.blocked.load() == 0;
  }

  template <typename World>
  static bool BucketAllows(World& world, const shm::DeviceLimits& limits, DeviceCompute& compute) {
    const uint32_t ppm = PartPpm(limits);
    return ppm >= 1'000'000 || compute.bucket.MayRun(world.NowNs(), ppm);
  }

  // Once for a sequence.
  template <typename World>
  void NotifyWanted(World& world, DeviceCompute& compute, uint32_t lease) {
    const uint64_t mark = uint64_t{SequenceOf(lease)} + 1;
    auto& wanted = compute.wanted_plus_1;
    if (wanted.load(std::memory_order_relaxed) == mark || wanted.exchange(mark) == mark) return;
    if (!world.Send(wire::MessageType::kLeaseWanted, {device_, SequenceOf(lease)})) {
      wanted.store(0);
    }
  }

  uint32_t device_;
  AtGate at_;
  uint32_t waited_ = 0;         // the lease word plus one that it has waited for once
  bool drain_reports_ = false;  // of that lease: WillReportDrain
  bool extra_ = false;          // it passes by TakeExtraLaunch
  // Since when it has found the backlog full; 0: it has not. Also while the lease is closed: that
  // may open for less than kGiveUpNs each time.
  int64_t full_since_ns_ = 0;
  int64_t wakes_ns_ = 0;  // by when it is to be awake, at the bound
};

}  // namespace prorata::client
