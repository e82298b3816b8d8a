#pragma once

// Whether a launch may pass, and what its thread must wait for if not.

#include "client/member_compute.h"

namespace prorata::client {

// Whether the lease, or the local rule, lets launches pass; the backlog apart.
template <typename World>
bool LeaseAllows(World& world, uint32_t device) {
  return (world.Limits(device).lease.load() & protocol::kLeaseOpen) != 0 || Silent(world);
}

// Whether a launch may pass at once: the lease is open, the backlog below its bound, and no local
// rule is in force. All that a launch costs while its lease is open.
inline bool MayLaunch(const protocol::DeviceLimits& limits, const DeviceCompute& compute) {
  const uint32_t lease = limits.lease.load(std::memory_order_acquire);
  return (lease & protocol::kLeaseOpen) != 0 &&
         compute.local_rule.load(std::memory_order_relaxed) == 0 &&
         !compute.backlog.Full(BoundNs(limits, lease));
}

// One thread's wait until a launch on the device may pass. Step, do what it says, Step again, until
// it says kPass. While it waits for the lease the thread is counted in the member's `waiting`.
class LaunchWait {
 public:
  enum class Do : uint8_t {
    kPass,
    kAwaitLease,  // until the lease word is not `lease` any more, or for timeout_ns
    kAwaitFence,  // until the oldest fence of the device is done
  };
  struct Next {
    Do what = Do::kPass;
    uint32_t lease = 0;
    int64_t timeout_ns = 0;
  };

  static constexpr int64_t kLookAgainNs = 20'000'000;
  // From then on: who waits for longer than a turn may find that the agent is silent, and the
  // sooner its last heartbeat is seen the sooner that is certain.
  static constexpr int64_t kLookOftenNs = 10'000'000;
  static constexpr int64_t kLocalLookNs = 1'000'000;
  static constexpr uint64_t kSoonNs = 5'000'000;
  static constexpr int64_t kDrainedLateNs = 1'000'000;

  explicit LaunchWait(uint32_t device) : device_(device) {}

  template <typename World>
  Next Step(World& world) {
    DeviceCompute& compute = world.Compute(device_);
    if (at_bound_) compute.at_bound.fetch_sub(1, std::memory_order_relaxed);
    const Next next = Look(world);
    at_bound_ = next.what == Do::kAwaitFence;
    if (at_bound_) compute.at_bound.fetch_add(1, std::memory_order_relaxed);
    return next;
  }

 private:
  template <typename World>
  Next Look(World& world) {
    const protocol::DeviceLimits& limits = world.Limits(device_);
    DeviceCompute& compute = world.Compute(device_);
    if (!counted_) {
      if (MayLaunch(limits, compute)) return {};
      const uint32_t lease = limits.lease.load(std::memory_order_acquire);
      if ((lease & protocol::kLeaseOpen) != 0 && compute.backlog.Full(BoundNs(limits, lease))) {
        return {Do::kAwaitFence, lease, 0};
      }
      world.Usage(device_).waiting.fetch_add(1);
      counted_ = true;
      compute.gaps.Waits(compute.backlog.end_ns(), world.NowNs());
    }
    Next next;
    if (!LeasePasses(world, limits, compute, &next)) return next;
    LookSoon(world, limits, compute);
    world.Usage(device_).waiting.fetch_sub(1);
    counted_ = false;
    // The lease, or the local rule, lets it pass; either bounds the backlog too.
    const uint32_t now = limits.lease.load(std::memory_order_acquire);
    if (compute.backlog.Full(BoundNs(limits, now))) return {Do::kAwaitFence, now, 0};
    if ((now & protocol::kLeaseOpen) != 0 || Silent(world)) return {};
    return Look(world);  // it has closed again
  }

  // Until the lease is open, or the agent is silent and the local rule lets one pass.
  template <typename World>
  bool LeasePasses(World& world, const protocol::DeviceLimits& limits, DeviceCompute& compute,
                   Next* next) {
    const uint32_t lease = limits.lease.load(std::memory_order_acquire);
    const bool open = (lease & protocol::kLeaseOpen) != 0;
    const bool local = compute.local_rule.load(std::memory_order_relaxed) != 0;
    if (open && !local) return true;
    *next = {Do::kAwaitLease, lease, kLocalLookNs};
    if (local || Silent(world)) {
      if (Silent(world)) return BucketAllows(world, limits, compute);
      return open;  // it speaks again; the helper will notice
    }
    next->timeout_ns = TellThatItWaits(world, compute, lease);
    return false;
  }

  // The helper may not have been told that the lease is open (DeviceUsage::minds_lease): it looks
  // when what is launched now could be done, unless a fence tells when that will be.
  template <typename World>
  void LookSoon(World& world, const protocol::DeviceLimits& limits, DeviceCompute& compute) {
    const int64_t by_ns = compute.look_by_ns.load(std::memory_order_relaxed);
    if (by_ns == 0) return;
    const int64_t soon_ns = world.NowNs() + IdleReportNs(limits, compute);
    const int64_t at_ns = soon_ns < by_ns ? soon_ns : by_ns;
    if (at_ns < compute.look_ns.load(std::memory_order_relaxed)) world.MoveLook(device_, at_ns);
  }

  // `waiting` was raised. Answers for how long to wait.
  template <typename World>
  int64_t TellThatItWaits(World& world, DeviceCompute& compute, uint32_t lease) {
    const uint64_t mark = uint64_t{SequenceOf(lease)} + 1;
    // Read after `waiting` was raised: an agent that takes this back looks at that once more.
    const bool unawaited = world.Limits(device_).drain_unawaited.load() == SequenceOf(lease);
    if (unawaited) return LookAgain(mark);
    const bool drained = world.Usage(device_).drained_sequence.load() == SequenceOf(lease);
    if (left_to_drained_ == mark) {
      if (drained) return LookAgain(mark);  // since: the agent was told, and has seen who waits
    } else if (const int64_t soon_ns = drained ? 0 : DrainedSoon(world, compute); soon_ns != 0) {
      left_to_drained_ = mark;
      return soon_ns;
    }
    SayWanted(world, compute, lease);
    return LookAgain(mark);
  }

  int64_t LookAgain(uint64_t mark) {
    const int64_t again_ns = waited_ == mark ? kLookOftenNs : kLookAgainNs;
    waited_ = mark;
    return again_ns;
  }

  template <typename World>
  static bool BucketAllows(World& world, const protocol::DeviceLimits& limits,
                           DeviceCompute& compute) {
    const uint32_t ppm = PartPpm(limits);
    return ppm >= 1'000'000 || compute.bucket.MayRun(world.NowNs(), ppm);
  }

  // The agent will hear soon that the member has drained, and then sees who waits: as a rule the
  // first launch of a turn's end comes while the last ones still run, and one message is enough.
  // `waiting` was raised before; the helper says "drained" after it wrote the sequence. Answers for
  // how long to wait for that, 0: not at all. What runs may wait for what is not launched.
  template <typename World>
  static int64_t DrainedSoon(World& world, DeviceCompute& compute) {
    const uint64_t still_ns = compute.backlog.StillNs(world.NowNs());
    const bool soon = compute.backlog.count() != 0 && still_ns < kSoonNs &&
                      compute.unknown.load(std::memory_order_relaxed) == 0;
    return soon ? static_cast<int64_t>(still_ns) + kDrainedLateNs : 0;
  }

  // Once for a sequence.
  template <typename World>
  void SayWanted(World& world, DeviceCompute& compute, uint32_t lease) {
    const uint64_t mark = uint64_t{SequenceOf(lease)} + 1;
    auto& wanted = compute.wanted_plus_1;
    if (wanted.load(std::memory_order_relaxed) == mark || wanted.exchange(mark) == mark) return;
    if (!world.Send(protocol::MessageType::kLeaseWanted, {device_, SequenceOf(lease)})) {
      wanted.store(0);
    }
  }

  uint32_t device_;
  bool counted_ = false;
  bool at_bound_ = false;
  // For which lease (its sequence plus one) that it waits is left to the word of having drained.
  uint64_t left_to_drained_ = 0;
  uint64_t waited_ = 0;  // for which, in the same way, it has waited once
};

}  // namespace prorata::client
