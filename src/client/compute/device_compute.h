#pragma once

// What one member keeps to gate its launches on one device, and what the machines that use it need
// of the world. The machines are gate.h (may a launch pass, and what to wait for), work_tracker.h
// (a launch's account, and what is proven done) and lease_report.h (what to report to the agent).
// They hold no clock, thread, socket or driver, and block nowhere: the client library gives them
// its own (library_world.h), the one-process simulation one simulated member each
// (tests/simulation/).
//
//   struct World {
//     int64_t NowNs();
//     int64_t HeartbeatLostNs();                   // for how long it has certainly been lost
//     const shm::DeviceLimits& Limits(uint32_t device);
//     shm::DeviceUsage& Usage(uint32_t device);
//     DeviceCompute& Compute(uint32_t device);
//     Estimates& estimates();
//     bool Send(wire::MessageType, const wire::LeaseEvent&);  // false: not connected
//     void ForEachWork(uint32_t device, F f);      // f(ContextWork&) in its context, if listed
//     bool Capturing();                            // a capture is open
//     bool MayRecord();                            // helper: no stream may be captured just now
//     void DoneRecording();                        // after MayRecord, whatever it answered
//     void RecordGone(StreamRecord*);              // its last fence is done
//     struct OwnCalls { explicit OwnCalls(World&); };   // around driver calls of our own making
//     bool CreateEvent(CUevent*);                  // once for a fence; it belongs to the context
//     Recorded Record(const StreamRecord&, CUevent);
//     bool Pending(CUevent);                       // recorded, and the device is not past it
//     StreamState Ask(const StreamRecord&);        // of a stream that is not a thread's own
//     bool Elapsed(CUevent from, CUevent to, int64_t* ns);   // false: the driver does not say
//   };
//
// Everything is thread-safe unless it says who calls it. Freestanding.

#include <atomic>
#include <cstdint>

#include "client/compute/backlog.h"
#include "client/compute/estimates.h"
#include "client/compute/failsafe.h"
#include "client/compute/lease_watch.h"
#include "client/compute/occupancy.h"
#include "shm/limits_file.h"
#include "shm/usage_file.h"
#include "wire/messages.h"

namespace prorata::client {

// What the driver says of a stream.
enum class StreamState : uint8_t { kUnknown, kIdle, kAtWork };

enum class Recorded : uint8_t {
  kYes,
  kNo,
  kFault,  // a kernel faulted: nothing of this context runs any more
};

struct alignas(64) DeviceCompute {
  Backlog backlog;
  // In failsafe mode the lease word says nothing about the limit: launches also ask the bucket. Set
  // and cleared by the helper.
  std::atomic<uint32_t> failsafe;
  // Fences that must be done before the bound of the backlog holds again; how often it was raised
  // for them, and to what.
  std::atomic<uint32_t> bound_given_up;
  std::atomic<uint32_t> give_ups;
  std::atomic<uint64_t> raised_bound_ns;
  std::atomic<int64_t> woken_late_ns;  // by how much the bound is larger (gate.h)
  // Until then what is outstanding may be done long before it is expected to be: a batch was.
  std::atomic<int64_t> erratic_until_ns;
  // When other shares were last seen to have the device's time slices in turn with this one.
  std::atomic<int64_t> sliced_ns;
  std::atomic<uint32_t> launching;      // threads whose launch is beginning a batch (work.h)
  std::atomic<uint32_t> at_bound;       // threads that wait for the backlog
  std::atomic<uint64_t> launches;       // of batches that are closed
  std::atomic<uint64_t> batches;        // begun
  std::atomic<uint32_t> begun_in;       // under which lease word the last of them was
  std::atomic<uint32_t> quiet_batches;  // that, without work before them in their stream
  std::atomic<int64_t> submitted_ns;    // when the last of them was begun or fenced
  std::atomic<uint64_t> wanted_plus_1;  // last sequence that kLeaseWanted was sent for
  std::atomic<uint64_t> extra_taken;    // of DeviceLimits::extra_launches, in the same form
  std::atomic<uint32_t> contexts;       // with work, when the helper last looked
  // Heartbeat lost: nobody schedules, so others' work is in the elapsed times of this member's.
  std::atomic<uint32_t> crowded;
  // Work of a context that cannot even be named: no memory. Never proven done.
  std::atomic<uint32_t> lost;
  Occupancy occupancy;
  // Helper only.
  FallbackBucket bucket;
  uint64_t occupied_ns = 0;  // at its last poll
  int64_t looked_ns = 0;     // when that was, after it had observed the heartbeat
  // Since the heartbeat last moved: this member's part of the time it was busy, what its kernels
  // took, and what of it the bucket has heard of. measured_ns: when the heartbeat last moved.
  uint64_t part_ns = 0, measured_ns = 0, used_ns = 0;
  std::atomic<uint32_t> blocked;  // streams whose work has not begun for a wait in them
  int64_t tails_ns = 0;           // when open batches were last fenced
  LeaseWatch watch;
};

template <typename F>
void ForEachBit(uint32_t bits, F&& f) {
  for (; bits != 0; bits &= bits - 1) f(static_cast<uint32_t>(__builtin_ctz(bits)));
}

inline uint32_t SequenceOf(uint32_t lease) { return lease >> shm::kLeaseSequenceShift; }

// Takes one of the launches that the closed lease allows each member, if one is left.
inline bool TakeExtraLaunch(const shm::DeviceLimits& limits, DeviceCompute& compute,
                            uint32_t lease) {
  const uint32_t extra = shm::ExtraLaunches(limits, lease);
  if (extra == 0) return false;
  const uint64_t none = uint64_t{SequenceOf(lease)} << 32;
  uint64_t taken = compute.extra_taken.load();
  for (;;) {
    const uint64_t before = taken >> 32 == SequenceOf(lease) ? taken : none;
    if (before - none >= extra) return false;
    if (compute.extra_taken.compare_exchange_weak(taken, before + 1)) return true;
  }
}

// The bound of fenced work under this lease word. One below 1 ms is another share's wish
// (yield_within_ns): it is not made larger.
inline uint64_t BoundNs(const shm::DeviceLimits& limits, const DeviceCompute& compute,
                        uint32_t lease) {
  const auto& bound =
      (lease & shm::kLeaseContended) != 0 ? limits.backlog_contended_us : limits.backlog_alone_us;
  const uint64_t ns = uint64_t{bound.load(std::memory_order_relaxed)} * 1000;
  if (ns < 1'000'000) return ns;
  return ns + static_cast<uint64_t>(compute.woken_late_ns.load(std::memory_order_relaxed));
}

// The agent's heartbeat has stopped: leases say nothing any more.
template <typename World>
bool HeartbeatLost(World& world) {
  return world.HeartbeatLostNs() >= static_cast<int64_t>(shm::kHeartbeatLostAfterNs);
}

// What this member may use of the device in failsafe mode: its part of the share's limit.
inline uint32_t PartPpm(const shm::DeviceLimits& limits) {
  const uint32_t limit = limits.compute_limit_ppm.load(std::memory_order_relaxed);
  const uint32_t members = limits.active_members.load(std::memory_order_relaxed);
  return limit < 1'000'000 && members > 1 ? limit / members : limit;
}

// Contexts with work on the device, this member's own included, so far as is known: each has its
// slices of it in turn.
inline uint32_t ContextsAtWork(const shm::DeviceLimits& limits, const DeviceCompute& compute) {
  const uint32_t members = limits.members_at_work.load(std::memory_order_relaxed);
  const uint32_t own = compute.contexts.load(std::memory_order_relaxed);
  return (members > 1 ? members - 1 : 0) + (own > 1 ? own : 1);
}

}  // namespace prorata::client
