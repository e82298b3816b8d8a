#pragma once

// The slots of a context's fences; invariants in fences.h.

#include "client/fences.h"

namespace prorata::client {

inline constexpr int32_t kSlots = 256;
inline constexpr uint32_t kMaxRings = 64;

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
};

struct Ring {
  Lock lock;
  std::atomic<CUcontext> context;  // null: free
  uint32_t device;
  std::atomic<uint32_t> users;
  std::atomic<uint32_t> closing;
  std::atomic<uint32_t> harvesting;
  int32_t head, tail;  // of the queue, oldest first
  int32_t free;        // free list
  int32_t frontier;    // the slot that ended last of all measured, or -1
  Slot slots[kSlots];
};

extern std::atomic<Ring*> g_rings[kMaxRings];

// The ring of a context, made if need be; nullptr: no memory.
Ring* RingOf(CUcontext context, uint32_t device);

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

// A free slot with one reference, its events made; -1: none. The context must be current.
int32_t TakeSlot(Ring* ring);
void DropReference(Ring* ring, int32_t slot);
void DropReferenceLocked(Ring* ring, int32_t slot);

// Takes what is done out of the queue. At most one thread at a time; others return at once.
void Harvest(Ring* ring);

// Forgets all slots and frees the ring. Nobody uses it any more.
void DiscardRing(Ring* ring);

}  // namespace prorata::client
