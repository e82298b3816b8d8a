#pragma once

// The way of everything that runs on the device past the gate. A launch with the lease open, in a
// stream of which a batch is under way and not yet due, costs: the live word, the mark of the
// thread, the capture count, the lease word with the backlog, the thread's stream cache, the
// estimate, and one addition (atomic in a stream that several threads use).

#include "client/contexts.h"
#include "client/launch_steps.h"
#include "client/library_world.h"
#include "client/memory.h"
#include "client/streams.h"

namespace prorata::client {

// Makes the context of a stream current for as long as it lives: its events are made in it, and a
// thread may launch into a stream of another context than its own.
class InContextOf {
 public:
  explicit InContextOf(const StreamRecord* stream) {
    if (KnownContexts() > 1) [[unlikely]]
      Push(stream->context);
  }
  ~InContextOf() {
    if (pushed_) [[unlikely]]
      Pop();
  }
  InContextOf(const InContextOf&) = delete;
  InContextOf& operator=(const InContextOf&) = delete;

 private:
  [[gnu::noinline]] void Push(CUcontext context) {
    CUcontext current = nullptr;
    if (PRORATA_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || OwnerOf(current) == context) {
      return;
    }
    pushed_ = Within([&] { return PRORATA_REAL(cuCtxPushCurrent_v2)(context); }) == CUDA_SUCCESS;
  }
  [[gnu::noinline]] void Pop() {
    CUcontext popped;
    Within([&] { return PRORATA_REAL(cuCtxPopCurrent_v2)(&popped); });
  }

  bool pushed_ = false;
};

[[gnu::noinline]] inline uint32_t Prepare(StreamRecord* stream, uint32_t estimate_ns) {
  while (!RaiseLaunching(g_world, stream)) AwaitLaunch(stream->device);
  const InContextOf here(stream);
  return PrepareBatch(Fences(), stream, estimate_ns);
}

[[gnu::noinline]] inline void AwaitGate(StreamRecord* stream) {
  {
    const InContextOf here(stream);
    FenceBeforeWait(g_world, stream);
  }
  AwaitLaunch(stream->device);
}

[[gnu::noinline]] inline void EndBatch(StreamRecord* stream, bool unknown) {
  const InContextOf here(stream);
  Fences().EndBatch(stream, unknown);
}

[[gnu::noinline]] inline void EndOldBatch(StreamRecord* stream) {
  const InContextOf here(stream);
  Fences().EndOldBatch(stream);
}

template <typename Call>
[[gnu::noinline]] CUresult LaunchWithoutRecord(Call&& call) {
  const Place place = CurrentPlace();
  if (place.device != kNoDevice) AwaitLaunch(place.device);
  return Within(call);
}

template <typename Call>
inline CUresult Launch(uint64_t key, CUstream stream, bool per_thread, Call&& call) {
  if (Live() != kGoverned || t_inside != 0 || IsCaptured(stream, per_thread)) return Within(call);
  StreamRecord* record = FindStream(stream, per_thread);
  if (record == nullptr) [[unlikely]]
    return LaunchWithoutRecord(call);
  if (!MayLaunch(LimitsOf(record->device), g_compute[record->device])) [[unlikely]] {
    AwaitGate(record);
  }
  uint32_t estimate_ns = g_estimates.Lookup(key);
  const bool begins = BeginsBatch(record, estimate_ns);
  if (begins) [[unlikely]]
    estimate_ns = Prepare(record, estimate_ns);
  t_inside = 1;  // it was 0
  const CUresult result = call();
  t_inside = 0;
  if (result == CUDA_SUCCESS && AddLaunch(record, &t_streams, key, estimate_ns)) [[unlikely]] {
    EndBatch(record, estimate_ns == 0);
  }
  if (begins) [[unlikely]]
    record->launching.fetch_sub(1);
  return result;
}

}  // namespace prorata::client
