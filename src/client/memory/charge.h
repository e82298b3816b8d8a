#pragma once

// Charging device memory to the share. All functions are thread-safe, hold no lock, and take the
// device's index in the limits file. Charge may wait for the agent's answer (see connection.h).

#include <cstdint>

namespace prorata::client {

enum class Charged { kYes, kShareFull, kDeviceFull };

// kShareFull: the share's limit is reached, or it has no such device. kDeviceFull: the share's
// limit would allow it, but more was promised than the device has. Nothing is charged then.
// `wait_ms`: for how long it may wait for a full device (wire::kNoWait, kWaitForever).
Charged Charge(uint32_t device, uint64_t bytes, bool waits = false);

// As Charge, but before it refuses it lets the process's memory pools give back what they keep
// unused, and tries once more; then, where the device is full and the share is to wait for it
// (`prorata run --on-full wait`), it waits, where MayWait(). The caller holds no lock of ours.
// Where the caller will try again it neither waits nor counts a refusal.
enum class IfRefused { kCount, kTryAgain };
bool ChargeOrTrim(uint32_t device, uint64_t bytes, IfRefused refused = IfRefused::kCount);

// Whether a call may wait for memory: not while a stream capture is open in this process, nor where
// the driver refuses calls, as it may in a host function or callback.
bool MayWait();

void Uncharge(uint32_t device, uint64_t bytes);

// For memory that is already taken and turned out larger than what was reserved: over the grant, if
// need be. The agent then takes `used` for the grant and has the less to give.
void ChargeTaken(uint32_t device, uint64_t bytes);

// The agent measured what this member's contexts on a device really take.
void SettleOverhead(uint32_t device, uint64_t overhead_bytes);

// Charges / gives back overhead that no allocation asked for (contexts).
bool ChargeOverhead(uint32_t device, uint64_t bytes);
void UnchargeOverhead(uint32_t device, uint64_t bytes);

}  // namespace prorata::client
