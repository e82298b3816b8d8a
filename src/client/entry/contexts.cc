#include "client/entry/contexts.h"

#include <atomic>

#include "client/compute/compute.h"
#include "client/memory/charge.h"
#include "client/memory/memory.h"
#include "client/platform/os.h"
#include "client/session/connection.h"
#include "client/session/helper.h"
#include "client/session/requests.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

struct Primary {
  uint32_t changing;
  uint64_t generation;
  bool charged;
};

Primary g_primaries[shm::kMaxDevices];  // under the registry's lock

CUcontext HandleOf(CUgreenCtx green) { return reinterpret_cast<CUcontext>(green); }

// One of `contexts` on the device is gone: its part of the overhead goes with it. What each one
// took is not known, only the sum, so each takes the same; the last one takes what is left.
void UnchargeContext(uint32_t device, uint32_t contexts) {
  const uint64_t overhead = UsageOf(device).overhead_bytes.load();
  UnchargeOverhead(device, contexts <= 1 ? overhead : overhead / contexts);
}

void Report(uint32_t device, uint64_t reserved_bytes) {
  wire::ContextSettled settled;
  AskSettled(device, wire::kMadeContext, reserved_bytes,
             &settled);  // the helper has settled the ledger by the answer
}

bool IsActive(CUdevice ordinal) {
  unsigned int flags = 0;
  int active = 0;
  const OwnCalls own;
  return PRORATA_REAL(cuDevicePrimaryCtxGetState)(ordinal, &flags, &active) == CUDA_SUCCESS &&
         active != 0;
}

void BeginPrimary(uint32_t device) {
  const LockGuard holding(g_contexts.lock);
  ++g_primaries[device].changing;
  ++g_primaries[device].generation;
}

// `reserved_bytes` of overhead were charged by the caller; gives them back unless this activated
// the context. True: they were used. `fits` false: nothing was reserved, for the context was active
// before; it became inactive meanwhile, was activated anew, and the share has no room for it.
bool SettlePrimary(uint32_t device, CUdevice ordinal, CUcontext context, uint64_t reserved_bytes,
                   bool* fits = nullptr) {
  Primary& primary = g_primaries[device];
  bool used = false, ended = false;
  CUcontext gone = nullptr;
  uint32_t contexts = 0, ending = 0;
  for (bool leaving = false; !leaving;) {
    uint64_t generation;
    {
      const LockGuard holding(g_contexts.lock);
      generation = primary.generation;
    }
    const bool active = IsActive(ordinal);
    const LockGuard holding(g_contexts.lock);
    const bool last = primary.changing == 1;
    if (last && primary.generation != generation) continue;
    leaving = true;
    --primary.changing;
    if (context != nullptr) g_contexts.primary[device] = context;
    // A retain that succeeded activated the context whatever others do after it, so it may charge
    // without being the last one; only the last one may find it gone.
    if (active && context != nullptr && !primary.charged) {
      primary.charged = used = true;
      ++g_contexts.charged[device];
      g_contexts.Add(context, device, true);
    } else if (!active && last && primary.charged) {
      primary.charged = false;
      ended = true;
      gone = g_contexts.primary[device];
      contexts = g_contexts.charged[device]--;
      KnownContext was;
      g_contexts.Drop(gone, &was);
      // Before the lock is free: who retains it after that has another context of this handle.
      if (gone != nullptr) ending = WorkOfContextEnding(gone);
    }
    // If it is still active, all lives on.
    if (last && !ended && g_contexts.primary[device] != nullptr)
      WorkOfContextGoesOn(g_contexts.primary[device]);
  }
  if (!used && reserved_bytes != 0) UnchargeOverhead(device, reserved_bytes);
  if (used && reserved_bytes == 0) {  // it was active when we looked, and not when we retained it
    const uint64_t bytes = LimitsOf(device).context_overhead_bytes.load();
    UsageOf(device).overhead_bytes.fetch_add(bytes);
    ChargeTaken(device, bytes);
    // No more than that the grant must cover what is charged now.
    if (fits != nullptr) *fits = ChargeOrTrim(device, 0);
  }
  if (gone != nullptr) {
    MemoryOfContextGone(gone);
    WorkOfContextGone(ending);
  }
  if (ended) UnchargeContext(device, contexts);
  return used;
}

// The primary context may be about to end. What stays goes on in SettlePrimary.
CUcontext PausePrimary(uint32_t device) {
  CUcontext context;
  {
    const LockGuard holding(g_contexts.lock);
    context = g_contexts.primary[device];
    if (context != nullptr) WorkOfContextPausing(context);
  }
  if (context != nullptr) {
    MarkMemoryOfContext(context, true);
    AwaitUsersOfWork(context);
  }
  return context;
}

}  // namespace

CUresult ReserveContext(uint32_t device, uint64_t* reserved_bytes) {
  *reserved_bytes = 0;
  if (Live() != kGoverned) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (device == kNoDevice) return CUDA_ERROR_INVALID_DEVICE;
  EnsureHelper();
  const uint64_t bytes = LimitsOf(device).context_overhead_bytes.load();
  if (!ChargeOverhead(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *reserved_bytes = bytes;
  return CUDA_SUCCESS;
}

void ContextFailed(uint32_t device, uint64_t reserved_bytes) {
  UnchargeOverhead(device, reserved_bytes);
}

void ContextMade(CUcontext context, uint32_t device, uint64_t reserved_bytes) {
  {
    const LockGuard holding(g_contexts.lock);
    ++g_contexts.charged[device];
    g_contexts.Add(context, device, true);
  }
  ForgetStreamCache();
  Report(device, reserved_bytes);
}

// From here on its handle may be another context's: it is known by it no more.
ContextEnd ContextEnding(CUcontext context) {
  MarkMemoryOfContext(context, true);
  ContextEnd end = {};
  end.context = context;
  {
    const LockGuard holding(g_contexts.lock);
    KnownContext was;
    end.known = g_contexts.Drop(context, &was);
    if (end.known) end = {context, 0, was.device, true, was.charged, was.attached};
    end.work = WorkOfContextEnding(context);
  }
  AwaitUsersOfWork(context);
  return end;
}

void ContextEnded(const ContextEnd& end, bool success) {
  uint32_t contexts = 0;
  {
    const LockGuard holding(g_contexts.lock);
    if (!success && end.known) {
      g_contexts.Add(end.context, end.device, end.charged);
      KnownContext* const known = g_contexts.Find(end.context);
      if (known != nullptr) known->attached = end.attached;
    }
    if (success && end.known && end.charged) contexts = g_contexts.charged[end.device]--;
  }
  if (!success) {
    MarkMemoryOfContext(end.context, false);
    WorkOfContextStays(end.work);
    return;
  }
  MemoryOfContextGone(end.context);
  WorkOfContextGone(end.work);
  if (contexts != 0) UnchargeContext(end.device, contexts);
}

void ContextAttached(CUcontext context) {
  const LockGuard holding(g_contexts.lock);
  KnownContext* const known = g_contexts.Find(context);
  if (known != nullptr) ++known->attached;
}

bool LastDetach(CUcontext context) {
  const LockGuard holding(g_contexts.lock);
  KnownContext* const known = g_contexts.Find(context);
  if (known == nullptr || known->attached == 0) return true;
  --known->attached;
  return false;
}

// What is charged is the primary context, if this is the first that needs it. Its handle is got by
// retaining it, for the time of the call.
CUresult CreateGreen(CUgreenCtx* green, CUdevice ordinal, CUresult (*call)(void*), void* data) {
  const uint32_t device = IndexOf(ordinal);
  const auto real = [&] { return call(data); };
  if (device == kNoDevice || green == nullptr) return real();
  const InFlightEpoch moving;
  uint64_t reserved_bytes = 0;
  if (!IsActive(ordinal)) {
    const CUresult result = ReserveContext(device, &reserved_bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  BeginPrimary(device);
  CUcontext primary = nullptr;
  CUresult result = PRORATA_REAL(cuDevicePrimaryCtxRetain)(&primary, ordinal);
  if (result == CUDA_SUCCESS) {
    result = real();
    PRORATA_REAL(cuDevicePrimaryCtxRelease_v2)(ordinal);
  }
  const bool made = result == CUDA_SUCCESS;
  if (made) {
    g_green_contexts.fetch_add(1);
    const LockGuard holding(g_contexts.lock);
    g_contexts.Add(HandleOf(*green), device, false);
  }
  bool fits = true;
  const bool used = SettlePrimary(device, ordinal, made ? primary : nullptr, reserved_bytes, &fits);
  if (!fits) {
    DestroyGreen(*green);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (used) {
    ForgetStreamCache();
    Report(device, reserved_bytes);
  }
  return result;
}

void ContextFromGreen(CUcontext context, CUgreenCtx green) {
  const LockGuard holding(g_contexts.lock);
  const KnownContext* const known = g_contexts.Find(HandleOf(green));
  if (known != nullptr) g_contexts.Add(context, known->device, false, green);
}

CUresult DestroyGreen(CUgreenCtx green) {
  const auto real = [&] { return PRORATA_REAL(cuGreenCtxDestroy)(green); };
  uint32_t device = kNoDevice;
  CUcontext context = nullptr;
  {
    const LockGuard holding(g_contexts.lock);
    const KnownContext* const known = g_contexts.Find(HandleOf(green));
    if (known != nullptr) device = known->device;
    if (known != nullptr) context = g_contexts.OfGreen(green);
  }
  if (device == kNoDevice) return real();
  const InFlightEpoch moving;
  const CUdevice ordinal = g_share.ordinal_of_index[device];
  BeginPrimary(device);
  uint32_t ending = 0;
  if (context != nullptr) {
    ending = WorkOfContextEnding(context);
    AwaitUsersOfWork(context);
  }
  const CUcontext primary = PausePrimary(device);
  const CUresult result = real();
  SettlePrimary(device, ordinal, nullptr, 0);
  if (primary != nullptr) MarkMemoryOfContext(primary, false);  // if it is active, all lives on
  if (result != CUDA_SUCCESS) {
    if (context != nullptr) WorkOfContextStays(ending);
    return result;
  }
  g_green_contexts.fetch_sub(1);
  {
    const LockGuard holding(g_contexts.lock);
    KnownContext was;
    g_contexts.Drop(HandleOf(green), &was);
    g_contexts.Drop(context, &was);
  }
  if (context != nullptr) WorkOfContextGone(ending);
  return result;
}

CUresult RetainPrimary(CUcontext* context, CUdevice ordinal) {
  const uint32_t device = IndexOf(ordinal);
  const auto real = PRORATA_REAL(cuDevicePrimaryCtxRetain);
  if (device == kNoDevice) return real(context, ordinal);
  const InFlightEpoch moving;
  uint64_t reserved_bytes = 0;
  if (!IsActive(ordinal)) {
    const CUresult result = ReserveContext(device, &reserved_bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  BeginPrimary(device);
  const CUresult result = real(context, ordinal);
  const CUcontext made = result == CUDA_SUCCESS && context != nullptr ? *context : nullptr;
  bool fits = true;
  const bool used = SettlePrimary(device, ordinal, made, reserved_bytes, &fits);
  if (!fits) {  // another who retained it meanwhile keeps it, charged
    EndPrimary(ordinal, PRORATA_REAL(cuDevicePrimaryCtxRelease_v2));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (used) {
    ForgetStreamCache();
    Report(device, reserved_bytes);
  }
  return result;
}

CUresult EndPrimary(CUdevice ordinal, CUresult (*call)(CUdevice)) {
  const uint32_t device = IndexOf(ordinal);
  if (device == kNoDevice) return call(ordinal);
  const InFlightEpoch moving;
  BeginPrimary(device);
  const CUcontext context = PausePrimary(device);
  const CUresult result = call(ordinal);
  SettlePrimary(device, ordinal, nullptr, 0);
  if (context != nullptr) MarkMemoryOfContext(context, false);  // if it is active, all lives on
  return result;
}

}  // namespace prorata::client
