#pragma once

// How a launch is added to what its stream has submitted (work.h): on every launch's way, so with
// no lock, no clock and no call.

#include "client/compute/work.h"

namespace prorata::client {

inline bool BeginsBatch(const StreamRecord* stream, uint32_t estimate_ns) {
  return stream->submitted.load(std::memory_order_relaxed) ==
             stream->closed.load(std::memory_order_relaxed) ||
         estimate_ns == 0;
}

// Adds to what was submitted; answers what that was. `thread`: the caller's tag.
inline uint64_t AddToSubmitted(StreamRecord* stream, const void* thread, uint64_t launch) {
  const void* owner = stream->owner.load(std::memory_order_relaxed);
  if (owner == thread) [[likely]] {
    const uint64_t before = stream->submitted.load(std::memory_order_relaxed);
    stream->submitted.store(before + launch, std::memory_order_release);
    return before;
  }
  if (owner != &kSharedStream) stream->owner.store(&kSharedStream, std::memory_order_relaxed);
  return stream->submitted.fetch_add(launch);
}

struct Added {
  bool opened;  // Opened is to be called
  bool due;     // End is to be called
};

// Accounts for a launch that the driver took.
inline Added AddLaunch(StreamRecord* stream, const void* thread, uint64_t key,
                       uint32_t estimate_ns) {
  const uint64_t before = AddToSubmitted(stream, thread, kOneLaunch + estimate_ns);
  const uint64_t open = OpenSince(before, stream->closed.load(std::memory_order_acquire));
  const uint64_t batch_key = stream->batch_key.load(std::memory_order_relaxed);
  if (batch_key != key) {
    stream->batch_key.store(batch_key == 0 ? key : kMixedKey, std::memory_order_relaxed);
  }
  const uint32_t due_ns = stream->fence_at_ns.load(std::memory_order_relaxed);
  return {open == 0, estimate_ns == 0 || NsIn(open) + estimate_ns >= due_ns};
}

}  // namespace prorata::client
