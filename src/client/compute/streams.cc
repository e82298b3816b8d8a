// Finding the record of a stream. A launch finds it in a small cache of its thread; the rest is
// rare.

#include "client/compute/streams.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "client/session/captures.h"
#include "client/session/known_contexts.h"
#include "client/session/share.h"

namespace prorata::client {

std::atomic<uint32_t> g_stream_generation{1};
__thread StreamCache t_streams __attribute__((tls_model("initial-exec")));
std::atomic<ContextWork*> g_works;

namespace {

// Records are made a chunk at a time and never given back. Streams are found by a hash of what they
// are; with many thousands of them the chains become longer, and nothing else.
constexpr uint32_t kBuckets = 4096, kRecordsAtOnce = 32;
Lock g_lock;  // of all below, and of next_record
StreamRecord* g_buckets[kBuckets];
StreamRecord* g_free;
// Threads with a default stream of their own come and go, and nobody says so: when there are so
// many records, those of dead threads are looked for.
constexpr uint32_t kSweepAt = 64;
uint32_t g_per_thread, g_sweep_at = kSweepAt;
Lock g_making_work;

// A thread's name for its own default stream: of the kernel's thread number, so that it is known
// when it is gone, and a count, for such numbers are used again.
std::atomic<uint32_t> g_threads;
__thread uint64_t t_thread __attribute__((tls_model("initial-exec")));
uint64_t ThisThread() {
  if (t_thread == 0) {
    const auto number = static_cast<uint64_t>(syscall(SYS_gettid));
    t_thread = uint64_t{g_threads.fetch_add(1) + 1} << 32 | number;
  }
  return t_thread;
}
bool IsAlive(uint64_t thread) {
  return syscall(SYS_tgkill, getpid(), static_cast<pid_t>(thread & 0xffffffff), 0) == 0;
}

uint32_t BucketOf(CUcontext context, CUstream stream, uint64_t thread) {
  uint64_t hash = reinterpret_cast<uint64_t>(context) * 0x9e3779b97f4a7c15;
  hash ^= reinterpret_cast<uint64_t>(stream) * 0xff51afd7ed558ccd;
  hash ^= thread * 0xc4ceb9fe1a85ec53;
  return static_cast<uint32_t>((hash ^ (hash >> 29)) >> 32) % kBuckets;
}

StreamRecord* FindLocked(uint32_t bucket, CUcontext context, CUstream stream, uint64_t thread) {
  StreamRecord* at = g_buckets[bucket];
  while (at != nullptr && (at->context != context || at->stream != stream || at->thread != thread ||
                           Ends(*at->work))) {
    at = at->next_record;
  }
  return at;
}

void HideLocked(StreamRecord* record) {
  StreamRecord** at = &g_buckets[BucketOf(record->context, record->stream, record->thread)];
  while (*at != nullptr && *at != record) at = &(*at)->next_record;
  if (*at == nullptr) return;
  *at = record->next_record;
  if (record->thread != 0) --g_per_thread;
  g_stream_generation.fetch_add(1);
}

void FreeLocked(StreamRecord* record) {
  if (record->captures.exchange(0) != 0) g_open_captures.fetch_sub(1);
  record->next_record = g_free;
  g_free = record;
}

// Takes from the buckets, and frees, what matches and has no work.
template <typename Match>
void DropLocked(Match&& match) {
  for (StreamRecord* at : g_buckets) {
    while (at != nullptr) {
      StreamRecord* const next = at->next_record;
      if (match(*at) && at->listed.load() == kNotListed && at->busy.load() == 0) {
        HideLocked(at);
        FreeLocked(at);
      }
      at = next;
    }
  }
}

StreamRecord* PopFreeLocked() {
  if (g_per_thread >= g_sweep_at) {
    DropLocked(
        [](const StreamRecord& record) { return record.thread != 0 && !IsAlive(record.thread); });
    g_sweep_at = Max(kSweepAt, 2 * g_per_thread);
  }
  if (g_free == nullptr) {
    auto* records = static_cast<StreamRecord*>(MapPages(kRecordsAtOnce * sizeof(StreamRecord)));
    for (uint32_t i = 0; records != nullptr && i < kRecordsAtOnce; ++i) FreeLocked(&records[i]);
  }
  StreamRecord* record = g_free;
  if (record == nullptr) return nullptr;
  g_free = record->next_record;
  // All of it is plain words, and nobody else sees it.
  __builtin_memset(static_cast<void*>(record), 0, sizeof *record);
  return record;
}

StreamRecord* Enter(CUcontext context, CUstream stream, uint64_t thread, bool blocking,
                    ContextWork* work) {
  const LockGuard holding(g_lock);
  const uint32_t bucket = BucketOf(context, stream, thread);
  StreamRecord* record = FindLocked(bucket, context, stream, thread);
  if (record != nullptr) return record;
  record = PopFreeLocked();
  if (record == nullptr) return nullptr;
  record->owner.store(&t_streams, std::memory_order_relaxed);
  record->stream = stream;
  record->thread = thread;
  record->per_thread = thread != 0;
  record->legacy = stream == CU_STREAM_LEGACY;
  record->blocking = blocking;
  record->device = work->device;
  record->work = work;
  record->context = context;
  if (record->legacy) work->legacy.store(record);
  record->next_record = g_buckets[bucket];
  g_buckets[bucket] = record;
  if (thread != 0) ++g_per_thread;
  return record;
}

bool IsDefault(CUstream stream) { return reinterpret_cast<uint64_t>(stream) <= 2; }

// A default stream is the current context's. Another is its own context's, whichever is current.
Place PlaceOfStream(CUstream stream) {
  const Place current = CurrentPlace();
  if (IsDefault(stream) || KnownContexts() <= 1) return current;
  const OwnCalls own;
  CUcontext context = nullptr, popped;
  if (PRORATA_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context == nullptr) {
    return current;
  }
  const CUcontext owner = OwnerOf(context);
  if (owner == current.context || PRORATA_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) {
    return current;
  }
  const Place place = {owner, DeviceOfCurrent(context)};
  PRORATA_REAL(cuCtxPopCurrent_v2)(&popped);
  return place.device == kNoDevice ? current : place;
}

// Unknown: yes.
bool IsBlocking(CUstream stream) {
  if (IsDefault(stream)) return true;
  unsigned flags = 0;
  const OwnCalls own;
  return PRORATA_REAL(cuStreamGetFlags)(stream, &flags) != CUDA_SUCCESS ||
         (flags & CU_STREAM_NON_BLOCKING) == 0;
}

}  // namespace

ContextWork* WorkOf(CUcontext context, uint32_t device) {
  const LockGuard making(g_making_work);
  ContextWork* unused = nullptr;
  for (ContextWork* work = g_works.load(); work != nullptr; work = work->next) {
    const CUcontext has = work->context.load();
    if (has == context && !Ends(*work)) return work;
    if (has == nullptr && !Ends(*work) && work->users.load() == 0) unused = work;
  }
  if (unused == nullptr) {
    unused = static_cast<ContextWork*>(MapPages(sizeof(ContextWork)));
    if (unused == nullptr) return nullptr;
    unused->next = g_works.load();
    unused->device = device;
    g_works.store(unused);
  }
  unused->device = device;
  unused->context.store(context);
  return unused;
}

ContextWork* FindWork(CUcontext context) {
  if (context == nullptr) context = CurrentPlace().context;
  if (context == nullptr) return nullptr;
  for (ContextWork* work = g_works.load(); work != nullptr; work = work->next) {
    if (work->context.load() == context && !Ends(*work)) return work;
  }
  return nullptr;
}

StreamRecord* FindStreamSlowly(CUstream stream, bool per_thread, bool make) {
  const uint32_t generation = g_stream_generation.load(std::memory_order_acquire);
  const Place place = PlaceOfStream(stream);
  if (place.context == nullptr || place.device == kNoDevice) return nullptr;
  // One name for each default stream: the bare null stream means either, by the variant called.
  const CUstream named = stream != nullptr ? stream
                         : per_thread      ? CU_STREAM_PER_THREAD
                                           : CU_STREAM_LEGACY;
  const uint64_t thread = named == CU_STREAM_PER_THREAD ? ThisThread() : 0;
  StreamRecord* record;
  {
    const LockGuard holding(g_lock);
    record = FindLocked(BucketOf(place.context, named, thread), place.context, named, thread);
  }
  if (record == nullptr) {
    if (!make) return nullptr;
    ContextWork* work = WorkOf(place.context, place.device);
    if (work == nullptr) return nullptr;
    record = Enter(place.context, named, thread, IsBlocking(named), work);
    if (record == nullptr) return nullptr;
  }
  // A default stream means another stream when another context is current.
  if (!IsDefault(stream) || KnownContexts() <= 1) {
    StreamCache::Entry& entry = t_streams.entries[StreamCache::At(stream)];
    entry = {stream, record, generation, per_thread};
  }
  return record;
}

void DropStreamsOf(const ContextWork* work) {
  const LockGuard holding(g_lock);
  DropLocked([&](const StreamRecord& record) { return record.work == work; });
}

void HideStream(StreamRecord* record) {
  const LockGuard holding(g_lock);
  HideLocked(record);
}

void FreeRecord(StreamRecord* record) {
  const LockGuard holding(g_lock);
  FreeLocked(record);
}

void ForgetStreamCache() { g_stream_generation.fetch_add(1); }

}  // namespace prorata::client
