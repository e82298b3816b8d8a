#include "client/compute.h"
#include "client/rings.h"

namespace prorata::client {

std::atomic<Ring*> g_rings[kMaxRings];

namespace {

Lock g_making;

void Clear(Ring* ring) {
  ring->head = ring->tail = ring->frontier = -1;
  ring->free = 0;
  for (int32_t i = 0; i < kSlots; ++i) {
    const uint64_t use = ring->slots[i].use;
    ring->slots[i] = Slot{};
    ring->slots[i].use = use + 1;
    ring->slots[i].next = i + 1 < kSlots ? i + 1 : -1;
  }
}

// What lies between two events, in nanoseconds; false: the driver does not say.
bool Elapsed(CUevent from, CUevent to, int64_t* ns) {
  float ms = 0;
  if (PRORATA_REAL(cuEventElapsedTime)(&ms, from, to) != CUDA_SUCCESS) return false;
  *ns = static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  return true;
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
    measured = Elapsed(from, slot.end, &elapsed_ns) && elapsed_ns >= 0;
  }
  if (measured && frontier >= 0) Elapsed(ring->slots[frontier].end, slot.end, &beyond_ns);
  if (!measured) {
    // An error of the program's (a faulted kernel, say) ends all measuring in this context.
    ChargeDevice(ring->device, slot.batch.estimate_ns);
  } else {
    const BatchCharge charge = ChargeOf(slot.batch, static_cast<uint64_t>(elapsed_ns), beyond_ns);
    ChargeDevice(ring->device, charge.busy_ns);
    if (charge.learned_ns != 0) g_estimates.Learn(slot.batch.key, charge.learned_ns);
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

// The slot after `previous` in the queue (or the first, for -1).
int32_t NextInQueue(Ring* ring, int32_t previous) {
  const Holding holding(ring->lock);
  return previous < 0 ? ring->head : ring->slots[previous].next;
}

void Unlink(Ring* ring, int32_t index, int32_t previous) {
  const Holding holding(ring->lock);
  const int32_t next = ring->slots[index].next;
  (previous < 0 ? ring->head : ring->slots[previous].next) = next;
  if (ring->tail == index) ring->tail = previous;
}

}  // namespace

Ring* RingOf(CUcontext context, uint32_t device) {
  const Holding making(g_making);
  Ring* unused = nullptr;
  for (auto& place : g_rings) {
    Ring* ring = place.load();
    if (ring == nullptr) {
      if (unused == nullptr) {
        unused = static_cast<Ring*>(MapPages(sizeof(Ring)));
        if (unused == nullptr) return nullptr;
        place.store(unused);
      }
      break;
    }
    if (ring->context.load() == context) return ring;
    if (ring->context.load() == nullptr && ring->users.load() == 0 && unused == nullptr) {
      unused = ring;
    }
  }
  if (unused == nullptr) return nullptr;
  Clear(unused);
  unused->device = device;
  unused->closing.store(0);
  unused->context.store(context);
  return unused;
}

int32_t TakeSlot(Ring* ring) {
  int32_t index;
  {
    const Holding holding(ring->lock);
    index = ring->free;
    if (index < 0) return -1;
    ring->free = ring->slots[index].next;
    Slot& slot = ring->slots[index];
    slot.next = slot.from = -1;
    slot.references = 1;
    ++slot.use;
    slot.measured = false;
  }
  Slot& slot = ring->slots[index];
  // Blocking: whoever waits for one waits for milliseconds, and should sleep.
  if ((slot.start == nullptr &&
       PRORATA_REAL(cuEventCreate)(&slot.start, CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS) ||
      (slot.end == nullptr &&
       PRORATA_REAL(cuEventCreate)(&slot.end, CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS)) {
    DropReference(ring, index);
    return -1;
  }
  return index;
}

void DropReferenceLocked(Ring* ring, int32_t index) {
  Slot& slot = ring->slots[index];
  if (slot.references == 0 || --slot.references != 0) return;
  slot.next = ring->free;
  ring->free = index;
}

void DropReference(Ring* ring, int32_t index) {
  const Holding holding(ring->lock);
  DropReferenceLocked(ring, index);
}

void Harvest(Ring* ring) {
  if (ring->harvesting.exchange(1, std::memory_order_acquire) != 0) return;
  // Streams found busy in this pass: what comes later in them cannot be done either.
  constexpr int kMostBusy = 16;
  const StreamRecord* busy[kMostBusy];
  int busy_count = 0;
  int32_t previous = -1;
  for (int32_t at = NextInQueue(ring, -1); at >= 0 && busy_count < kMostBusy;) {
    Slot& slot = ring->slots[at];
    bool ready = true;
    for (int i = 0; i < busy_count; ++i) ready = ready && busy[i] != slot.stream;
    if (ready && PRORATA_REAL(cuEventQuery)(slot.end) == CUDA_ERROR_NOT_READY) {
      busy[busy_count++] = slot.stream;
      ready = false;
    }
    if (ready) {
      Unlink(ring, at, previous);
      Measure(ring, at);
      g_compute[ring->device].backlog.Remove(slot.backlog_ns);
      DropReference(ring, at);
    } else {
      previous = at;
    }
    at = NextInQueue(ring, previous);
  }
  ring->harvesting.store(0, std::memory_order_release);
}

void DiscardRing(Ring* ring) {
  for (int32_t at = ring->head; at >= 0; at = ring->slots[at].next) {
    g_compute[ring->device].backlog.Remove(ring->slots[at].backlog_ns);
    ChargeDevice(ring->device, ring->slots[at].batch.estimate_ns);
  }
  Clear(ring);
  ring->context.store(nullptr);
}

}  // namespace prorata::client
