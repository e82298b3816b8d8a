#pragma once

// The stream cache of a thread; see fences.h.

#include <atomic>
#include <cstdint>

#include "client/fences.h"

namespace prorata::client {

inline constexpr uint32_t kMaxStreams = 1024;

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

StreamRecord* FindStreamSlowly(CUstream stream, bool per_thread);
void DropStreamsOf(CUcontext context);

inline StreamRecord* FindStream(CUstream stream, bool per_thread) {
  const StreamCache::Entry& entry = t_streams.entries[StreamCache::At(stream)];
  if (entry.generation == g_stream_generation.load(std::memory_order_acquire) &&
      entry.stream == stream && entry.per_thread == per_thread) {
    return entry.record;
  }
  return FindStreamSlowly(stream, per_thread);
}

}  // namespace prorata::client
