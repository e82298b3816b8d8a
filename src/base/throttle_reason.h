#pragma once

// The reasons for which a share gets less of its device than its program asks for: judged by
// policy/compute/throttle_reasons.h, carried by the API, shown by the CLI.

#include <cstdint>

namespace prorata {

enum class ThrottleReason : uint8_t {
  kNoProgram,        // none runs on it
  kDoesNotAnswer,    // its programs are stopped, as far as is known
  kNonPreemptible,   // what it launched does not end: when it is revoked, or for very long
  kWaitsForMemory,   // an allocation is suspended until the device has room
  kAtLimit,          // its limit on GPU time
  kWaitsForOthers,   // others have the device
  kIdle,             // it asks for little: the program is busy elsewhere
  kOverMemoryLimit,  // it holds more memory than it may, and gets no more
};

}  // namespace prorata
