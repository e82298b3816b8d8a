#pragma once

// Fences: events recorded behind batches of launches, by which this library knows how far a device
// has come and what it took. The life of one:
//
//   launch finds the stream's word 0       BeginBatch: a slot of the context's ring; if nothing is
//                                          outstanding on the stream, its start event is recorded,
//                                          else the batch starts where the fence before it ends
//   launches                               add to the word (backlog.h)
//   the word is due                        EndBatch: the end event is recorded; the slot joins the
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

#include <atomic>
#include <cstdint>

#include "client/backlog.h"
#include "client/guest.h"
#include "client/real.h"

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
  int32_t open_slot;  // of the batch under way, or -1
  int32_t last_slot;  // of the last fence, or -1 ...
  uint64_t last_use;  // ... valid while the slot's `use` is this
  int64_t began_ns;
};

inline constexpr uint64_t kMixedKey = ~uint64_t{0};
extern const char kSharedStream __attribute__((visibility("hidden")));

void BeginBatch(StreamRecord* stream);
void EndBatch(StreamRecord* stream, bool unknown);

// Work launched and not yet fenced.
struct OpenWork {
  uint64_t launches;
  uint64_t ns;
  uint32_t launching;  // threads that are just beginning a batch
};
OpenWork OpenWorkOf(uint32_t device);

// Helper: takes what is done out of all rings.
void HarvestAll();

// Waits until the oldest fence of a device is done, or a millisecond if it cannot be waited for.
void AwaitOldestFence(uint32_t device);

void FencesOfStreamGone(CUstream stream);
void FencesOfContextEnding(CUcontext context);  // nobody touches its events from here ...
void FencesOfContextStay(CUcontext context);    // ... until it turns out that it lives on
void FencesOfContextGone(CUcontext context);
// A context appeared or went: what the default stream means may have changed.
void ForgetStreamCache();

}  // namespace prorata::client
