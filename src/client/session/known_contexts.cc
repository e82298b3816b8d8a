#include "client/session/known_contexts.h"

#include "client/session/share.h"

namespace prorata::client {

constinit ContextRegistry g_contexts = {};
std::atomic<uint32_t> g_green_contexts;

KnownContext* ContextRegistry::Find(CUcontext context) {
  const uint32_t used = count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < used; ++i) {
    if (known[i].context == context) return &known[i];
  }
  return nullptr;
}

void ContextRegistry::Add(CUcontext context, uint32_t device, bool is_charged, CUgreenCtx green) {
  const uint32_t used = count.load(std::memory_order_relaxed);
  if (Find(context) != nullptr || used == kMaxContexts) return;
  known[used] = {context, device, is_charged, 0, green};
  count.store(used + 1, std::memory_order_release);
}

bool ContextRegistry::Drop(CUcontext context, KnownContext* was) {
  KnownContext* const found = Find(context);
  if (found == nullptr) return false;
  const uint32_t used = count.load(std::memory_order_relaxed);
  *was = *found;
  *found = known[used - 1];
  count.store(used - 1, std::memory_order_release);
  return true;
}

CUcontext ContextRegistry::OfGreen(CUgreenCtx green) const {
  CUcontext context = nullptr;
  for (uint32_t i = 0; i < count.load(std::memory_order_relaxed); ++i) {
    if (known[i].green == green) context = known[i].context;
  }
  return context;
}

Place CurrentPlace() {
  Place place;
  if (PRORATA_REAL(cuCtxGetCurrent)(&place.context) != CUDA_SUCCESS || place.context == nullptr) {
    return {};
  }
  place.device = g_share.ordinals == 1 ? IndexOf(0) : DeviceOfCurrent(place.context);
  if (g_green_contexts.load(std::memory_order_relaxed) != 0) [[unlikely]]
    place.context = OwnerOf(place.context);
  return place;
}

uint32_t CurrentDevice() { return CurrentPlace().device; }

CUcontext OwnerOf(CUcontext context) {
  const LockGuard holding(g_contexts.lock);
  const KnownContext* const known = g_contexts.Find(context);
  if (known == nullptr || known->green == nullptr) return context;
  const CUcontext primary = g_contexts.primary[known->device];
  return primary != nullptr ? primary : context;
}

uint32_t DeviceOfCurrent(CUcontext current) {
  if (current == nullptr) return kNoDevice;
  {
    const LockGuard holding(g_contexts.lock);
    const KnownContext* const known = g_contexts.Find(current);
    if (known != nullptr) return known->device;
  }
  CUdevice ordinal = -1;
  const OwnCalls own;
  return PRORATA_REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS ? IndexOf(ordinal) : kNoDevice;
}

uint32_t DevicesWithContexts() {
  const LockGuard holding(g_contexts.lock);
  uint32_t devices = 0;
  for (uint32_t i = 0; i < shm::kMaxDevices; ++i)
    devices |= (g_contexts.charged[i] != 0 ? 1U : 0U) << i;
  return devices;
}

uint32_t KnownContexts() { return g_contexts.count.load(std::memory_order_relaxed); }

}  // namespace prorata::client
