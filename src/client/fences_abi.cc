#include "client/fences.h"

#include "client/library_world.h"
#include "client/rings.h"
#include "client/streams.h"

namespace prorata::client {
namespace {

template <typename F>
void ForRingOf(CUcontext context, F&& f) {
  for (auto& place : g_rings) {
    Ring* ring = place.load();
    if (ring == nullptr) return;
    if (ring->context.load() == context) f(ring);
  }
}

}  // namespace

void HarvestAll() {
  for (auto& place : g_rings) {
    Ring* ring = place.load();
    if (ring == nullptr) return;
    const RingUse use(ring);
    if (!use.entered() || ring->head < 0) continue;
    const OwnCalls own;
    // Queries want a current context on some drivers; this thread has none of its own.
    if (PRORATA_REAL(cuCtxPushCurrent_v2)(ring->context.load()) != CUDA_SUCCESS) continue;
    Fences().Harvest(ring);
    CUcontext popped;
    PRORATA_REAL(cuCtxPopCurrent_v2)(&popped);
  }
}

void AwaitOldestFence(uint32_t device) {
  for (auto& place : g_rings) {
    Ring* ring = place.load();
    if (ring == nullptr) break;
    if (ring->device != device) continue;
    const RingUse use(ring);
    if (!use.entered()) continue;
    const OwnCalls own;
    // What has not begun for a wait in its stream must be known as such before one is chosen: it
    // might be waiting for what this thread is about to launch.
    Fences().Harvest(ring);
    const int32_t oldest = HoldOldest(ring);
    if (oldest < 0) continue;
    PRORATA_REAL(cuEventSynchronize)(ring->slots[oldest].end);
    DropReference(ring, oldest);
    Fences().Harvest(ring);
    return;
  }
  // Its context is just being destroyed, or another thread has just harvested it.
  const std::atomic<uint32_t> never{0};
  FutexWait(&never, 0, 1'000'000);
}

void FencesOfContextEnding(CUcontext context) {
  ForRingOf(context, [](Ring* ring) {
    ring->closing.store(1);
    const int64_t deadline_ns = NowNs() + 100'000'000;
    while (ring->users.load() != 0 && NowNs() < deadline_ns) {
      const std::atomic<uint32_t> never{0};
      FutexWait(&never, 0, 100'000);
    }
  });
}

void FencesOfContextStay(CUcontext context) {
  ForRingOf(context, [](Ring* ring) { ring->closing.store(0); });
}

void FencesOfContextGone(CUcontext context) {
  DropStreamsOf(context);
  ForRingOf(context, [](Ring* ring) { Fences().Discard(ring); });
}

}  // namespace prorata::client
