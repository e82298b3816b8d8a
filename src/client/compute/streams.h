#pragma once

// The records of streams, and the stream cache of a thread, by which a launch finds one.

#include <atomic>
#include <cstdint>

#include "client/compute/work.h"

namespace prorata::client {

struct StreamCache {
  struct Entry {
    CUstream stream;
    StreamRecord* record;
    uint32_t generation;  // valid while this is the process's
    uint32_t per_thread;
  };
  static constexpr uint32_t kEntries = 4;
  static uint32_t At(CUstream stream) {
    const auto value = reinterpret_cast<uint64_t>(stream);
    return (value ^ (value >> 6) ^ (value >> 12)) % kEntries;
  }
  Entry entries[kEntries];
};
extern __thread StreamCache t_streams __attribute__((tls_model("initial-exec")));
// One more whenever a stream or context goes, or a context comes.
extern std::atomic<uint32_t> g_stream_generation;

// All there are, each made once and used again.
extern std::atomic<ContextWork*> g_works;
// The work of a context, made if need be; nullptr: no memory.
ContextWork* WorkOf(CUcontext context, uint32_t device);
// Of a context (nullptr: the calling thread's current one), if it has had any so far and is not
// ending.
ContextWork* FindWork(CUcontext context);

// nullptr: there is no context, or no memory. `make`: a record that is not there yet.
StreamRecord* FindStreamSlowly(CUstream stream, bool per_thread, bool make);
// Nobody uses the work any more, and nothing of it is left.
void DropStreamsOf(const ContextWork* work);
// The record of a stream that is about to be destroyed is found by nobody any more.
void HideStream(StreamRecord* record);
// Nothing of it is left.
void FreeRecord(StreamRecord* record);

inline StreamRecord* FindStream(CUstream stream, bool per_thread, bool make = true) {
  const StreamCache::Entry& entry = t_streams.entries[StreamCache::At(stream)];
  if (entry.generation == g_stream_generation.load(std::memory_order_acquire) &&
      entry.stream == stream && entry.per_thread == per_thread) {
    return entry.record;
  }
  return FindStreamSlowly(stream, per_thread, make);
}

}  // namespace prorata::client
