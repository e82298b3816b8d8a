// Finding the record of a stream. A launch finds it in a small cache of its thread; the rest is
// rare.

#include "client/streams.h"
#include "client/contexts.h"
#include "client/memory.h"
#include "client/rings.h"
#include "client/share.h"

namespace prorata::client {

std::atomic<uint32_t> g_stream_generation{1};
__thread StreamCache t_streams __attribute__((tls_model("initial-exec")));

namespace {

constinit StreamRecord g_records[kMaxStreams] = {};
std::atomic<uint32_t> g_records_used;  // those below this were ever used
Lock g_lock;

void Clear(StreamRecord* record) {
  record->word.store(0, std::memory_order_relaxed);
  record->batch_key.store(0, std::memory_order_relaxed);
  record->probe.store(0, std::memory_order_relaxed);
  record->waits.store(0, std::memory_order_relaxed);
  record->open_slot = record->last_slot = -1;
  record->context = nullptr;
  record->ring = nullptr;
}

// A record that nobody will miss: a thread that had a default stream of its own may be gone, and
// nobody says so.
StreamRecord* Evict() {  // under g_lock
  for (StreamRecord& record : g_records) {
    if (record.thread != nullptr && record.word.load() == 0 && record.open_slot < 0) {
      Clear(&record);
      g_stream_generation.fetch_add(1);
      return &record;
    }
  }
  return nullptr;
}

StreamRecord* Enter(CUcontext context, CUstream stream, const void* thread, bool per_thread,
                    uint32_t device, Ring* ring) {
  const Holding holding(g_lock);
  StreamRecord* unused = nullptr;
  const uint32_t used = g_records_used.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < used; ++i) {
    StreamRecord& record = g_records[i];
    if (record.context == nullptr) {
      if (unused == nullptr) unused = &record;
    } else if (record.context == context && record.stream == stream && record.thread == thread) {
      return &record;
    }
  }
  if (unused == nullptr && used < kMaxStreams) unused = &g_records[used];
  if (unused == nullptr) unused = Evict();
  if (unused == nullptr) return nullptr;
  Clear(unused);
  unused->owner.store(&t_streams, std::memory_order_relaxed);
  unused->stream = stream;
  unused->thread = thread;
  unused->per_thread = per_thread;
  unused->device = device;
  unused->ring = ring;
  unused->context = context;
  if (unused == &g_records[used]) g_records_used.store(used + 1, std::memory_order_release);
  return unused;
}

template <typename Match>
void Drop(Match&& match) {
  const Holding holding(g_lock);
  const uint32_t used = g_records_used.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < used; ++i) {
    StreamRecord& record = g_records[i];
    if (record.context == nullptr || !match(record)) continue;
    ForgetOpenBatch(&record);
    Clear(&record);
  }
  g_stream_generation.fetch_add(1);
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

}  // namespace

StreamRecord* FindStreamSlowly(CUstream stream, bool per_thread) {
  const uint32_t generation = g_stream_generation.load(std::memory_order_acquire);
  const Place place = PlaceOfStream(stream);
  if (place.context == nullptr || place.device == kNoDevice) return nullptr;
  // One name for each default stream: the bare null stream means either, by the variant called.
  const CUstream named = stream != nullptr ? stream
                         : per_thread      ? CU_STREAM_PER_THREAD
                                           : CU_STREAM_LEGACY;
  const void* thread = named == CU_STREAM_PER_THREAD ? &t_streams : nullptr;
  Ring* ring = RingOf(place.context, place.device);
  if (ring == nullptr) return nullptr;
  StreamRecord* record =
      Enter(place.context, named, thread, named == CU_STREAM_PER_THREAD, place.device, ring);
  if (record == nullptr) return nullptr;
  // A default stream means another stream when another context is current.
  if (!IsDefault(stream) || KnownContexts() <= 1) {
    StreamCache::Entry& entry = t_streams.entries[StreamCache::At(stream)];
    entry = {stream, record, generation, per_thread};
  }
  return record;
}

OpenWork OpenWorkOf(uint32_t device) {
  OpenWork open;
  const uint32_t used = g_records_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; ++i) {
    if (g_records[i].device == device) open.Add(g_records[i]);
  }
  for (const auto& place : g_rings) {
    const Ring* ring = place.load();
    if (ring == nullptr) break;
    if (ring->device == device) open.Add(*ring);
  }
  return open;
}

void DropStreamsOf(CUcontext context) {
  Drop([&](const StreamRecord& record) { return record.context == context; });
}

void FencesOfStreamGone(CUstream stream) {
  if (IsDefault(stream)) return;
  Drop([&](const StreamRecord& record) { return record.stream == stream; });
}

void ForgetStreamCache() { g_stream_generation.fetch_add(1); }

}  // namespace prorata::client
