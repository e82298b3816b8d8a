#include "client/compute.h"
#include "client/rings.h"
#include "client/share.h"
#include "client/streams.h"

namespace prorata::client {
namespace {

bool Record(const StreamRecord* stream, CUevent event) {
  const auto record =
      stream->per_thread ? PRORATA_REAL(cuEventRecord_ptsz) : PRORATA_REAL(cuEventRecord);
  return record(event, stream->stream) == CUDA_SUCCESS;
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
  if (PRORATA_REAL(cuEventQuery)(ring->slots[stream->last_slot].end) == CUDA_ERROR_NOT_READY) {
    return true;
  }
  DropReference(ring, stream->last_slot);
  return false;
}

// Begins a batch; the caller holds `fencing` and is a user of the ring.
void Begin(StreamRecord* stream) {
  Ring* ring = stream->ring;
  if (stream->word.load(std::memory_order_relaxed) != 0)
    return;  // another thread's launch began it
  // A slot may be open already: its launch failed. Its start lies too far back, so it starts anew.
  const int32_t index = stream->open_slot >= 0 ? stream->open_slot : TakeSlot(ring);
  if (index < 0) return;
  Slot& slot = ring->slots[index];
  if (slot.from >= 0) DropReference(ring, slot.from);
  slot.from = -1;
  if (HoldLast(stream)) {
    slot.from = stream->last_slot;
    slot.measured = true;
  } else {
    slot.measured = Record(stream, slot.start);
  }
  slot.stream = stream;
  stream->began_ns = NowNs();
  stream->open_slot = index;
}

void Enqueue(Ring* ring, int32_t index) {
  g_compute[ring->device].backlog.Add(ring->slots[index].backlog_ns);
  const Holding holding(ring->lock);
  if (ring->tail >= 0) {
    ring->slots[ring->tail].next = index;
  } else {
    ring->head = index;
  }
  ring->tail = index;
}

void End(StreamRecord* stream, bool unknown) {
  Ring* ring = stream->ring;
  const uint64_t word = stream->word.exchange(0, std::memory_order_relaxed);
  const uint64_t key = stream->batch_key.exchange(0, std::memory_order_relaxed);
  if (LaunchesIn(word) == 0) return;
  g_compute[stream->device].launches.fetch_add(LaunchesIn(word), std::memory_order_relaxed);
  const int32_t index = stream->open_slot >= 0 ? stream->open_slot : TakeSlot(ring);
  stream->open_slot = -1;
  if (index < 0) return;
  Slot& slot = ring->slots[index];
  slot.stream = stream;
  slot.batch = {
      .key = key == kMixedKey ? 0 : key,
      .launches = LaunchesIn(word),
      .estimate_ns = NsIn(word),
      .unknown = unknown,
      .pressed = slot.from >= 0 &&
                 PRORATA_REAL(cuEventQuery)(ring->slots[slot.from].end) == CUDA_ERROR_NOT_READY,
      .host_ns = NowNs() - stream->began_ns};
  slot.backlog_ns = slot.batch.estimate_ns + (unknown ? kUnknownNs : 0);
  if (!Record(stream, slot.end)) {
    if (slot.from >= 0) DropReference(ring, slot.from);
    DropReference(ring, index);
    return;
  }
  stream->last_slot = index;
  stream->last_use = slot.use;
  Enqueue(ring, index);
}

template <typename F>
void Fencing(StreamRecord* stream, F&& f) {
  if (stream->ring == nullptr || stream->fencing.exchange(1, std::memory_order_acquire) != 0) {
    return;
  }
  {
    const RingUse use(stream->ring);
    if (use.entered()) {
      const OwnCalls own;
      f();
    }
  }
  stream->fencing.store(0, std::memory_order_release);
}

template <typename F>
void ForRingOf(CUcontext context, F&& f) {
  for (auto& place : g_rings) {
    Ring* ring = place.load();
    if (ring == nullptr) return;
    if (ring->context.load() == context) f(ring);
  }
}

}  // namespace

void BeginBatch(StreamRecord* stream) {
  Fencing(stream, [&] {
    Harvest(stream->ring);
    Begin(stream);
  });
}

void EndBatch(StreamRecord* stream, bool unknown) {
  Fencing(stream, [&] {
    End(stream, unknown);
    Harvest(stream->ring);
  });
}

void HarvestAll() {
  for (auto& place : g_rings) {
    Ring* ring = place.load();
    if (ring == nullptr) return;
    const RingUse use(ring);
    if (!use.entered() || ring->head < 0) continue;
    const OwnCalls own;
    // Queries want a current context on some drivers; this thread has none of its own.
    if (PRORATA_REAL(cuCtxPushCurrent_v2)(ring->context.load()) != CUDA_SUCCESS) continue;
    Harvest(ring);
    CUcontext popped;
    PRORATA_REAL(cuCtxPopCurrent_v2)(&popped);
  }
}

void AwaitOldestFence(uint32_t device) {
  for (auto& place : g_rings) {
    Ring* ring = place.load();
    if (ring == nullptr) break;
    if (ring->device != device) continue;
    const RingUse use(ring);
    if (!use.entered()) continue;
    int32_t oldest;
    {
      const Holding holding(ring->lock);
      oldest = ring->head;
      if (oldest >= 0) ++ring->slots[oldest].references;
    }
    if (oldest < 0) continue;
    const OwnCalls own;
    PRORATA_REAL(cuEventSynchronize)(ring->slots[oldest].end);
    DropReference(ring, oldest);
    Harvest(ring);
    return;
  }
  // Its context is just being destroyed, or another thread has just harvested it.
  const std::atomic<uint32_t> never{0};
  FutexWait(&never, 0, 1'000'000);
}

void FencesOfContextEnding(CUcontext context) {
  ForRingOf(context, [](Ring* ring) {
    ring->closing.store(1);
    const int64_t deadline_ns = NowNs() + 100'000'000;
    while (ring->users.load() != 0 && NowNs() < deadline_ns) {
      const std::atomic<uint32_t> never{0};
      FutexWait(&never, 0, 100'000);
    }
  });
}

void FencesOfContextStay(CUcontext context) {
  ForRingOf(context, [](Ring* ring) { ring->closing.store(0); });
}

void FencesOfContextGone(CUcontext context) {
  DropStreamsOf(context);
  ForRingOf(context, DiscardRing);
}

}  // namespace prorata::client
