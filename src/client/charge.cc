#include "client/charge.h"

#include "client/connection.h"
#include "client/guest.h"
#include "client/ledger.h"
#include "client/pools.h"
#include "client/share.h"
#include "client/silence.h"

namespace prorata::client {
namespace {

Silence g_silence;

const std::atomic<uint64_t>* GrantWord(uint32_t device) {
  return &g_share.grants.load(std::memory_order_acquire)->bytes[device];
}

// The limit was lowered below what the share was granted: until that has fallen, a grant is no
// leave to take more, and the agent must be asked.
bool OverLimit(uint32_t device) {
  const protocol::DeviceLimits& limits = LimitsOf(device);
  return limits.granted_bytes.load(std::memory_order_relaxed) >
         limits.memory_limit_bytes.load(std::memory_order_relaxed);
}

}  // namespace

int64_t AgentSilentNs() {
  return g_silence.Observe(g_share.limits.load()->header.heartbeat.load(std::memory_order_relaxed),
                           NowNs());
}

bool Charge(uint32_t device, uint64_t bytes) {
  if (device >= g_share.device_count || Live() != kGoverned) return false;
  auto& used = UsageOf(device).used_bytes;
  for (;;) {
    uint64_t wanted;
    if (TryCharge(&used, GrantWord(device), bytes, &wanted)) {
      if (!OverLimit(device)) return true;
      wanted = used.fetch_sub(bytes);
    }
    if (wanted > LimitsOf(device).memory_limit_bytes.load() &&
        bytes > LimitsOf(device).memory_limit_bytes.load()) {
      return false;  // more than the whole share: no need to ask
    }
    protocol::GrantReply reply;
    if (!AskGrant(device, wanted, &reply)) return false;
    if (reply.result == protocol::GrantResult::kGranted) continue;
    // Full for `wanted`. Another thread may have freed meanwhile: then the question was too large.
    const uint64_t now = used.load();
    if (now + bytes >= wanted && now + bytes > GrantOf(device)) return false;
  }
}

bool ChargeOrTrim(uint32_t device, uint64_t bytes) {
  if (Charge(device, bytes)) return true;
  if (device >= g_share.device_count) return false;
  if (TrimPools(device) && Charge(device, bytes)) return true;
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
