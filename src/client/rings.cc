#include "client/rings.h"

#include "client/guest.h"

namespace prorata::client {

std::atomic<Ring*> g_rings[kMaxRings];

namespace {

Lock g_making;

}  // namespace

Ring* RingOf(CUcontext context, uint32_t device) {
  const Holding making(g_making);
  Ring* unused = nullptr;
  for (auto& place : g_rings) {
    Ring* ring = place.load();
    if (ring == nullptr) {
      if (unused == nullptr) {
        unused = static_cast<Ring*>(MapPages(sizeof(Ring)));
        if (unused == nullptr) return nullptr;
        place.store(unused);
      }
      break;
    }
    if (ring->context.load() == context) return ring;
    if (ring->context.load() == nullptr && ring->users.load() == 0 && unused == nullptr) {
      unused = ring;
    }
  }
  if (unused == nullptr) return nullptr;
  ClearRing(unused);
  unused->device = device;
  unused->closing.store(0);
  unused->context.store(context);
  return unused;
}

}  // namespace prorata::client
