#pragma once

// What becomes of batches: taken out of their queues when they are done, learned from, and what
// stands behind a wait left out of account. The polling side of WorkTracker (work_tracker.h), over
// the World of device_compute.h.

#include "client/compute/device_compute.h"
#include "client/compute/work.h"

namespace prorata::client {

template <typename World>
class WorkPoller {
 public:
  static constexpr int64_t kFencingNapNs = 20'000;  // of who waits for another thread that fences
  // A slice: a launch takes microseconds, and its thread may have to wait for a processor. Shorter,
  // a share loses its lease for such a wait; longer, it pays for as much while it loads a module.
  static constexpr int64_t kLateLaunchNs = 13'000'000;

  explicit WorkPoller(World& world) : world_(world) {}

  // Takes what is done out of the queues. At most one thread at a time; false: another is at it.
  bool Poll(ContextWork* work) {
    if (!OwnPolling(work)) return false;
    uint64_t persistent_ns = 0;
    bool any_done = false;
    const shm::DeviceLimits& limits = world_.Limits(work->device);
    if (limits.together.load(std::memory_order_relaxed) == shm::kInSlices) {
      world_.Compute(work->device).sliced_ns.store(world_.NowNs(), std::memory_order_relaxed);
    }
    Fence* oldest = nullptr;
    StreamRecord* previous = nullptr;
    for (StreamRecord* at = NextListed(work, nullptr); at != nullptr;) {
      any_done |= Collect(at, true, &persistent_ns);
      Fence* first = FirstFence(at);
      if (first != nullptr && at->blocked_ns == 0 &&
          (oldest == nullptr || first->recorded_ns < oldest->recorded_ns)) {
        oldest = first;
      }
      if (first == nullptr) TryIdle(at);
      StreamRecord* next = NextListed(work, at);
      const bool stays = at->busy.load() != 0 || at->launching.load() != 0;
      if (stays || !Unlist(at, previous)) previous = at;
      at = next;
    }
    // While the oldest is late, so is what comes behind it.
    if (any_done || oldest != nullptr) ReckonAnew(work->device, oldest);
    work->persistent_ns.store(persistent_ns, std::memory_order_relaxed);
    work->polling.store(0, std::memory_order_release);
    return true;
  }

  // Helper: the launches that have been in the driver for long, of which the device is proven to
  // have nothing yet: a function's first launch may load its module, or compile it, for seconds.
  // Those that are proven to run are at work from their beginning on: a driver may be told to
  // return when the kernel has ended.
  uint32_t LateLaunches(ContextWork* work, int64_t now_ns) {
    uint32_t late = 0;
    if (!OwnPolling(work)) return late;
    for (StreamRecord* at = NextListed(work, nullptr); at != nullptr; at = NextListed(work, at)) {
      const uint32_t launching = at->launching.load();
      const int64_t began_ns = at->began_ns.load(std::memory_order_relaxed);
      const bool is_long = at->late || now_ns - began_ns >= kLateLaunchNs;
      const bool matters = launching != 0 && is_long && at->busy.load() == 0 && !at->per_thread;
      const StreamState state = matters ? AskStream(at) : StreamState::kUnknown;
      at->late = state == StreamState::kIdle;
      if (at->late) late += launching;
      if (state == StreamState::kAtWork) BecomeBusy(at, began_ns);
    }
    work->polling.store(0, std::memory_order_release);
    return late;
  }

 protected:
  // A batch that took less than half of what was expected, by so much, makes estimates doubtful for
  // so long. Shorter, and a program that alternates between short and long kernels under one name
  // leaves the device idle after each short one until somebody looks.
  static constexpr uint64_t kErraticByNs = 100'000;
  static constexpr int64_t kErraticForNs = 50'000'000;

  static bool OwnPolling(ContextWork* work) {
    return work->polling.exchange(1, std::memory_order_acquire) == 0;
  }

  // Another thread may be at it: preempted, or held up in the driver.
  template <typename F>
  void Fencing(StreamRecord* stream, int naps, F&& f) {
    for (; stream->fencing.exchange(1, std::memory_order_acquire) != 0; --naps) {
      if (naps == 0) return;
      world_.Nap(kFencingNapNs);
    }
    {
      const WorkUse use(stream->work);
      if (use.entered()) {
        const typename World::OwnCalls own(world_);
        f();
      }
    }
    stream->fencing.store(0, std::memory_order_release);
  }

  void AddToBacklogs(uint32_t device, const Fence& fence, int64_t since_ns) {
    AddToBacklog(device, fence, since_ns);
    ForEachBit(fence.others, [&](uint32_t other) { AddToBacklog(other, fence, since_ns); });
  }

  void RemoveFromBacklogs(uint32_t device, const Fence& fence) {
    world_.Compute(device).backlog.Remove(fence.backlog_ns);
    ForEachBit(fence.others,
               [&](uint32_t other) { world_.Compute(other).backlog.Remove(fence.backlog_ns); });
  }

  void AddToBacklog(uint32_t device, const Fence& fence, int64_t since_ns) {
    Backlog& backlog = world_.Compute(device).backlog;
    if (backlog.count() == 0) {
      // What was launched before it, and is done, ran before it.
      const int64_t done_ns = backlog.end_ns();
      backlog.HeadIs(fence.backlog_ns, done_ns > since_ns ? done_ns : since_ns);
    }
    backlog.Add(fence.backlog_ns, since_ns);
    PublishExpectedEnd(device);
  }

  void PublishExpectedEnd(uint32_t device) {
    world_.Usage(device).expected_end_ns.store(world_.Compute(device).backlog.end_ns(),
                                               std::memory_order_relaxed);
  }

  void ReleaseOthers(StreamRecord* stream, int64_t now_ns) {
    ReleaseOccupancy(stream->others.exchange(0), now_ns);
  }

  void ReleaseOccupancy(uint32_t devices, int64_t now_ns) {
    ForEachBit(devices,
               [&](uint32_t i) { world_.Compute(i).occupancy.End(world_.Usage(i), now_ns); });
  }

  // Polling thread: what is done at the head of a stream's queue. `ask`: the driver, too. True: the
  // backlog is another.
  bool Collect(StreamRecord* stream, bool ask, uint64_t* persistent_ns) {
    bool any = false;
    for (Fence* fence = FirstFence(stream); fence != nullptr; fence = FirstFence(stream)) {
      if (fence->serial > stream->proven.load() && (!ask || world_.Pending(fence->end))) {
        if (ask) any |= WatchRun(stream, fence, persistent_ns);
        break;
      }
      if (stream->blocked_ns != 0) NarrowBlocked(stream, ask);
      any |= Block(stream, false);
      const int64_t now_ns = world_.NowNs();
      Learn(stream, *fence, now_ns);
      // Out of the queue first: until then the bound may be given up for it (GiveUpBound).
      PopFirstFence(stream);
      Forget(stream->device, fence, now_ns);
      any = true;
    }
    return any;
  }

  // The fence counts no more.
  void Forget(uint32_t device, Fence* fence, int64_t now_ns) {
    DeviceCompute& compute = world_.Compute(device);
    if (fence->counted) RemoveFromBacklogs(device, *fence);
    if (fence->releases_bound) compute.bound_given_up.fetch_sub(1);
    ReleaseOccupancy(fence->others, now_ns);
  }

  // What is expected of the rest is put right by the oldest fence that is not done.
  void ReckonAnew(uint32_t device, const Fence* oldest) {
    Backlog& backlog = world_.Compute(device).backlog;
    if (oldest != nullptr) {
      backlog.HeadIs(oldest->backlog_ns, world_.NowNs());
      PublishExpectedEnd(device);
    } else if (backlog.count() == 0) {
      backlog.AllIsDone(world_.NowNs());
    }
  }

  // The stream has work since then.
  void BecomeBusy(StreamRecord* stream, int64_t since_ns) {
    if (stream->busy.exchange(1) != 0) return;
    shm::DeviceUsage& usage = world_.Usage(stream->device);
    world_.Compute(stream->device).occupancy.Begin(usage, since_ns);
    if (usage.blocked.load(std::memory_order_relaxed) != 0) usage.blocked.store(0);
  }

  // Polling thread, or one that has just closed the stream's batch.
  void TryIdle(StreamRecord* stream) {
    const auto idle = [stream] { return !HasOpen(*stream) && stream->pending.load() == 0; };
    if (stream->busy.load() == 0 || !idle()) return;
    DeviceCompute& compute = world_.Compute(stream->device);
    if (stream->others.load() != 0) ReleaseOthers(stream, world_.NowNs());
    if (stream->busy.exchange(0) == 0) return;
    shm::DeviceUsage& usage = world_.Usage(stream->device);
    compute.occupancy.End(usage, world_.NowNs());
    // A launch in between has found it busy still.
    if (!idle() && stream->busy.exchange(1) == 0) compute.occupancy.Begin(usage, world_.NowNs());
  }

  // Polling thread: takes a stream that is proven idle out of the list, unless it has become busy.
  bool Unlist(StreamRecord* stream, StreamRecord* previous) {
    const Unlisted unlisted = UnlistStream(stream, previous);
    if (unlisted == Unlisted::kGone) world_.RecordGone(stream);
    return unlisted != Unlisted::kNot;
  }

  // Work that is known not to have begun takes no time of the device, but is not done: the agent is
  // not reported as drained, for it may begin at any moment. It may have begun right after it
  // was last seen not to have.
  bool Block(StreamRecord* stream, bool blocked) {
    if (!blocked && stream->blocked_ns == 0) return false;
    DeviceCompute& compute = world_.Compute(stream->device);
    const int64_t now_ns = world_.NowNs();
    const bool changes = !blocked || stream->blocked_ns == 0;
    if (!blocked) {
      compute.occupancy.Begin(world_.Usage(stream->device), stream->blocked_ns);
      compute.blocked.fetch_sub(1);
    } else if (changes) {
      compute.blocked.fetch_add(1);
      compute.occupancy.End(world_.Usage(stream->device), now_ns);
    }
    stream->blocked_ns = blocked ? now_ns : 0;
    if (!changes) return false;
    const LockGuard holding(stream->work->lock);
    stream->blocked = blocked;
    for (Fence* fence = stream->first; fence != nullptr; fence = fence->next) {
      if (fence->counted != blocked) continue;
      fence->counted = !blocked;
      if (fence->releases_bound) compute.bound_given_up.fetch_sub(1);
      fence->releases_bound = false;
      if (blocked) {
        RemoveFromBacklogs(stream->device, *fence);
      } else {
        AddToBacklogs(stream->device, *fence, now_ns);
      }
    }
    return true;
  }

  // What comes first in it stands behind a wait that is not over.
  bool IsBlocked(const Fence& fence) {
    return fence.waits && fence.started && world_.Pending(fence.start);
  }

  // The stream was last seen blocked, and what it has up to the next wait is done by now: it ran
  // for as long as its events say, and no longer, unless what follows has begun as well.
  void NarrowBlocked(StreamRecord* stream, bool ask) {
    const Fence *first, *last, *next;
    {
      const LockGuard holding(stream->work->lock);
      first = last = stream->first;
      while ((next = last->next) != nullptr && !next->waits) last = next;
    }
    if (next != nullptr && !IsBlocked(*next)) return;
    // What was launched in between has no fence.
    if (last->to != (next != nullptr ? next->from : stream->submitted.load())) return;
    int64_t ran_ns = -1;
    const bool done = last->serial <= stream->proven.load() || (ask && !world_.Pending(last->end));
    if (!done || !world_.Elapsed(first->start, last->end, &ran_ns) || ran_ns < 0) return;
    stream->blocked_ns = Max(stream->blocked_ns, world_.NowNs() - ran_ns);
  }

  // The first batch of its stream that is not done.
  bool WatchRun(StreamRecord* stream, Fence* fence, uint64_t* persistent_ns) {
    const bool blocked = IsBlocked(*fence);
    const bool changed = Block(stream, blocked);
    if (blocked) {
      fence->run.Forget();
      return changed;
    }
    const uint32_t contexts =
        ContextsAtWork(world_.Limits(stream->device), world_.Compute(stream->device));
    fence->run.See(world_.NowNs(), contexts,
                   [&] { return !fence->started || !world_.Pending(fence->start); });
    const uint64_t ns = fence->run.PersistentNs(fence->batch.estimate_ns);
    if (ns > *persistent_ns) *persistent_ns = ns;
    return changed;
  }

  static int64_t LaunchedNs(const Fence& fence) {
    return fence.recorded_ns - static_cast<int64_t>(fence.batch.launching_ns);
  }

  // Polling thread: the first batch of the stream is done, and took so long, if it was measured
  // (else below 0). When was that, if nobody looked since `late_ns`? It began with its launch, or
  // where the one before it ended; what stands behind a wait, and what follows that, may have begun
  // later.
  void Ran(StreamRecord* stream, const Fence& fence, int64_t elapsed_ns, int64_t late_ns,
           int64_t now_ns) {
    int64_t ended_ns = now_ns;
    if (world_.Compute(stream->device).occupancy.away()) {
      const bool later = fence.waits || (fence.follows && stream->head_ns == 0);
      int64_t ns = elapsed_ns >= 0 ? elapsed_ns : static_cast<int64_t>(fence.backlog_ns);
      int64_t since_ns = later           ? now_ns - ns
                         : fence.follows ? Max(LaunchedNs(fence), stream->head_ns)
                                         : LaunchedNs(fence);
      // Without a start event: from the end of the one before it, with the pause between them.
      const bool between = !later && elapsed_ns < 0 && stream->done != nullptr &&
                           stream->head_ns != 0 && fence.recorded_ns <= late_ns;
      if (between && world_.Elapsed(stream->done->end, fence.end, &elapsed_ns) && elapsed_ns >= 0) {
        since_ns = stream->head_ns;
        ns = elapsed_ns;
      }
      const auto ran = [&](uint32_t device) {
        return world_.Compute(device).occupancy.Ran(since_ns, ns, now_ns);
      };
      ForEachBit(fence.others, ran);
      ended_ns = ran(stream->device);
      if (later) ended_ns = 0;
    }
    stream->head_ns = ended_ns;
  }

  // Polling thread: the fence at the head of the queue is done.
  void Learn(StreamRecord* stream, const Fence& fence, int64_t now_ns) {
    const shm::DeviceLimits& limits = world_.Limits(stream->device);
    DeviceCompute& compute = world_.Compute(stream->device);
    shm::DeviceUsage& usage = world_.Usage(stream->device);
    const CUevent from = fence.started                              ? fence.start
                         : fence.follows && stream->done != nullptr ? stream->done->end
                                                                    : nullptr;
    uint64_t busy_ns = fence.batch.estimate_ns;
    int64_t elapsed_ns = -1;
    // An end that was recorded when its process was back says nothing of the time before. An error
    // of the program's (a faulted kernel, say) ends all measuring in this context.
    const int64_t from_ns = fence.started     ? LaunchedNs(fence)
                            : from != nullptr ? stream->done->recorded_ns
                                              : now_ns;
    const int64_t late_ns = compute.occupancy.LateFrom(usage, now_ns);
    const bool was_away = from_ns <= late_ns && late_ns < fence.recorded_ns;
    const bool measured = from != nullptr && !was_away &&
                          world_.Elapsed(from, fence.end, &elapsed_ns) && elapsed_ns >= 0;
    Ran(stream, fence, measured ? elapsed_ns : -1, late_ns, now_ns);
    if (measured) {
      uint32_t together = limits.together.load(std::memory_order_relaxed);
      if (compute.sliced_ns.load(std::memory_order_relaxed) > now_ns - elapsed_ns) {
        together = shm::kInSlices;
      }
      const Beside beside{.in_gaps = together == shm::kInGaps ||
                                     compute.crowded.load(std::memory_order_relaxed) != 0,
                          .in_slices = together == shm::kInSlices
                                           ? std::max(2U, ContextsAtWork(limits, compute))
                                           : 1};
      const Measured seen = MeasureBatch(fence.batch, static_cast<uint64_t>(elapsed_ns), beside);
      busy_ns = seen.busy_ns;
      if (static_cast<uint64_t>(elapsed_ns) + kErraticByNs < fence.backlog_ns / 2) {
        compute.erratic_until_ns.store(now_ns + kErraticForNs, std::memory_order_relaxed);
      }
      const RanBeside beside_whom = together == shm::kInSlices ? RanBeside::kInSlices
                                    : limits.active_members.load(std::memory_order_relaxed) > 1
                                        ? RanBeside::kOwnShare
                                        : RanBeside::kNone;
      if (seen.most_ns != 0) {
        Estimates& estimates = world_.estimates();
        if (fence.batch.unknown) {
          estimates.LearnUnknown(seen.least_ns, seen.most_ns, beside_whom, kUnknownNs);
        }
        const uint64_t first_ns = std::min(kFirstNs, estimates.ForUnknown(kUnknownNs));
        estimates.Learn(fence.batch.key, seen.least_ns, seen.most_ns, beside_whom, first_ns);
      }
      // Until that is put right it is known late that the device is done, which costs where others
      // wait for it.
      const uint32_t lease = limits.lease.load(std::memory_order_relaxed);
      const bool waited = (lease & shm::kLeaseOpen) == 0 || (lease & shm::kLeaseContended) != 0;
      if (seen.doubtful || (seen.too_long && waited))
        stream->probe.store(1, std::memory_order_relaxed);
    }
    compute.occupancy.Measure(usage, busy_ns, now_ns);
  }

  // What the device has of a stream with a launch in the driver. Nothing: that comes later than
  // this, and its start event is too early to measure from.
  StreamState AskStream(StreamRecord* stream) {
    StreamState state = StreamState::kUnknown;
    if (world_.MayRecord()) {
      Fencing(stream, 0, [&] {
        if (stream->ending.load() != 0 || HasOpen(*stream)) return;
        const int64_t now_ns = world_.NowNs();
        state = world_.Ask(*stream);
        if (state != StreamState::kIdle) return;
        ReleaseFence(stream->work, stream->open);
        stream->open = nullptr;
        stream->follows = false;
        stream->began_ns.store(now_ns, std::memory_order_relaxed);
      });
    }
    world_.DoneRecording();
    return state;
  }

  World& world_;
};

}  // namespace prorata::client
