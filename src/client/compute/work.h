#pragma once

// What a member has submitted to a device and cannot prove done. The life of a batch:
//
//   launch finds nothing open in its stream   Begin; a start event where the batch is to be
//   measured
//                                             alone or lies behind a wait, or the hardware slices
//                                             between shares, and none else
//   launches                                  add to the stream's word; the first makes it busy
//   the batch is due                          Fence: an event is recorded, its fence joins the
//                                             stream's queue, its estimate the device's backlog
//   poll: the event is done                   out of the queue; what it took is learned from
//   or: the program synchronised              nothing was launched since: closed without an event
//   queue empty, nothing open                 the stream is proven idle
//
// A context's work and its events go with it. Records of streams and fences are never given back to
// the system; a stream's record outlives the stream until its last fence is done, so a fence's
// stream is always there. Threads, invariants:
//   1. Queues, lists and free lists change under the lock of their ContextWork only; no driver call
//      is made under it.
//   2. One thread at a time polls a context (`polling`, tried, never waited for). It alone takes
//      fences out of queues and streams out of the list, so an event that is being queried is
//      neither recorded again nor freed.
//   3. `closed` changes under `fencing` only (tried; whoever loses leaves it to the winner), and
//      after the fence that covers the launches has joined the queue. So who reads "nothing open"
//      and then "queue empty" has proof, but for 4.
//   4. A thread between the gate and the launch's account is counted in DeviceCompute::launching if
//      its launch begins a batch: raised, then the lease is read; the helper reads the lease, then
//      `launching`, then what is busy. So either the helper sees the launch and does not report
//      "drained", or the thread sees the closed lease and waits. A launch that adds to a batch that
//      is open is not counted. Should that batch be closed between its look at the lease and its
//      account, which takes a thread that is preempted for 100 us there, then the stream is busy
//      again with the account, and the launch is late by one.
//   5. A stream that becomes busy, or in which a batch is begun, is put in the list, unless it is
//      listed. Both sides write their own flag first and then read the other's (`busy` or
//      `launching`, and `listed`, sequentially consistent).
//      Once it is not listed its record may be freed, and be another stream's.
//   6. Every thread that makes driver calls for a context counts itself in `users`; a context is
//      destroyed only after `closing` is set and `users` was seen 0, or after a while: a program
//      that destroys a context while its own threads launch into it has no answer to expect.

#include <atomic>
#include <cstdint>

#include "client/compute/backlog.h"
#include "client/compute/run_watch.h"
#include "client/platform/os.h"
#include "generated/cuda_abi.h"

namespace prorata::client {

struct ContextWork;

struct Fence {
  CUevent start;
  CUevent end;
  Fence* next;
  Batch batch;
  uint64_t backlog_ns;  // what it adds to the device's backlog
  uint64_t serial;      // in its stream
  uint64_t from, to;    // its launches, as counted in StreamRecord::submitted
  int64_t recorded_ns;
  uint32_t others;      // devices, as bits, on which it runs too
  bool started;         // has a start event of its own
  bool follows;         // it starts where the fence before it ends
  bool waits;           // its start lies behind a wait in the stream
  bool turns;           // the first of its slice
  bool counted;         // in the backlog; under work->lock, as that of its stream (see blocked)
  bool releases_bound;  // the bound of the backlog is given up until it is done
  RunWatch run;         // polling thread only
};

// Of a stream in its context's list. Leaving: it is taken out, or stays if a launch made it busy;
// who sees that waits for the list's lock.
enum ListState : uint32_t { kNotListed, kListed, kLeaving };

struct alignas(64) StreamRecord {
  // Line 0: what a launch reads and writes.
  std::atomic<uint64_t> submitted;  // all launches (backlog.h) ...
  std::atomic<uint64_t> closed;     // ... of which so many are fenced or proven done
  // The thread that launches here, by a tag of its own, or &kSharedStream. One thread's launches
  // need no atomic addition. When a second thread comes, one addition of the first may get lost in
  // the change: that batch then counts a launch too few, once.
  std::atomic<const void*> owner;
  std::atomic<uint64_t> batch_key;    // of its launches; kMixedKey if they differ; 0: none yet
  std::atomic<uint32_t> fence_at_ns;  // when the batch is due
  std::atomic<uint32_t> fencing;
  std::atomic<uint32_t> busy;    // not proven idle
  std::atomic<uint32_t> listed;  // ListState
  uint32_t device;
  std::atomic<uint32_t> pending;  // fences in the queue

  ContextWork* work;
  CUcontext context;
  CUstream stream;
  uint64_t thread;  // whose, for a per-thread default stream; else 0
  bool per_thread;  // which variant of cuEventRecord means this stream
  bool legacy;      // waits for, and keeps waiting, every blocking stream
  bool blocking;
  bool gone;                         // destroyed; its fences live on (work->lock)
  std::atomic<uint32_t> ending;      // about to be destroyed: the helper leaves it alone
  std::atomic<uint32_t> launching;   // threads whose launch begins a batch in it
  std::atomic<uint32_t> probe;       // estimates were found wrong: measure the next launch alone
  std::atomic<uint32_t> waits;       // a wait was put in the stream since its last batch
  std::atomic<uint32_t> seen_waits;  // WaitsAround when its last batch began
  std::atomic<uint32_t> captures;    // a capture that began in it is open (session/captures.h)
  std::atomic<uint32_t> others;      // devices on which launches since the last fence run too
  std::atomic<uint64_t> proven;      // fences up to this serial are done; no need to ask
  // Under `fencing`:
  Fence* open;   // whose start event is recorded, for the batch under way
  bool follows;  // the batch under way began while a fence was pending
  std::atomic<int64_t> began_ns;
  // Helper:
  uint64_t seen_submitted;
  int64_t seen_ns;
  bool late;  // a launch in it is (LateLaunches)
  // Polling thread: none of its work had begun then; 0: it may have.
  int64_t blocked_ns;
  int64_t head_ns;  // the first of its queue began by then, or with its launch; 0: or later
  // Under work->lock:
  Fence *first, *last;
  bool blocked;     // none of its work has begun, for a wait in it: it is no part of the backlog
  Fence* done;      // the fence before `first`, kept while one may be measured from it
  uint64_t serial;  // of the last fence
  StreamRecord* next_listed;
  uint64_t sync_submitted, sync_serial, sync_epoch;  // of a synchronisation of the context
  StreamRecord* next_record;                         // of its bucket, or free
};

inline constexpr uint64_t kMixedKey = ~uint64_t{0};
inline constexpr char kSharedStream = 0;

// What came to `word` since it was `closed`. An addition that was lost when a second thread came to
// the stream (`owner`) takes away what that one had added meanwhile: of what is open nothing is
// known then but that there is something.
inline uint64_t OpenSince(uint64_t word, uint64_t closed) {
  const uint64_t open = word - closed;
  return (open >> 63) == 0 ? open : kOneLaunch;
}
// What is launched and not fenced, as a word.
inline uint64_t OpenWord(const StreamRecord& stream) {
  const uint64_t closed = stream.closed.load(std::memory_order_acquire);
  return OpenSince(stream.submitted.load(std::memory_order_acquire), closed);
}
inline bool HasOpen(const StreamRecord& stream) { return OpenWord(stream) != 0; }

struct ContextWork {
  Lock lock;
  std::atomic<CUcontext> context;  // null: free
  uint32_t device;
  std::atomic<uint32_t> users;
  std::atomic<uint32_t> closing;  // kOpenWork ..., or the number of its context's ending
  std::atomic<uint32_t> polling;
  std::atomic<uint32_t> pending;        // fences in all queues
  std::atomic<uint64_t> persistent_ns;  // for how long a persistent kernel has been running
  // The record of its legacy default stream, if there is one; read with acquire, for what is in it.
  std::atomic<StreamRecord*> legacy;
  // Waits that were put in that stream, and in those that it waits for; they wrap around.
  std::atomic<uint32_t> legacy_waits;
  std::atomic<uint32_t> blocking_waits;
  // Work that no record could be had for: done when the context was synchronised since.
  std::atomic<uint64_t> untracked;
  uint64_t untracked_proven;  // under `lock`
  std::atomic<uint64_t> sync_epoch;
  std::atomic<uint32_t> synchronizing;
  // Under `lock`:
  StreamRecord* listed;
  Fence* free;
  void* chunks;
  ContextWork* next;  // of all there are
};

// Of a copy that runs elsewhere, from where on it is a wait: half a millisecond at 32 GB/s (PCIe 4
// x16). Shorter ones are not worth two events.
inline constexpr uint64_t kLongCopyBytes = 16 << 20;
// A wait was put into the stream.
inline void NoteWait(StreamRecord* stream) {
  stream->waits.store(1, std::memory_order_relaxed);
  if (!stream->blocking) return;
  ContextWork* work = stream->work;
  (stream->legacy ? work->legacy_waits : work->blocking_waits).fetch_add(1);
}
// Those in other streams that what is launched here comes behind: a legacy stream and the blocking
// ones wait for each other.
inline uint32_t WaitsAround(const StreamRecord& stream) {
  if (!stream.blocking) return 0;
  const ContextWork& work = *stream.work;
  return (stream.legacy ? work.blocking_waits : work.legacy_waits).load(std::memory_order_relaxed);
}
// The next batch of the stream comes behind a wait.
inline bool ComesBehindWait(const StreamRecord& stream) {
  return stream.waits.load(std::memory_order_relaxed) != 0 ||
         stream.seen_waits.load(std::memory_order_relaxed) != WaitsAround(stream);
}
// The same, when that batch begins. What is launched into blocking streams after a batch of the
// legacy stream comes behind its waits, too.
inline bool TakeWaits(StreamRecord* stream) {
  const uint32_t around = WaitsAround(*stream);
  const bool own = stream->waits.exchange(0, std::memory_order_relaxed) != 0;
  const bool others = stream->seen_waits.exchange(around, std::memory_order_relaxed) != around;
  if ((own || others) && stream->legacy) stream->work->legacy_waits.fetch_add(1);
  return own || others;
}

// Work of a device that the helper finds at a poll.
struct OpenWork {
  uint64_t launches = 0;  // launched and not fenced
  uint64_t ns = 0;        // their estimate
  uint64_t persistent_ns = 0;
  uint32_t contexts = 0;          // with work
  uint32_t streams = 0;           // that are busy
  int64_t oldest_ns = INT64_MAX;  // the first that may run was submitted then

  void Add(ContextWork& work) {
    const LockGuard holding(work.lock);
    bool busy = false;
    for (const StreamRecord* stream = work.listed; stream != nullptr;
         stream = stream->next_listed) {
      const uint64_t open = OpenWord(*stream);
      launches += LaunchesIn(open);
      ns += NsIn(open);
      const bool is_busy = stream->busy.load(std::memory_order_relaxed) != 0;
      busy |= is_busy;
      streams += is_busy;
      if (stream->first == nullptr) {
        const bool in_driver = is_busy && open == 0 && stream->launching.load() != 0;
        if (in_driver) oldest_ns = 0;  // CUDA_LAUNCH_BLOCKING
      } else if (!stream->blocked && stream->first->recorded_ns < oldest_ns) {
        oldest_ns = stream->first->recorded_ns;
      }
    }
    contexts += busy;
    const uint64_t running_ns = work.persistent_ns.load(std::memory_order_relaxed);
    if (running_ns > persistent_ns) persistent_ns = running_ns;
  }
};

// ContextWork::closing. While a context that others may hold too is released nobody touches its
// events, but it is found by its handle. Once it ends it is not: that may be another's already.
inline constexpr uint32_t kOpenWork = 0, kPausedWork = 1, kFirstEnding = 2;

inline bool Ends(const ContextWork& work) { return work.closing.load() >= kFirstEnding; }

// Counts the caller as a user for as long as it lives; `entered()` is false if the context is
// closing.
class WorkUse {
 public:
  explicit WorkUse(ContextWork* work) : work_(work) {
    work_->users.fetch_add(1);
    entered_ = work_->closing.load() == 0 && work_->context.load() != nullptr;
  }
  ~WorkUse() { work_->users.fetch_sub(1); }
  WorkUse(const WorkUse&) = delete;
  WorkUse& operator=(const WorkUse&) = delete;
  bool entered() const { return entered_; }

 private:
  ContextWork* work_;
  bool entered_;
};

// --- Fences of a context ------------------------------------------------------------------------

struct FenceChunk {
  static constexpr uint32_t kFences = 24;
  void* next;
  Fence fences[kFences];
};

inline void ReleaseFenceLocked(ContextWork* work, Fence* fence) {
  fence->next = work->free;
  work->free = fence;
}

inline void ReleaseFence(ContextWork* work, Fence* fence) {
  if (fence == nullptr) return;
  const LockGuard holding(work->lock);
  ReleaseFenceLocked(work, fence);
}

// A free one, its events perhaps not made yet; nullptr: no memory.
inline Fence* PopFreeFence(ContextWork* work) {
  const LockGuard holding(work->lock);
  if (work->free == nullptr) {
    auto* chunk = static_cast<FenceChunk*>(MapPages(sizeof(FenceChunk)));
    if (chunk == nullptr) return nullptr;
    chunk->next = work->chunks;
    work->chunks = chunk;
    for (Fence& fence : chunk->fences) ReleaseFenceLocked(work, &fence);
  }
  Fence* fence = work->free;
  work->free = fence->next;
  fence->next = nullptr;
  fence->others = 0;
  fence->counted = fence->started = fence->follows = fence->waits = fence->turns = false;
  fence->releases_bound = false;
  fence->run.Forget();
  return fence;
}

// All fences free and without events: those went with their context. Nobody uses the work.
inline void ForgetFences(ContextWork* work) {
  work->free = nullptr;
  for (auto* chunk = static_cast<FenceChunk*>(work->chunks); chunk != nullptr;
       chunk = static_cast<FenceChunk*>(chunk->next)) {
    for (Fence& fence : chunk->fences) {
      fence = Fence{};
      ReleaseFenceLocked(work, &fence);
    }
  }
}

// Gives the pages back, where a work is no global of a process.
inline void FreeFences(ContextWork* work) {
  while (work->chunks != nullptr) {
    void* const chunk = work->chunks;
    work->chunks = static_cast<FenceChunk*>(chunk)->next;
    UnmapPages(chunk, sizeof(FenceChunk));
  }
  work->free = nullptr;
}

// --- Queues and the list ------------------------------------------------------------------------

// count() adds it to the backlog, unless its stream is blocked.
template <typename F>
void AppendFence(StreamRecord* stream, Fence* fence, F&& count) {
  ContextWork* work = stream->work;
  const LockGuard holding(work->lock);
  fence->counted = !stream->blocked;
  if (fence->counted) count();
  fence->serial = ++stream->serial;
  fence->next = nullptr;
  (stream->last == nullptr ? stream->first : stream->last->next) = fence;
  stream->last = fence;
  stream->pending.fetch_add(1);
  work->pending.fetch_add(1, std::memory_order_relaxed);
}

inline Fence* FirstFence(StreamRecord* stream) {
  const LockGuard holding(stream->work->lock);
  return stream->first;
}

// Takes the first fence out. It is kept as `done`, and the one before it is free.
inline void PopFirstFence(StreamRecord* stream) {
  ContextWork* work = stream->work;
  const LockGuard holding(work->lock);
  Fence* fence = stream->first;
  stream->first = fence->next;
  if (stream->first == nullptr) stream->last = nullptr;
  if (stream->done != nullptr) ReleaseFenceLocked(work, stream->done);
  stream->done = fence;
  work->pending.fetch_sub(1, std::memory_order_relaxed);
  stream->pending.fetch_sub(1);
}

inline void ListStream(StreamRecord* stream) {
  ContextWork* work = stream->work;
  const LockGuard holding(work->lock);
  if (stream->listed.load(std::memory_order_relaxed) != kNotListed) return;
  stream->next_listed = work->listed;
  work->listed = stream;
  stream->listed.store(kListed);
}

enum class Unlisted : uint32_t {
  kNot,   // a launch has made it busy, or will: it stays where it is
  kYes,   // its record is not the caller's to touch any more
  kGone,  // the stream was destroyed, and its record is the caller's now
};

// By the polling thread, of a stream in which nothing is under way. `previous`: before it in the
// list, or nullptr.
inline Unlisted UnlistStream(StreamRecord* stream, StreamRecord* previous) {
  ContextWork* work = stream->work;
  const LockGuard holding(work->lock);
  stream->listed.store(kLeaving);
  if (stream->busy.load() != 0 || stream->launching.load() != 0) {
    stream->listed.store(kListed);
    return Unlisted::kNot;
  }
  if (previous == nullptr && work->listed != stream) {
    previous = work->listed;  // others came before it meanwhile
    while (previous->next_listed != stream) previous = previous->next_listed;
  }
  (previous == nullptr ? work->listed : previous->next_listed) = stream->next_listed;
  if (stream->done != nullptr) ReleaseFenceLocked(work, stream->done);
  stream->done = nullptr;
  const bool gone = stream->gone;
  stream->listed.store(kNotListed);
  return gone ? Unlisted::kGone : Unlisted::kYes;
}

inline StreamRecord* NextListed(ContextWork* work, StreamRecord* previous) {
  const LockGuard holding(work->lock);
  return previous == nullptr ? work->listed : previous->next_listed;
}

}  // namespace prorata::client
