#pragma once

// A launch's way past the gate (launch_gate.h says when it is open):
//
//   until the gate lets it pass: FenceBeforeWait(world, stream), then wait at the gate
//   estimate = estimates.Lookup(key)
//   if BeginsBatch(stream, estimate):
//     until RaiseLaunching(world, stream): wait at the gate; the lease has closed meanwhile
//     estimate = PrepareBatch(fences, stream, estimate)
//   the driver's own launch
//   if it was taken, and AddLaunch(stream, thread, key, estimate): fences.EndBatch(stream, estimate
//   == 0) if it began a batch: stream->launching.fetch_sub(1)

#include "client/fence_machine.h"
#include "client/launch_gate.h"

namespace prorata::client {

inline bool BeginsBatch(const StreamRecord* stream, uint32_t estimate_ns) {
  return stream->word.load(std::memory_order_relaxed) == 0 || estimate_ns == 0;
}

// Raises `launching`; the lease is tested again after that, for it may have closed since: then it
// is lowered again, and this is false.
template <typename World>
bool RaiseLaunching(World& world, StreamRecord* stream) {
  stream->launching.fetch_add(1);
  if (LeaseAllows(world, stream->device)) return true;
  stream->launching.fetch_sub(1);
  return false;
}

// A function of unknown length gets a batch of its own, so that it is measured alone. So does one
// launch after a batch whose estimates did not fit. Answers the estimate to go by.
template <typename World>
uint32_t PrepareBatch(FenceMachine<World> fences, StreamRecord* stream, uint32_t estimate_ns) {
  if (stream->word.load(std::memory_order_relaxed) != 0) {
    fences.EndOldBatch(stream);
  } else if (stream->probe.exchange(0, std::memory_order_relaxed) != 0) {
    estimate_ns = 0;
  }
  fences.BeginBatch(stream);
  return estimate_ns;
}

// Called by a thread that is about to wait at the gate. While the lease is closed nothing is added
// to the batch under way: it is fenced, so that it is known when it has run, and the time in which
// others have the device is none of it.
template <typename World>
void FenceBeforeWait(World& world, StreamRecord* stream) {
  if (stream->word.load(std::memory_order_relaxed) == 0) return;
  if (LeaseAllows(world, stream->device)) return;
  FenceMachine<World>(world).EndOldBatch(stream);
}

// Adds to the word of a batch; answers what it was. `thread`: the caller's tag.
inline uint64_t AddToWord(StreamRecord* stream, const void* thread, uint64_t launch) {
  const void* owner = stream->owner.load(std::memory_order_relaxed);
  if (owner == thread) [[likely]] {
    const uint64_t before = stream->word.load(std::memory_order_relaxed);
    stream->word.store(before + launch, std::memory_order_relaxed);
    return before;
  }
  if (owner != &kSharedStream) stream->owner.store(&kSharedStream, std::memory_order_relaxed);
  return stream->word.fetch_add(launch, std::memory_order_relaxed);
}

// Adds a launch that the driver took to the stream's batch. True: the batch is due, and EndBatch is
// to be called.
inline bool AddLaunch(StreamRecord* stream, const void* thread, uint64_t key,
                      uint32_t estimate_ns) {
  const uint64_t before = AddToWord(stream, thread, kOneLaunch + estimate_ns);
  const uint64_t batch_key = stream->batch_key.load(std::memory_order_relaxed);
  if (batch_key != key) {
    stream->batch_key.store(batch_key == 0 ? key : kMixedKey, std::memory_order_relaxed);
  }
  return estimate_ns == 0 || NsIn(before) + estimate_ns >= kFenceAtNs;
}

}  // namespace prorata::client
