#pragma once

// What is done with fences (fence_ring.h), over the World of member_compute.h.

#include "client/fence_ring.h"
#include "client/member_compute.h"

namespace prorata::client {

template <typename World>
class FenceMachine {
 public:
  explicit FenceMachine(World& world) : world_(world) {}

  // Begins a batch, if none is under way.
  void BeginBatch(StreamRecord* stream) {
    Fencing(stream, [&] {
      Harvest(stream->ring);
      Begin(stream);
    });
  }

  // Fences the batch under way, whose last launch was just made. `unknown`: it holds a launch
  // without an estimate.
  void EndBatch(StreamRecord* stream, bool unknown) {
    Fencing(stream, [&] {
      End(stream, unknown, true);
      Harvest(stream->ring);
    });
  }

  // That, some time after its last launch: all of it may have run by now.
  void EndOldBatch(StreamRecord* stream) {
    Fencing(stream, [&] {
      End(stream, false, false);
      Harvest(stream->ring);
    });
  }

  // Takes what is done out of the queue. At most one thread at a time; others return at once.
  void Harvest(Ring* ring) {
    if (ring->harvesting.exchange(1, std::memory_order_acquire) != 0) return;
    // Streams found busy in this pass: what comes later in them cannot be done either.
    const StreamRecord* busy[kMostAtWork];
    bool blocked[kMostAtWork];
    uint32_t busy_count = 0;
    bool any_done = false;
    uint64_t persistent_ns = 0;
    int32_t previous = -1;
    for (int32_t at = NextInQueue(ring, -1); at >= 0 && busy_count < kMostAtWork;) {
      Slot& slot = ring->slots[at];
      uint32_t behind = 0;
      while (behind < busy_count && busy[behind] != slot.stream) ++behind;
      bool ready = behind == busy_count;
      if (!ready) {
        Block(ring, slot, blocked[behind]);
      } else if (world_.Pending(slot.end)) {
        busy[busy_count] = slot.stream;
        blocked[busy_count++] = slot.waits && world_.Pending(slot.start);
        Block(ring, slot, blocked[behind]);
        WatchRun(ring, slot, blocked[behind], &persistent_ns);
        ready = false;
      }
      if (ready) {
        Block(ring, slot, false);
        if (UnlinkFromQueue(ring, at, previous)) world_.Compute(ring->device).contexts.End();
        Measure(ring, at);
        RemoveFromBacklog(ring, slot);
        DropReference(ring, at);
        any_done = true;
      } else {
        previous = at;
      }
      at = NextInQueue(ring, previous);
    }
    if (any_done) {
      const int32_t head = NextInQueue(ring, -1);
      Backlog& backlog = world_.Compute(ring->device).backlog;
      if (head >= 0) {
        backlog.HeadIs(ring->slots[head].backlog_ns, world_.NowNs());
        TellExpectedEnd(ring->device);
      } else if (backlog.count() == 0) {
        backlog.AllIsDone(world_.NowNs());
      }
    }
    uint32_t at_work = 0;
    for (uint32_t i = 0; i < busy_count; ++i) {
      if (!blocked[i]) ring->at_work[at_work++].store(busy[i], std::memory_order_relaxed);
    }
    ring->at_work_count.store(at_work, std::memory_order_relaxed);
    ring->persistent_ns.store(persistent_ns, std::memory_order_relaxed);
    ring->harvesting.store(0, std::memory_order_release);
  }

  // The ring's context is gone, and nobody uses it any more: what it had queued is charged as
  // estimated, and all slots are forgotten.
  void Discard(Ring* ring) {
    if (ring->head >= 0) world_.Compute(ring->device).contexts.End();
    for (int32_t at = ring->head; at >= 0; at = ring->slots[at].next) {
      Block(ring, ring->slots[at], false);
      RemoveFromBacklog(ring, ring->slots[at]);
      ChargeDevice(world_, ring->device, ring->slots[at].batch.estimate_ns);
    }
    ClearRing(ring);
    ring->context.store(nullptr);
  }

 private:
  // Work that has not begun because its stream waits for something else is no backlog: it keeps
  // nobody from launching, and its lease may be given back. When the wait ends it is again.
  void Block(Ring* ring, Slot& slot, bool blocked) {
    if (slot.blocked == blocked) return;
    Backlog& backlog = world_.Compute(ring->device).backlog;
    {
      const Holding holding(ring->lock);
      slot.blocked = blocked;
    }
    if (blocked) {
      backlog.Remove(slot.backlog_ns);
    } else {
      backlog.Add(slot.backlog_ns, world_.NowNs());
    }
  }

  void TellExpectedEnd(uint32_t device) {
    world_.Usage(device).expected_end_ns.store(world_.Compute(device).backlog.end_ns(),
                                               std::memory_order_relaxed);
  }

  // There is nothing to be seen until what is launched should be done, and its program had time to
  // launch more. Then a wake-up is worth its while.
  void MoveLook(uint32_t device, int64_t now_ns) {
    DeviceCompute& compute = world_.Compute(device);
    const int64_t by_ns = compute.look_by_ns.load(std::memory_order_relaxed);
    if (by_ns == 0 || compute.unknown.load(std::memory_order_relaxed) != 0) return;
    const uint64_t backlog_ns = compute.backlog.StillNs(now_ns);
    world_.Usage(device).backlog_ns.store(backlog_ns > 0 ? backlog_ns : 1,
                                          std::memory_order_relaxed);
    // Work may end some part earlier than expected, which matters where it is long, or a long pause
    // is to follow. One that is not long as a rule is seen to begin, and seen again. What was
    // launched behind the last fence when it was last looked at is launched behind this one, too.
    const bool matters =
        backlog_ns > static_cast<uint64_t>(LeaseWatch::kWhileCertainNs) || compute.gaps.AreLong();
    const int64_t early_ns = matters ? static_cast<int64_t>(backlog_ns / 16) : 0;
    const int64_t tail_ns = compute.tail_ns.load(std::memory_order_relaxed);
    const int64_t report_ns = IdleReportNs(world_.Limits(device), compute);
    const int64_t after_ns = compute.gaps.AreLong() ? report_ns : report_ns / 2;
    const int64_t idle_ns = compute.backlog.end_ns() - early_ns + tail_ns + after_ns;
    const int64_t at_ns = idle_ns < by_ns ? idle_ns : by_ns;
    const int64_t later_ns = at_ns - compute.look_ns.load(std::memory_order_relaxed);
    if (later_ns > LeaseWatch::kOftenNs || later_ns < -LeaseWatch::kOftenNs) {
      world_.MoveLook(device, at_ns);
    }
  }

  void RemoveFromBacklog(Ring* ring, const Slot& slot) {
    DeviceCompute& compute = world_.Compute(ring->device);
    compute.backlog.Remove(slot.backlog_ns);
    if (slot.batch.unknown) compute.unknown.fetch_sub(1, std::memory_order_relaxed);
  }

  // The first batch of its stream that is not done. `blocked`: it has not begun.
  void WatchRun(Ring* ring, Slot& slot, bool blocked, uint64_t* persistent_ns) {
    if (blocked) return slot.run.Forget();
    const uint32_t contexts =
        ContextsAtWork(world_.Limits(ring->device), world_.Compute(ring->device));
    slot.run.See(world_.NowNs(), contexts,
                 [&] { return !slot.measured || slot.from >= 0 || !world_.Pending(slot.start); });
    const uint64_t ns = slot.run.PersistentNs(slot.batch.estimate_ns);
    if (ns > *persistent_ns) *persistent_ns = ns;
  }

  template <typename F>
  void Fencing(StreamRecord* stream, F&& f) {
    if (stream->ring == nullptr || stream->fencing.exchange(1, std::memory_order_acquire) != 0) {
      return;
    }
    {
      const RingUse use(stream->ring);
      if (use.entered()) {
        const typename World::OwnCalls own(world_);
        f();
      }
    }
    stream->fencing.store(0, std::memory_order_release);
  }

  // A free slot with one reference, its events made; -1: none. The context must be current.
  int32_t TakeSlot(Ring* ring) {
    const int32_t index = PopFree(ring);
    if (index < 0) return -1;
    Slot& slot = ring->slots[index];
    if ((slot.start == nullptr && !world_.CreateEvent(&slot.start)) ||
        (slot.end == nullptr && !world_.CreateEvent(&slot.end))) {
      DropReference(ring, index);
      return -1;
    }
    return index;
  }

  // Whether the stream's last fence is still outstanding; then takes a reference on it.
  bool HoldLast(StreamRecord* stream) {
    Ring* ring = stream->ring;
    if (stream->last_slot < 0) return false;
    {
      const Holding holding(ring->lock);
      Slot& slot = ring->slots[stream->last_slot];
      if (slot.use != stream->last_use || slot.references == 0) return false;
      ++slot.references;
    }
    if (world_.Pending(ring->slots[stream->last_slot].end)) return true;
    DropReference(ring, stream->last_slot);
    return false;
  }

  // The caller holds `fencing` and is a user of the ring.
  void Begin(StreamRecord* stream) {
    Ring* ring = stream->ring;
    if (stream->word.load(std::memory_order_relaxed) != 0)
      return;  // another thread's launch began it
    // A slot may be open already: its launch failed. Its start lies too far back, so it starts
    // anew.
    const int32_t index = stream->open_slot >= 0 ? stream->open_slot : TakeSlot(ring);
    if (index < 0) return;
    Slot& slot = ring->slots[index];
    if (slot.from >= 0) DropReference(ring, slot.from);
    slot.from = -1;
    slot.waits = stream->waits.exchange(0, std::memory_order_relaxed) != 0;
    if (!slot.waits && HoldLast(stream)) {
      slot.from = stream->last_slot;
      slot.measured = true;
    } else {
      slot.measured = world_.Record(*stream, slot.start);
    }
    slot.stream = stream;
    slot.batch.first = slot.from < 0 && FirstOfTurn(stream->device);
    const int64_t now_ns = world_.NowNs();
    stream->began_ns.store(now_ns, std::memory_order_relaxed);
    DeviceCompute& compute = world_.Compute(stream->device);
    if (compute.backlog.count() == 0) compute.gaps.Launches(compute.backlog.end_ns(), now_ns);
    if (stream->open_slot < 0) ring->open.fetch_add(1, std::memory_order_relaxed);
    stream->open_slot = index;
  }

  // Whether nothing was begun yet under this lease, which others wait for.
  bool FirstOfTurn(uint32_t device) {
    const uint32_t lease = world_.Limits(device).lease.load(std::memory_order_relaxed);
    auto& begun = world_.Compute(device).begun_sequence;
    if ((lease & protocol::kLeaseContended) == 0 ||
        begun.load(std::memory_order_relaxed) == SequenceOf(lease)) {
      return false;
    }
    begun.store(SequenceOf(lease), std::memory_order_relaxed);
    return true;
  }

  void End(StreamRecord* stream, bool unknown, bool just_launched) {
    Ring* ring = stream->ring;
    const uint64_t word = stream->word.exchange(0, std::memory_order_relaxed);
    const uint64_t key = stream->batch_key.exchange(0, std::memory_order_relaxed);
    if (LaunchesIn(word) == 0) return;
    DeviceCompute& compute = world_.Compute(stream->device);
    compute.launches.fetch_add(LaunchesIn(word), std::memory_order_relaxed);
    const uint32_t open = ring->open.load(std::memory_order_relaxed);
    if (stream->open_slot >= 0) ring->open.fetch_sub(1, std::memory_order_relaxed);
    const int32_t index = stream->open_slot >= 0 ? stream->open_slot : TakeSlot(ring);
    stream->open_slot = -1;
    if (index < 0) return;
    Slot& slot = ring->slots[index];
    slot.stream = stream;
    slot.batch = {.key = key == kMixedKey ? 0 : key,
                  .launches = LaunchesIn(word),
                  .estimate_ns = NsIn(word),
                  .unknown = unknown,
                  .pressed = slot.from >= 0 && world_.Pending(ring->slots[slot.from].end),
                  .first = slot.batch.first,
                  .host_ns = world_.NowNs() - stream->began_ns,
                  .beside = StreamsAtWork(*ring, stream),
                  .open = open};
    slot.backlog_ns = slot.batch.estimate_ns + (unknown ? kUnknownNs : 0);
    if (!world_.Record(*stream, slot.end)) {
      if (slot.from >= 0) DropReference(ring, slot.from);
      DropReference(ring, index);
      return;
    }
    stream->last_slot = index;
    stream->last_use = slot.use;
    const int64_t now_ns = world_.NowNs();
    const int64_t since_ns = SinceWhen(*stream, slot, now_ns, just_launched);
    if (compute.backlog.count() == 0) {
      // What was launched before it, and is done, ran before it.
      const int64_t done_ns = compute.backlog.end_ns();
      compute.backlog.HeadIs(slot.backlog_ns, done_ns > since_ns ? done_ns : since_ns);
    }
    compute.backlog.Add(slot.backlog_ns, since_ns);
    if (unknown) compute.unknown.fetch_add(1, std::memory_order_relaxed);
    TellExpectedEnd(stream->device);
    MoveLook(stream->device, now_ns);
    if (AppendToQueue(ring, index)) compute.contexts.Begin(stream->began_ns);
  }

  // From when on a batch runs that is just fenced, for what is expected of it: it waits for all of
  // its fence. But one that was fenced late may have run meanwhile; and of one that was launched no
  // faster than it runs, as those that leave gaps for others do, the last launch is left.
  int64_t SinceWhen(const StreamRecord& stream, const Slot& slot, int64_t now_ns,
                    bool just_launched) {
    const int64_t began_ns = stream.began_ns.load(std::memory_order_relaxed);
    if (!just_launched) return began_ns;
    const auto all_ns = static_cast<int64_t>(slot.backlog_ns);
    const bool gaps = world_.Limits(stream.device).together.load(std::memory_order_relaxed) != 0;
    if (!gaps || slot.batch.unknown || (now_ns - began_ns) * 2 < all_ns) return now_ns;
    const int64_t last_ns = all_ns / static_cast<int64_t>(slot.batch.launches);
    const int64_t since_ns = now_ns + last_ns - all_ns;
    return since_ns > began_ns ? since_ns : began_ns;
  }

  // Members of its own share run beside this one in its turns.
  bool BesideItsOwn(uint32_t device) {
    return world_.Limits(device).active_members.load(std::memory_order_relaxed) > 1;
  }

  // Others run beside this member's work, and are in its elapsed times.
  bool Crowded(uint32_t device) {
    return world_.Compute(device).crowded.load(std::memory_order_relaxed) != 0 ||
           world_.Limits(device).together.load(std::memory_order_relaxed) != 0;
  }

  // Charges and learns from a slot that is done. By the harvesting thread, which alone moves the
  // frontier.
  void Measure(Ring* ring, int32_t index) {
    Slot& slot = ring->slots[index];
    const int32_t frontier = ring->frontier;
    int64_t elapsed_ns = -1, beyond_ns = INT64_MAX;
    bool measured = slot.measured;
    if (measured) {
      const CUevent from = slot.from >= 0 ? ring->slots[slot.from].end : slot.start;
      measured = world_.Elapsed(from, slot.end, &elapsed_ns) && elapsed_ns >= 0;
    }
    if (measured && frontier >= 0) {
      world_.Elapsed(ring->slots[frontier].end, slot.end, &beyond_ns);
    }
    if (!measured) {
      // An error of the program's (a faulted kernel, say) ends all measuring in this context.
      ChargeDevice(world_, ring->device, slot.batch.estimate_ns);
    } else {
      BatchCharge charge = ChargeOf(slot.batch, static_cast<uint64_t>(elapsed_ns), beyond_ns,
                                    StreamsAtWork(*ring, slot.stream), &ring->uncharged);
      if (Crowded(ring->device)) charge = ChargeInCrowd(slot.batch, charge);
      auto& contexts = world_.Compute(ring->device).contexts;
      ChargeDevice(world_, ring->device,
                   contexts.Take(charge.busy_ns, [this] { return world_.NowNs(); }));
      if (charge.learned_ns != 0) {
        world_.estimates().Learn(slot.batch.key, charge.least_ns, charge.learned_ns,
                                 BesideItsOwn(ring->device));
      }
      if (charge.doubtful) slot.stream->probe.store(1, std::memory_order_relaxed);
    }
    const Holding holding(ring->lock);
    if (measured && beyond_ns > 0) {
      ++slot.references;
      ring->frontier = index;
      if (frontier >= 0) DropReferenceLocked(ring, frontier);
    }
    if (slot.from >= 0) DropReferenceLocked(ring, slot.from);
    slot.from = -1;
  }

  World& world_;
};

}  // namespace prorata::client
