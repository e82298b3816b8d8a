#include "client/code/implicit_allocations.h"

#include <atomic>

#include "client/memory/charge.h"
#include "client/memory/in_flight.h"
#include "client/session/connection.h"
#include "client/session/requests.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

std::atomic<uint64_t> g_expected_heaps[shm::kMaxDevices];

// The charge of what was made, on top of what is remembered for it.
CUresult Account(const Place& place, uint64_t key, uint64_t bytes) {
  const Allocation before = ForgetForFree(key);
  Allocation allocation;
  allocation.context = reinterpret_cast<uint64_t>(place.context);
  allocation.device = static_cast<uint8_t>(place.device);
  allocation.kind = Kind::kImplicit;
  allocation.bytes = before.bytes + bytes;
  return AccountWhole(key, allocation) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

CUresult TakeImplicit(const Place& place, uint64_t expected_bytes, uint64_t certain_bytes,
                      const ImplicitCall& implicit) {
  const uint32_t device = place.device;
  const InFlightEpoch moving;
  if (expected_bytes != 0 && !ChargeOrTrim(device, expected_bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = implicit.call(implicit.data);
  if (result != CUDA_SUCCESS) {
    Uncharge(device, expected_bytes);
    return result;
  }
  uint64_t took = expected_bytes;
  wire::ContextSettled settled = {};
  const uint64_t looked = g_in_flight.Look();
  const bool answered = AskSettled(device, wire::kMadeOther, expected_bytes, &settled);
  if (answered && settled.measured == wire::kTook) {
    took = settled.overhead_bytes;
    // Beside what others were moving it is too small: it cannot say that less was taken.
    if (took < expected_bytes && !g_in_flight.AloneSince(looked)) took = expected_bytes;
    if (took < certain_bytes) took = certain_bytes;
    if (took < expected_bytes) Uncharge(device, expected_bytes - took);
    if (took > expected_bytes) ChargeTaken(device, took - expected_bytes);
  } else if (answered && settled.measured == wire::kTookTooMuch) {
    UsageOf(device).refusals.fetch_add(1, std::memory_order_relaxed);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result == CUDA_SUCCESS) result = Account(place, implicit.key(implicit.data), took);
  if (result == CUDA_SUCCESS) return result;
  if (settled.measured == wire::kTookTooMuch) Uncharge(device, expected_bytes);
  implicit.undo(implicit.data);
  return result;
}

void ExpectHeap(uint32_t device, uint64_t bytes) { g_expected_heaps[device].fetch_add(bytes); }

uint64_t TakeExpectedHeaps(uint32_t device) { return g_expected_heaps[device].exchange(0); }

}  // namespace prorata::client
