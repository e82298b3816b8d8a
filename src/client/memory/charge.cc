#include "client/memory/charge.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/memory/in_flight.h"
#include "client/memory/ledger.h"
#include "client/memory/memory.h"
#include "client/memory/pools.h"
#include "client/platform/os.h"
#include "client/session/connection.h"
#include "client/session/requests.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

const std::atomic<uint64_t>* GrantWord(uint32_t device) {
  return &g_share.grants.load(std::memory_order_acquire)->bytes[device];
}

// The limit was lowered below what the share was granted: until that has fallen, a grant is no
// leave to take more, and the agent must be asked.
bool OverLimit(uint32_t device) {
  const shm::DeviceLimits& limits = LimitsOf(device);
  return limits.granted_bytes.load(std::memory_order_relaxed) >
         limits.memory_limit_bytes.load(std::memory_order_relaxed);
}

// The refusal of a request for `wanted`: full for good, or only until another thread freed.
Charged Refused(const wire::GrantReply& reply) {
  return reply.result == wire::GrantResult::kDeviceFull ? Charged::kDeviceFull
                                                        : Charged::kShareFull;
}

// Whether this call may wait for a full device.
bool WaitsForRoom() {
  const uint32_t wait_ms =
      g_share.limits.load()->header.on_full_wait_ms.load(std::memory_order_relaxed);
  return wait_ms != wire::kNoWait && MayWait();
}

}  // namespace

bool MayWait() {
  if (g_open_captures.load() != 0) return false;
  // A program must not call CUDA in a host function or a callback, for which others of the driver's
  // threads wait. A driver that answers CUDA_ERROR_NOT_PERMITTED there says so by this call. It
  // need not (CUDA Driver API, cuLaunchHostFunc): such a program waits no longer than it asked for.
  const OwnCalls own;
  CUcontext context = nullptr;
  return PRORATA_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS;
}

constinit InFlight g_in_flight;
__thread InFlight::Stripe* t_in_flight __attribute__((tls_model("initial-exec"))) = nullptr;

InFlight::Stripe* ClaimInFlight() {
  const auto alive = [](int32_t thread) {
    const int saved_errno = errno;
    const bool gone = syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH;
    errno = saved_errno;
    return !gone;
  };
  t_in_flight = g_in_flight.Claim(static_cast<int32_t>(syscall(SYS_gettid)), alive);
  return t_in_flight;
}

Charged Charge(uint32_t device, uint64_t bytes, bool waits) {
  if (device >= g_share.device_count || Live() != kGoverned) return Charged::kShareFull;
  auto& used = UsageOf(device).used_bytes;
  // Only who waits needs the clock: reading it was 30 ns of the 76 of a pair.
  const int64_t waits_since_ns = waits ? NowNs() : 0;
  for (;;) {
    uint64_t wanted;
    if (TryCharge(&used, GrantWord(device), bytes, &wanted)) {
      if (!OverLimit(device)) return Charged::kYes;
      wanted = used.fetch_sub(bytes);
    }
    if (wanted > LimitsOf(device).memory_limit_bytes.load() &&
        bytes > LimitsOf(device).memory_limit_bytes.load()) {
      return Charged::kShareFull;  // more than the whole share: no need to ask
    }
    wire::GrantReply reply;
    if (!AskGrant(device, wanted, waits_since_ns, &reply)) return Charged::kShareFull;
    if (reply.result == wire::GrantResult::kGranted) continue;
    // Full for `wanted`. Another thread may have freed meanwhile: then the question was too large.
    const uint64_t now = used.load();
    if (now + bytes >= wanted && now + bytes > GrantOf(device)) return Refused(reply);
  }
}

bool ChargeOrTrim(uint32_t device, uint64_t bytes, IfRefused refused) {
  Charged charged = Charge(device, bytes);
  if (charged == Charged::kYes) return true;
  if (device >= g_share.device_count) return false;
  if (TrimPools(device)) charged = Charge(device, bytes);
  if (charged == Charged::kDeviceFull && refused == IfRefused::kCount) {
    if (WaitsForRoom()) charged = Charge(device, bytes, true);
  }
  if (charged == Charged::kYes) return true;
  if (refused == IfRefused::kTryAgain) return false;
  // In this order: who sees the count finds the size.
  UsageOf(device).refused_bytes.store(bytes, std::memory_order_relaxed);
  UsageOf(device).refusals.fetch_add(1, std::memory_order_release);
  return false;
}

void Uncharge(uint32_t device, uint64_t bytes) {
  if (bytes != 0) UsageOf(device).used_bytes.fetch_sub(bytes);
}

void ChargeTaken(uint32_t device, uint64_t bytes) {
  if (bytes != 0) UsageOf(device).used_bytes.fetch_add(bytes);
}

bool ChargeOverhead(uint32_t device, uint64_t bytes) {
  if (!ChargeOrTrim(device, bytes)) return false;
  UsageOf(device).overhead_bytes.fetch_add(bytes);
  return true;
}

void UnchargeOverhead(uint32_t device, uint64_t bytes) {
  UsageOf(device).overhead_bytes.fetch_sub(bytes);
  Uncharge(device, bytes);
}

void SettleOverhead(uint32_t device, uint64_t overhead_bytes) {
  if (device >= g_share.device_count) return;
  const uint64_t before = UsageOf(device).overhead_bytes.exchange(overhead_bytes);
  // Modulo 2^64: adds what is more, takes away what is less.
  UsageOf(device).used_bytes.fetch_add(overhead_bytes - before);
}

}  // namespace prorata::client
