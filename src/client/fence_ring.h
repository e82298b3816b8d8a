#pragma once

// Fences: events recorded behind batches of launches, by which a member knows how far a device has
// come and what it took. The life of one:
//
//   launch finds the stream's word 0       Begin: a slot of the context's ring; if nothing is
//                                          outstanding on the stream, its start event is recorded,
//                                          else the batch starts where the fence before it ends
//   launches                               add to the word (backlog.h)
//   the word is due                        End: the end event is recorded; the slot joins the
//                                          ring's queue; its estimate joins the device's backlog
//   harvest: the end event is done         out of the queue; elapsed time charged and learned from;
//                                          the slot lives on while another measures from its end
//
// A ring and its events belong to a context and go with it. Threads, invariants:
//   1. Queue, free list and reference counts change under the ring's lock only; no driver call is
//      made under it.
//   2. One thread at a time harvests a ring (`harvesting`, tried, never waited for), so an event
//      that is being queried is neither recorded again nor freed.
//   3. One thread at a time begins or ends a batch of a stream (`fencing`, tried, never waited for:
//      whoever loses leaves the batch to the winner).
//   4. A slot is recorded again only when its references are 0: one for the queue, one for each
//      batch that starts at its end, one for the frontier, one for each thread that waits for it.
//   5. Every thread that makes driver calls for a ring counts itself in `users`; a context is
//      destroyed only after `closing` is set and `users` was seen 0, or after a while: a program
//      that destroys a context while its own threads launch into it has no answer to expect.
//
// Here are the records and their lists; what is done with events is in fence_machine.h.

#include <atomic>
#include <cstdint>

#include "client/backlog.h"
#include "client/guest.h"
#include "client/run_watch.h"
#include "generated/cuda_abi.h"

namespace prorata::client {

struct Ring;

struct alignas(64) StreamRecord {
  std::atomic<uint64_t> word;  // the batch under way
  // The thread that launches here, by a tag of its own, or &kSharedStream. One thread's launches
  // need no atomic addition. When a second thread comes, one addition of the first may get lost in
  // the change: that batch then counts a launch too few, once.
  std::atomic<const void*> owner;
  std::atomic<uint64_t> batch_key;  // of its launches; kMixedKey if they differ; 0: none yet
  std::atomic<uint32_t> probe;      // estimates were found wrong: measure the next launch alone
  std::atomic<uint32_t> waits;      // a wait was put in the stream since its last batch
  // Threads between the lease's test and the launch's account, for launches that begin a batch.
  // Raised first, then the lease is read; the helper reads the lease first, then this. So when a
  // lease closes, either the helper sees the launch and does not say "drained", or the launching
  // thread sees the closed lease and waits.
  std::atomic<uint32_t> launching;
  uint32_t device;
  Ring* ring;
  // Identity; null context: the record is free.
  CUcontext context;
  CUstream stream;
  const void* thread;  // for a per-thread default stream
  bool per_thread;     // which variant of cuEventRecord means this stream
  // Under `fencing`:
  std::atomic<uint32_t> fencing;
  int32_t open_slot;              // of the batch under way, or -1
  int32_t last_slot;              // of the last fence, or -1 ...
  uint64_t last_use;              // ... valid while the slot's `use` is this
  std::atomic<int64_t> began_ns;  // the batch under way; others may read it
};

inline constexpr uint64_t kMixedKey = ~uint64_t{0};
inline constexpr char kSharedStream = 0;

// Work launched and not yet fenced.
struct OpenWork {
  uint64_t launches = 0;
  uint64_t ns = 0;
  uint32_t launching = 0;      // threads that are just beginning a batch
  uint64_t persistent_ns = 0;  // of a persistent kernel: for how long it has been running
  int64_t began_ns = 0;        // when the last of the batches was begun
  void Add(const StreamRecord& stream) {
    const uint64_t word = stream.word.load(std::memory_order_relaxed);
    launches += LaunchesIn(word);
    ns += NsIn(word);
    launching += stream.launching.load();
    const int64_t batch_ns = stream.began_ns.load(std::memory_order_relaxed);
    if (LaunchesIn(word) != 0 && batch_ns > began_ns) began_ns = batch_ns;
  }
  void Add(const Ring& ring);
};

inline constexpr int32_t kSlots = 256;
inline constexpr uint32_t kMostAtWork = 16;

struct Slot {
  CUevent start;
  CUevent end;
  StreamRecord* stream;
  Batch batch;
  uint64_t backlog_ns;  // what it adds to the device's backlog
  uint64_t use;         // one more at every allocation
  int32_t from;         // slot at whose end the batch starts, or -1: at its own start event
  int32_t next;         // in the queue or the free list, or -1
  uint32_t references;
  bool measured;  // has a start
  bool waits;     // its start lies behind a wait in the stream
  bool blocked;   // has not begun for that wait, and is not in the backlog; harvesting thread only
  RunWatch run;   // harvesting thread only
};

struct Ring {
  Lock lock;
  std::atomic<CUcontext> context;  // null: free
  uint32_t device;
  std::atomic<uint32_t> users;
  std::atomic<uint32_t> closing;
  std::atomic<uint32_t> harvesting;
  std::atomic<uint32_t> open;  // batches under way
  int32_t head, tail;          // of the queue, oldest first
  int32_t free;                // free list
  int32_t frontier;            // the slot that ended last of all measured, or -1
  Uncharged uncharged;         // harvesting thread only
  // Streams that had fenced work begun when last harvested; written by the harvesting thread.
  std::atomic<uint32_t> at_work_count;
  std::atomic<const StreamRecord*> at_work[kMostAtWork];
  std::atomic<uint64_t> persistent_ns;  // as OpenWork, of this context
  Slot slots[kSlots];
};

inline void OpenWork::Add(const Ring& ring) {
  const uint64_t running_ns = ring.persistent_ns.load(std::memory_order_relaxed);
  if (running_ns > persistent_ns) persistent_ns = running_ns;
}

// This stream and those that were at work beside it when the ring was last harvested.
inline uint32_t StreamsAtWork(const Ring& ring, const StreamRecord* stream) {
  uint32_t streams = 1;
  const uint32_t count = ring.at_work_count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (ring.at_work[i].load(std::memory_order_relaxed) != stream) ++streams;
  }
  return streams;
}

// All slots free, and without events. Nobody uses the ring.
inline void ClearRing(Ring* ring) {
  ring->head = ring->tail = ring->frontier = -1;
  ring->free = 0;
  ring->uncharged = {};
  ring->open.store(0, std::memory_order_relaxed);
  ring->at_work_count.store(0, std::memory_order_relaxed);
  ring->persistent_ns.store(0, std::memory_order_relaxed);
  for (int32_t i = 0; i < kSlots; ++i) {
    const uint64_t use = ring->slots[i].use;
    ring->slots[i] = Slot{};
    ring->slots[i].use = use + 1;
    ring->slots[i].next = i + 1 < kSlots ? i + 1 : -1;
  }
}

// Counts the caller as a user for as long as it lives; `entered()` is false if the ring is closing.
class RingUse {
 public:
  explicit RingUse(Ring* ring) : ring_(ring) {
    ring_->users.fetch_add(1);
    entered_ = ring_->closing.load() == 0 && ring_->context.load() != nullptr;
  }
  ~RingUse() { ring_->users.fetch_sub(1); }
  RingUse(const RingUse&) = delete;
  RingUse& operator=(const RingUse&) = delete;
  bool entered() const { return entered_; }

 private:
  Ring* ring_;
  bool entered_;
};

inline void DropReferenceLocked(Ring* ring, int32_t index) {
  Slot& slot = ring->slots[index];
  if (slot.references == 0 || --slot.references != 0) return;
  slot.next = ring->free;
  ring->free = index;
}

inline void DropReference(Ring* ring, int32_t index) {
  const Holding holding(ring->lock);
  DropReferenceLocked(ring, index);
}

// A free slot with one reference; -1: none.
inline int32_t PopFree(Ring* ring) {
  const Holding holding(ring->lock);
  const int32_t index = ring->free;
  if (index < 0) return -1;
  Slot& slot = ring->slots[index];
  ring->free = slot.next;
  slot.next = slot.from = -1;
  slot.references = 1;
  ++slot.use;
  slot.measured = slot.waits = slot.blocked = false;
  slot.run.Forget();
  return index;
}

// Answers whether the queue was empty before.
inline bool AppendToQueue(Ring* ring, int32_t index) {
  const Holding holding(ring->lock);
  const bool first = ring->tail < 0;
  (first ? ring->head : ring->slots[ring->tail].next) = index;
  ring->tail = index;
  return first;
}

// The batch under way is forgotten: its stream is gone. Nobody launches into it any more.
inline void ForgetOpenBatch(StreamRecord* stream) {
  if (stream->open_slot < 0 || stream->ring == nullptr) return;
  Ring* ring = stream->ring;
  const int32_t from = ring->slots[stream->open_slot].from;
  if (from >= 0) DropReference(ring, from);
  DropReference(ring, stream->open_slot);
  stream->open_slot = -1;
  ring->open.fetch_sub(1, std::memory_order_relaxed);
}

// The slot after `previous` in the queue (or the first, for -1).
inline int32_t NextInQueue(Ring* ring, int32_t previous) {
  const Holding holding(ring->lock);
  return previous < 0 ? ring->head : ring->slots[previous].next;
}

// Answers whether the queue is empty now.
inline bool UnlinkFromQueue(Ring* ring, int32_t index, int32_t previous) {
  const Holding holding(ring->lock);
  const int32_t next = ring->slots[index].next;
  (previous < 0 ? ring->head : ring->slots[previous].next) = next;
  if (ring->tail == index) ring->tail = previous;
  return ring->head < 0;
}

// The oldest slot in the queue that is not blocked, with one more reference, for a thread that
// waits for it; -1: none.
inline int32_t HoldOldest(Ring* ring) {
  const Holding holding(ring->lock);
  int32_t oldest = ring->head;
  while (oldest >= 0 && ring->slots[oldest].blocked) oldest = ring->slots[oldest].next;
  if (oldest >= 0) ++ring->slots[oldest].references;
  return oldest;
}

}  // namespace prorata::client
