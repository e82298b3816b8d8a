#pragma once

// Keeps account of launches, and knows when they are done (work.h), over the World of
// device_compute.h. A launch's way past the gate (gate.h says when it is open):
//
//   until the gate lets it pass: tracker.FenceBeforeWait(stream), then wait at the gate
//   estimate = estimates.Lookup(key)
//   begins = BeginsBatch(stream, estimate)
//   if begins: until RaiseLaunching(world, device): wait at the gate; the lease has closed
//   meanwhile
//              tracker.Begin(stream, estimate)
//   the driver's own launch
//   if it was taken: AddLaunch(stream, thread, key, estimate); tracker.Opened() if it was the first
//                    of a batch, tracker.End() if the batch is due
//   if begins: tracker.Returned(stream), launching.fetch_sub(1)

#include "client/compute/submitted.h"
#include "client/compute/work_poller.h"

namespace prorata::client {

template <typename World>
class WorkTracker : public WorkPoller<World> {
 public:
  // So many batches that begin with nothing before them pass until one launch is measured again.
  static constexpr uint32_t kMeasureEvery = 16;
  static constexpr int64_t kTailNs = 100'000;
  static constexpr uint32_t kMaxGiveUps = 10;
  // How long another thread that is fencing is waited for, in naps and not in time: where the
  // process has no processor, time passes before that thread goes on. Without the first a batch may
  // be taken to run while it waits, and is charged for that; without the second the program may
  // hang, for a fence comes behind what it has yet to do.
  static constexpr int kFencingNaps = 250;   // 5 ms
  static constexpr int kOrderNaps = 50'000;  // a second

  explicit WorkTracker(World& world) : WorkPoller<World>(world) {}
  using WorkPoller<World>::Poll;

  // --- Launching threads. The stream's context is current ----------------------------------------

  // Before a launch that begins a batch; `launching` is raised. Returned follows.
  void Begin(StreamRecord* stream, uint32_t estimate_ns) {
    ContextWork* work = stream->work;
    stream->launching.fetch_add(1);
    if (stream->listed.load() != kListed) ListStream(stream);
    EndLegacy(stream);
    Fencing(stream, ComesBehindWait(*stream) ? kFencingNaps : 0, [&] {
      if (HasOpen(*stream)) Close(stream, false, false);  // a launch of unknown length comes alone
      if (work->pending.load(std::memory_order_relaxed) != 0) Poll(work);
      Start(stream, estimate_ns);
    });
  }

  // That launch is accounted for, or has failed.
  static void Returned(StreamRecord* stream) { stream->launching.fetch_sub(1); }

  // A launch that was just accounted for runs on other devices too (as bits).
  void RunsOn(StreamRecord* stream, uint32_t others) {
    const int64_t began_ns = stream->began_ns.load(std::memory_order_relaxed);
    ForEachBit(others & ~stream->others.fetch_or(others),
               [&](uint32_t i) { world_.Compute(i).occupancy.Begin(world_.Usage(i), began_ns); });
  }

  // After the first launch of a batch. `begun`: by a Begin. Else the batch that it was to join was
  // closed while its thread was stopped, and nobody knows when it came but that it just did.
  void Opened(StreamRecord* stream, bool begun) {
    if (!begun) stream->began_ns.store(world_.NowNs(), std::memory_order_relaxed);
    BecomeBusy(stream, stream->began_ns.load(std::memory_order_relaxed));
    if (stream->listed.load() != kListed) ListStream(stream);
  }

  // Fences the batch under way, whose last launch was just made. `unknown`: it holds a launch
  // without an estimate.
  void End(StreamRecord* stream, bool unknown, int naps = 0) {
    Fencing(stream, naps, [&] {
      const bool polled = stream->pending.load() == 0 || Poll(stream->work);
      Close(stream, unknown, true, polled);
    });
  }

  // That, some time after its last launch: all of it may have run by now.
  void EndOld(StreamRecord* stream, int naps = 0) {
    Fencing(stream, naps, [&] {
      Close(stream, false, false);
      Poll(stream->work);
    });
  }

  // Before something that makes the stream wait is put into it. What is under way is fenced first:
  // a fence behind the wait would show it running until the wait is over.
  void EndBeforeWait(StreamRecord* stream) {
    if (HasOpen(*stream)) EndOld(stream, kFencingNaps);
  }

  // Called by a thread that is about to wait at the gate. While the lease is closed nothing is
  // added to the batch under way: it is fenced, so that it is known when it has run.
  void FenceBeforeWait(StreamRecord* stream) {
    if (!HasOpen(*stream)) return;
    const bool open = (world_.Limits(stream->device).lease.load() & shm::kLeaseOpen) != 0;
    if (!open) EndOld(stream);
  }

  // An event that is recorded in the legacy stream keeps all blocking streams waiting for what they
  // have, as a launch into it does. Right after such a launch it adds nothing to that; later it
  // would stand behind, and before, work that the program put into other streams meanwhile. So it
  // is recorded before anything goes into another stream.
  void EndLegacy(StreamRecord* other) {
    StreamRecord* legacy = other->work->legacy.load(std::memory_order_acquire);
    if (legacy != nullptr && legacy != other && other->blocking && HasOpen(*legacy)) {
      End(legacy, false, kOrderNaps);
    }
  }

  // --- Proof by the program's own synchronisation ------------------------------------------------

  struct SyncMark {
    uint64_t submitted = 0;
    uint64_t serial = 0;
  };
  // Before the driver's call ...
  static SyncMark Mark(StreamRecord* stream) {
    const uint64_t submitted = stream->submitted.load(std::memory_order_acquire);
    const LockGuard holding(stream->work->lock);
    return {submitted, stream->serial};
  }
  // ... and after its success.
  void Proven(StreamRecord* stream, const SyncMark& mark) {
    ContextWork* work = stream->work;
    const WorkUse use(work);
    if (!use.entered()) return;
    RaiseProven(stream, mark);
    if (stream->pending.load() != 0) PollProven(work, stream);
    TryIdle(stream);
  }

  // The same for all streams of a context. The mark is kept in its records, so it is one thread's
  // at a time: 0: another's, and this one proves nothing.
  uint64_t MarkContext(ContextWork* work) {
    if (work->synchronizing.exchange(1) != 0) return 0;
    const uint64_t epoch = work->sync_epoch.fetch_add(1) + 1;
    untracked_ = work->untracked.load();
    const LockGuard holding(work->lock);
    for (StreamRecord* at = work->listed; at != nullptr; at = at->next_listed) {
      at->sync_submitted = at->submitted.load(std::memory_order_acquire);
      at->sync_serial = at->serial;
      at->sync_epoch = epoch;
    }
    return epoch;
  }
  void ContextProven(ContextWork* work, uint64_t epoch, bool success) {
    const WorkUse use(work);
    if (success && use.entered()) {
      if (OwnPolling(work)) {
        for (StreamRecord* at = NextListed(work, nullptr); at != nullptr;
             at = NextListed(work, at)) {
          if (at->sync_epoch != epoch) continue;
          RaiseProven(at, {at->sync_submitted, at->sync_serial});
          if (Collect(at, false, nullptr)) ReckonAnew(work->device, FirstFence(at));
          TryIdle(at);
        }
        work->polling.store(0, std::memory_order_release);
      }
      ProveTracked(work, untracked_);
    }
    work->synchronizing.store(0);
  }

  // Work of the context that is in no record was submitted.
  void Untracked(ContextWork* work) {
    const uint64_t before = work->untracked.fetch_add(1);
    bool first;
    {
      const LockGuard holding(work->lock);
      first = before == work->untracked_proven;
    }
    if (first)
      world_.Compute(work->device).occupancy.Begin(world_.Usage(work->device), world_.NowNs());
  }

  // --- Anyone ------------------------------------------------------------------------------------

  // Helper: fences what has been open for a while, if nothing was launched since it last looked.
  // True: something is open that it has not fenced.
  bool FenceTails(ContextWork* work, int64_t now_ns) {
    bool open = false;
    if (!OwnPolling(work)) return true;  // streams stay listed, and their records with them
    for (StreamRecord* at = NextListed(work, nullptr); at != nullptr; at = NextListed(work, at)) {
      if (at->ending.load() != 0 || at->per_thread || !HasOpen(*at)) continue;
      open = true;
      const uint64_t submitted = at->submitted.load(std::memory_order_relaxed);
      if (submitted != at->seen_submitted) {
        at->seen_submitted = submitted;
        at->seen_ns = now_ns;
      } else if (now_ns - at->seen_ns >= kTailNs) {
        FenceTail(at);
      }
    }
    work->polling.store(0, std::memory_order_release);
    return open;
  }

  // All that is open is fenced: before a capture begins, since while one is open nobody may fence
  // later what others launch (HelperMayRecord), and before a wait in the legacy stream, which the
  // fences of all blocking streams would stand behind.
  void FenceOpen(ContextWork* work) {
    for (int naps = kOrderNaps; !OwnPolling(work); --naps) {
      if (naps == 0) return;
      world_.Nap(Base::kFencingNapNs);
    }
    for (StreamRecord* at = NextListed(work, nullptr); at != nullptr; at = NextListed(work, at)) {
      if (at->ending.load() != 0 || at->per_thread || !HasOpen(*at)) continue;
      Fencing(at, kOrderNaps, [&] { Close(at, false, false); });
    }
    work->polling.store(0, std::memory_order_release);
  }

  // The bound cannot be kept: it is raised until the oldest fence is done.
  void GiveUpBound(uint32_t device, uint64_t bound_ns) {
    StreamRecord* of = nullptr;
    int64_t oldest_ns = 0;
    world_.ForEachWork(device, [&](ContextWork& work) {
      const LockGuard holding(work.lock);
      for (StreamRecord* at = work.listed; at != nullptr; at = at->next_listed) {
        if (at->first == nullptr || at->blocked) continue;
        if (of != nullptr && at->first->recorded_ns >= oldest_ns) continue;
        of = at;
        oldest_ns = at->first->recorded_ns;
      }
    });
    if (of == nullptr) return;
    const LockGuard holding(of->work->lock);
    if (of->first == nullptr || of->blocked || of->first->recorded_ns != oldest_ns) return;
    DeviceCompute& compute = world_.Compute(device);
    const bool raised = compute.bound_given_up.load() != 0;
    const uint32_t give_ups = raised ? Min(compute.give_ups.load() + 1, kMaxGiveUps) : 1;
    compute.give_ups.store(give_ups);
    compute.raised_bound_ns.store(compute.backlog.ns() + (bound_ns << 2 * (give_ups - 1)));
    if (!of->first->releases_bound) compute.bound_given_up.fetch_add(1);
    of->first->releases_bound = true;
  }

  // The stream's handle is no more; its fences live on. Nobody launches into it any more. False:
  // nothing of it is left.
  bool StreamGone(StreamRecord* stream) {
    TryIdle(stream);
    const LockGuard holding(stream->work->lock);
    stream->gone = true;
    return stream->listed.load() == kListed;
  }

  // The context is gone, and nobody uses its work any more: that is done, or dropped.
  void Discard(ContextWork* work) {
    const int64_t now_ns = world_.NowNs();
    DeviceCompute& compute = world_.Compute(work->device);
    for (StreamRecord* at = work->listed; at != nullptr;) {
      StreamRecord* next = at->next_listed;
      while (at->first != nullptr) {
        Forget(work->device, at->first, now_ns);
        PopFirstFence(at);
      }
      Block(at, false);
      ReleaseOthers(at, now_ns);
      at->closed.store(at->submitted.load());
      at->open = at->done = nullptr;
      if (at->busy.exchange(0) != 0) compute.occupancy.End(world_.Usage(work->device), now_ns);
      const bool gone = at->gone;
      at->listed.store(kNotListed);
      if (gone) world_.RecordGone(at);
      at = next;
    }
    work->listed = nullptr;
    ProveTracked(work, work->untracked.load());
    ForgetFences(work);
    work->legacy.store(nullptr);
    work->persistent_ns.store(0, std::memory_order_relaxed);
    work->context.store(nullptr);
  }

 private:
  using Base = WorkPoller<World>;
  using Base::AddToBacklogs;
  using Base::BecomeBusy;
  using Base::Block;
  using Base::Collect;
  using Base::Fencing;
  using Base::Forget;
  using Base::OwnPolling;
  using Base::ReckonAnew;
  using Base::ReleaseOthers;
  using Base::TryIdle;
  using Base::world_;

  // Others want the device, or a limit counts what is used of it.
  bool Contended(const StreamRecord* stream) const {
    const uint32_t lease = world_.Limits(stream->device).lease.load(std::memory_order_relaxed);
    return (lease & shm::kLeaseContended) != 0;
  }

  // With its end event made; nullptr: no memory.
  Fence* TakeFence(ContextWork* work) {
    Fence* fence = PopFreeFence(work);
    if (fence == nullptr || fence->end != nullptr || world_.CreateEvent(&fence->end)) return fence;
    ReleaseFence(work, fence);
    return nullptr;
  }

  // The caller holds `fencing`.
  void Start(StreamRecord* stream, uint32_t estimate_ns) {
    if (HasOpen(*stream)) return;  // another thread's launch began it
    DeviceCompute& compute = world_.Compute(stream->device);
    stream->follows = stream->pending.load() != 0;
    const bool waits = TakeWaits(stream);
    const uint32_t lease = world_.Limits(stream->device).lease.load(std::memory_order_relaxed);
    const uint32_t before = compute.begun_in.exchange(lease, std::memory_order_relaxed);
    const bool turns = SequenceOf(before) != SequenceOf(lease);
    bool alone = stream->probe.exchange(0, std::memory_order_relaxed) != 0;
    // Counted for the device: a program may use each of its streams once.
    if (!stream->follows &&
        (compute.quiet_batches.fetch_add(1, std::memory_order_relaxed) + 1) % kMeasureEvery == 0) {
      alone = true;
    }
    // A fence may be there already: its launch failed.
    if (stream->open != nullptr) ReleaseFence(stream->work, stream->open);
    stream->open = nullptr;
    const bool slices =
        world_.Limits(stream->device).together.load(std::memory_order_relaxed) == shm::kInSlices;
    if (waits || (!stream->follows && (alone || slices || estimate_ns == 0))) {
      Fence* fence = TakeFence(stream->work);
      if (fence != nullptr && (fence->start != nullptr || world_.CreateEvent(&fence->start))) {
        fence->started = world_.Record(*stream, fence->start) == Recorded::kYes;
        if (fence->started) stream->follows = false;
        fence->waits = waits;
        fence->turns = turns;
      }
      stream->open = fence;
    }
    const uint32_t streams = compute.occupancy.reasons();
    const bool others = streams > (stream->busy.load(std::memory_order_relaxed) != 0 ? 1U : 0U);
    uint64_t fence_at_ns = kFenceAtNs / (streams > 1 ? streams : 1);
    if (fence_at_ns < kMinFenceAtNs) fence_at_ns = kMinFenceAtNs;
    // Nobody but this thread can fence its own default stream, and nobody at all while a capture is
    // open: what is open when another stream needs it fenced would stay so (EndLegacy, FenceTail).
    const bool now_or_never =
        stream->per_thread || world_.Capturing() || (stream->legacy && others);
    // A fence behind a wait shows whether that is over (WatchRun).
    if (alone || (waits && Contended(stream)) || now_or_never) fence_at_ns = 0;
    stream->fence_at_ns.store(static_cast<uint32_t>(fence_at_ns), std::memory_order_relaxed);
    const int64_t now_ns = world_.NowNs();
    stream->began_ns.store(now_ns, std::memory_order_relaxed);
    compute.submitted_ns.store(now_ns, std::memory_order_relaxed);
    compute.batches.fetch_add(1, std::memory_order_relaxed);
  }

  // Fences what is open. The caller holds `fencing`. `polled`: the queue is as the device is.
  void Close(StreamRecord* stream, bool unknown, bool just_launched, bool polled = false) {
    ContextWork* work = stream->work;
    const uint64_t word = stream->submitted.load(std::memory_order_acquire);
    const uint64_t open = OpenSince(word, stream->closed.load(std::memory_order_relaxed));
    if (LaunchesIn(open) == 0) return;
    Fence* fence = stream->open != nullptr ? stream->open : TakeFence(work);
    stream->open = nullptr;
    if (fence == nullptr) return;  // it stays open, and busy
    DeviceCompute& compute = world_.Compute(stream->device);
    const int64_t began_ns = stream->began_ns.load(std::memory_order_relaxed);
    const uint64_t key = stream->batch_key.exchange(0, std::memory_order_relaxed);
    const uint32_t streams = compute.occupancy.reasons();
    const bool at_once = fence->started && just_launched;
    const auto gap_ns = at_once ? static_cast<uint64_t>(world_.NowNs() - began_ns) : 0;
    fence->follows = stream->follows && !fence->started;
    fence->batch = {.key = key == kMixedKey ? 0 : key,
                    .launches = LaunchesIn(open),
                    .estimate_ns = NsIn(open),
                    .unknown = unknown,
                    .pressed = fence->follows && polled && stream->pending.load() != 0,
                    .turns = fence->turns,
                    .prompt = at_once && gap_ns < kPromptNs,
                    .gap_ns = gap_ns,
                    .streams = streams > 1 ? streams : 1};
    fence->backlog_ns =
        fence->batch.estimate_ns + (unknown ? world_.estimates().ForUnknown(kUnknownNs) : 0);
    fence->from = stream->closed.load(std::memory_order_relaxed);
    fence->to = word;
    const Recorded recorded = world_.Record(*stream, fence->end);
    if (recorded != Recorded::kYes) {
      ReleaseFence(work, fence);
      if (recorded == Recorded::kFault) CloseUnfenced(stream, word);
      return;
    }
    const int64_t now_ns = world_.NowNs();
    const int64_t since_ns = just_launched ? now_ns : began_ns;
    fence->recorded_ns = now_ns;
    fence->batch.launching_ns = static_cast<uint64_t>(now_ns - began_ns);
    fence->others = stream->others.exchange(0);
    const bool look = fence->waits && Contended(stream);
    compute.launches.fetch_add(LaunchesIn(open), std::memory_order_relaxed);
    compute.submitted_ns.store(now_ns, std::memory_order_relaxed);
    AppendFence(stream, fence, [&] { AddToBacklogs(stream->device, *fence, since_ns); });
    stream->closed.store(word);
    // What others launch without a Begin, having seen it open, starts behind this fence.
    stream->follows = true;
    stream->began_ns.store(now_ns, std::memory_order_relaxed);
    if (look) Poll(work);
  }

  // Everything up to `word` is done, and no fence tells. The caller holds `fencing`.
  void CloseUnfenced(StreamRecord* stream, uint64_t word) {
    const uint64_t open = OpenSince(word, stream->closed.load(std::memory_order_relaxed));
    if (LaunchesIn(open) == 0) return;
    DeviceCompute& compute = world_.Compute(stream->device);
    const int64_t now_ns = world_.NowNs();
    stream->batch_key.store(0, std::memory_order_relaxed);
    ReleaseFence(stream->work, stream->open);
    stream->open = nullptr;
    compute.launches.fetch_add(LaunchesIn(open), std::memory_order_relaxed);
    shm::DeviceUsage& usage = world_.Usage(stream->device);
    const int64_t began_ns = stream->began_ns.load(std::memory_order_relaxed);
    compute.occupancy.Publish(usage, now_ns);
    compute.occupancy.Ran(began_ns, static_cast<int64_t>(NsIn(open)), now_ns);
    compute.occupancy.Measure(usage, NsIn(open), now_ns);
    ReleaseOthers(stream, now_ns);
    stream->closed.store(word);
  }

  void RaiseProven(StreamRecord* stream, const SyncMark& mark) {
    uint64_t proven = stream->proven.load();
    while (proven < mark.serial && !stream->proven.compare_exchange_weak(proven, mark.serial)) {
    }
    if (stream->closed.load() == mark.submitted || stream->submitted.load() != mark.submitted ||
        stream->fencing.exchange(1, std::memory_order_acquire) != 0) {
      return;
    }
    if (stream->submitted.load() == mark.submitted) CloseUnfenced(stream, mark.submitted);
    stream->fencing.store(0, std::memory_order_release);
  }

  void PollProven(ContextWork* work, StreamRecord* stream) {
    if (!OwnPolling(work)) return;
    if (Collect(stream, false, nullptr)) ReckonAnew(work->device, FirstFence(stream));
    work->polling.store(0, std::memory_order_release);
  }

  void ProveTracked(ContextWork* work, uint64_t untracked) {
    bool last;
    {
      const LockGuard holding(work->lock);
      last = untracked > work->untracked_proven && untracked == work->untracked.load();
      if (last) work->untracked_proven = untracked;
    }
    if (!last) return;
    world_.Compute(work->device).occupancy.End(world_.Usage(work->device), world_.NowNs());
  }

  void FenceTail(StreamRecord* stream) {
    if (world_.MayRecord()) {
      Fencing(stream, 0, [&] {
        if (stream->ending.load() == 0) Close(stream, false, false);
      });
    }
    world_.DoneRecording();
  }

  uint64_t untracked_ = 0;  // at MarkContext
};

// Whether the lease lets launches pass, or nobody answers for it; the backlog apart.
template <typename World>
bool LeaseAllows(World& world, uint32_t device) {
  const shm::DeviceLimits& limits = world.Limits(device);
  return shm::LaunchesPass(limits, limits.lease.load()) || HeartbeatLost(world);
}

// Raises `launching`; the lease is tested again after that, for it may have closed since: then it
// is lowered again, and this is false.
template <typename World>
bool RaiseLaunching(World& world, uint32_t device) {
  world.Compute(device).launching.fetch_add(1);
  if (LeaseAllows(world, device)) return true;
  world.Compute(device).launching.fetch_sub(1);
  return false;
}

}  // namespace prorata::client
