#pragma once

// The way of everything that runs on the device past the gate. A launch with the lease open, in a
// stream of which a batch is under way and not yet due, costs: the live word, the mark of the
// thread, the capture count, the lease word with the backlog, the thread's stream cache, the
// estimate, and one addition (atomic in a stream that several threads use).

#include <type_traits>

#include "client/compute/gate.h"
#include "client/compute/library_world.h"
#include "client/compute/streams.h"
#include "client/session/captures.h"
#include "client/session/known_contexts.h"

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
    pushed_ = PRORATA_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
  }
  [[gnu::noinline]] void Pop() {
    CUcontext popped;
    PRORATA_REAL(cuCtxPopCurrent_v2)(&popped);
  }

  bool pushed_ = false;
};

[[gnu::noinline]] inline void BeginBatch(StreamRecord* stream, uint32_t estimate_ns) {
  while (!RaiseLaunching(g_world, stream->device)) AwaitLaunch(stream->device);
  const InContextOf here(stream);
  Tracker().Begin(stream, estimate_ns);
}

[[gnu::noinline]] inline void AwaitGate(StreamRecord* stream) {
  {
    const InContextOf here(stream);
    Tracker().FenceBeforeWait(stream);
  }
  AwaitLaunch(stream->device);
}

[[gnu::noinline]] inline void AfterLaunch(StreamRecord* stream, Added added, bool unknown,
                                          bool begun) {
  if (added.opened) Tracker().Opened(stream, begun);
  if (!added.due) return;
  const InContextOf here(stream);
  Tracker().End(stream, unknown);
}

// There is no memory for a record of its stream: the device is busy until its context is
// synchronised; or for good, if there is none for the context either.
template <typename Call>
[[gnu::noinline]] CUresult LaunchWithoutRecord(Call&& call) {
  const Place place = CurrentPlace();
  if (place.device == kNoDevice) return call();
  DeviceCompute& compute = g_compute[place.device];
  do {
    AwaitLaunch(place.device);
  } while (!RaiseLaunching(g_world, place.device));
  const CUresult result = call();
  if (result == CUDA_SUCCESS) {
    ContextWork* work = WorkOf(place.context, place.device);
    if (work != nullptr) {
      Tracker().Untracked(work);
    } else if (compute.lost.exchange(1) == 0) {
      compute.occupancy.Begin(UsageOf(place.device), NowNs());
    }
  }
  compute.launching.fetch_sub(1);
  return result;
}

template <typename Call>
inline CUresult Launch(uint64_t key, CUstream stream, bool per_thread, Call&& call) {
  if (Live() != kGoverned || IsCaptured(stream, per_thread)) return call();
  StreamRecord* record = FindStream(stream, per_thread);
  if (record == nullptr) [[unlikely]]
    return LaunchWithoutRecord(
        std::remove_cvref_t<Call>(call));  // a copy: `call` itself stays in registers
  if (!MayLaunch(LimitsOf(record->device), g_compute[record->device])) [[unlikely]] {
    AwaitGate(record);
  }
  const uint32_t estimate_ns = g_estimates.Lookup(key);
  const bool begins = BeginsBatch(record, estimate_ns);
  if (begins) [[unlikely]]
    BeginBatch(record, estimate_ns);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) {
    const Added added = AddLaunch(record, &t_streams, key, estimate_ns);
    if (added.opened || added.due) [[unlikely]]
      AfterLaunch(record, added, estimate_ns == 0, begins);
  }
  if (begins) [[unlikely]] {
    Tracker().Returned(record);
    g_compute[record->device].launching.fetch_sub(1);
  }
  return result;
}

// Passes the gates of several devices (as bits) and raises `launching` on each. It waits for one at
// a time and holds nothing meanwhile, so two programs that need the same devices cannot wait for
// each other; should one have closed again when all are open, it begins anew.
void PassGates(uint32_t devices);
void LeaveGates(uint32_t devices);

// A launch that runs on `devices` besides its stream's own: it counts on each, and is fenced at
// once.
template <typename Call>
[[gnu::noinline]] CUresult LaunchOnDevices(uint32_t devices, uint64_t key, CUstream stream,
                                           bool per_thread, Call&& call) {
  if (Live() != kGoverned || IsCaptured(stream, per_thread)) return call();
  StreamRecord* record = FindStream(stream, per_thread);
  if (record == nullptr) return LaunchWithoutRecord(call);
  const uint32_t all = devices | 1U << record->device;
  PassGates(all);
  const InContextOf here(record);
  const uint32_t estimate_ns = g_estimates.Lookup(key);
  Tracker().Begin(record, estimate_ns);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) {
    const Added added = AddLaunch(record, &t_streams, key, estimate_ns);
    Tracker().RunsOn(record, all & ~(1U << record->device));
    if (added.opened) Tracker().Opened(record, true);
    Tracker().End(record, estimate_ns == 0);
  }
  Tracker().Returned(record);
  LeaveGates(all);
  return result;
}

}  // namespace prorata::client
