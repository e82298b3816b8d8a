#include "client/contexts.h"

#include <atomic>

#include "client/charge.h"
#include "client/connection.h"
#include "client/fences.h"
#include "client/guest.h"
#include "client/helper.h"
#include "client/memory.h"
#include "client/share.h"

namespace prorata::client {
namespace {

constexpr uint32_t kMaxContexts = 256;

struct Known {
  CUcontext context;
  uint32_t device;
  bool charged;
};
struct Primary {
  uint32_t changing;
  uint64_t generation;
  bool charged;
  CUcontext context;
};

Lock g_lock;  // of all below
Known g_known[kMaxContexts];
std::atomic<uint32_t> g_known_count;  // used length; entries are in no order
Primary g_primaries[protocol::kMaxDevices];
uint32_t g_charged[protocol::kMaxDevices];  // contexts that overhead is charged for

void AddKnown(CUcontext context, uint32_t device, bool charged) {  // under g_lock
  const uint32_t count = g_known_count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (g_known[i].context == context) return;
  }
  if (count == kMaxContexts) return;
  g_known[count] = {context, device, charged};
  g_known_count.store(count + 1, std::memory_order_release);
}

bool DropKnown(CUcontext context, Known* was) {  // under g_lock
  const uint32_t count = g_known_count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (g_known[i].context != context) continue;
    *was = g_known[i];
    g_known[i] = g_known[count - 1];
    g_known_count.store(count - 1, std::memory_order_release);
    return true;
  }
  return false;
}

// One of `contexts` on the device is gone: its part of the overhead goes with it. What each one
// took is not known, only the sum, so each takes the same; the last one takes what is left.
void UnchargeContext(uint32_t device, uint32_t contexts) {
  const uint64_t overhead = UsageOf(device).overhead_bytes.load();
  UnchargeOverhead(device, contexts <= 1 ? overhead : overhead / contexts);
}

void Report(uint32_t device, uint64_t reserved_bytes) {
  protocol::ContextSettled settled;
  AskSettled(device, reserved_bytes, &settled);  // the helper has settled the ledger by the answer
}

bool IsActive(CUdevice ordinal) {
  unsigned int flags = 0;
  int active = 0;
  const OwnCalls own;
  return PRORATA_REAL(cuDevicePrimaryCtxGetState)(ordinal, &flags, &active) == CUDA_SUCCESS &&
         active != 0;
}

void BeginPrimary(uint32_t device) {
  const Holding holding(g_lock);
  ++g_primaries[device].changing;
  ++g_primaries[device].generation;
}

// `reserved_bytes` of overhead were charged by the caller; gives them back unless this activated
// the context. True: they were used.
bool SettlePrimary(uint32_t device, CUdevice ordinal, CUcontext context, uint64_t reserved_bytes) {
  Primary& primary = g_primaries[device];
  bool used = false, ended = false;
  CUcontext gone = nullptr;
  uint32_t contexts = 0;
  for (bool leaving = false; !leaving;) {
    uint64_t generation;
    {
      const Holding holding(g_lock);
      generation = primary.generation;
    }
    const bool active = IsActive(ordinal);
    const Holding holding(g_lock);
    const bool last = primary.changing == 1;
    if (last && primary.generation != generation) continue;
    leaving = true;
    --primary.changing;
    if (context != nullptr) primary.context = context;
    // A retain that succeeded activated the context whatever others do after it, so it may charge
    // without being the last one; only the last one may find it gone.
    if (active && context != nullptr && !primary.charged) {
      primary.charged = used = true;
      ++g_charged[device];
      AddKnown(context, device, true);
    } else if (!active && last && primary.charged) {
      primary.charged = false;
      ended = true;
      gone = primary.context;
      contexts = g_charged[device]--;
      Known was;
      DropKnown(gone, &was);
    }
  }
  if (!used && reserved_bytes != 0) UnchargeOverhead(device, reserved_bytes);
  if (used && reserved_bytes == 0) {  // it was active when we looked, and not when we retained it
    const uint64_t bytes = LimitsOf(device).context_overhead_bytes.load();
    UsageOf(device).overhead_bytes.fetch_add(bytes);
    ChargeTaken(device, bytes);
  }
  if (gone != nullptr) {
    MemoryOfContextGone(gone);
    FencesOfContextGone(gone);
  }
  if (ended) UnchargeContext(device, contexts);
  return used;
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
    const Holding holding(g_lock);
    ++g_charged[device];
    AddKnown(context, device, true);
  }
  ForgetStreamCache();
  Report(device, reserved_bytes);
}

void ContextEnding(CUcontext context) {
  MarkMemoryOfContext(context, true);
  FencesOfContextEnding(context);
}

void ContextEnded(CUcontext context, bool success) {
  if (!success) {
    MarkMemoryOfContext(context, false);
    FencesOfContextStay(context);
    return;
  }
  Known was = {};
  uint32_t contexts = 0;
  bool known;
  {
    const Holding holding(g_lock);
    known = DropKnown(context, &was);
    if (known && was.charged) contexts = g_charged[was.device]--;
  }
  MemoryOfContextGone(context);
  FencesOfContextGone(context);
  if (contexts != 0) UnchargeContext(was.device, contexts);
}

CUresult RetainPrimary(CUcontext* context, CUdevice ordinal) {
  const uint32_t device = IndexOf(ordinal);
  const auto real = PRORATA_REAL(cuDevicePrimaryCtxRetain);
  if (device == kNoDevice) return Within([&] { return real(context, ordinal); });
  uint64_t reserved_bytes = 0;
  if (!IsActive(ordinal)) {
    const CUresult result = ReserveContext(device, &reserved_bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  BeginPrimary(device);
  const CUresult result = Within([&] { return real(context, ordinal); });
  const CUcontext made = result == CUDA_SUCCESS && context != nullptr ? *context : nullptr;
  if (SettlePrimary(device, ordinal, made, reserved_bytes)) {
    ForgetStreamCache();
    Report(device, reserved_bytes);
  }
  return result;
}

CUresult EndPrimary(CUdevice ordinal, CUresult (*call)(CUdevice)) {
  const uint32_t device = IndexOf(ordinal);
  if (device == kNoDevice) return Within([&] { return call(ordinal); });
  CUcontext context;
  {
    const Holding holding(g_lock);
    context = g_primaries[device].context;
  }
  BeginPrimary(device);
  if (context != nullptr) ContextEnding(context);
  const CUresult result = Within([&] { return call(ordinal); });
  SettlePrimary(device, ordinal, nullptr, 0);
  if (context != nullptr) ContextEnded(context, false);  // if it is still active, all lives on
  return result;
}

uint32_t DeviceOfCurrent(CUcontext current) {
  if (current == nullptr) return kNoDevice;
  {
    const Holding holding(g_lock);
    const uint32_t count = g_known_count.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < count; ++i) {
      if (g_known[i].context == current) return g_known[i].device;
    }
  }
  CUdevice ordinal = -1;
  const OwnCalls own;
  return PRORATA_REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS ? IndexOf(ordinal) : kNoDevice;
}

uint32_t KnownContexts() { return g_known_count.load(std::memory_order_relaxed); }

}  // namespace prorata::client
