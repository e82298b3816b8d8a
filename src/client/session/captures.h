#pragma once

// Stream captures open in this process: only while one is open anywhere are streams asked whether
// they are being captured. Counted by compute/capture_abi.cc. Thread-safe.

#include <atomic>
#include <cstdint>

#include "client/session/driver_functions.h"

namespace prorata::client {

// Captures open anywhere in the process.
extern std::atomic<uint32_t> g_open_captures;
// What the driver says of a stream; CU_STREAM_CAPTURE_STATUS_NONE where it cannot be asked.
CUstreamCaptureStatus CaptureStatusOf(CUstream stream, bool per_thread);
bool AskCaptured(CUstream stream, bool per_thread);

// Whether `stream` is being captured. One load while no capture is open.
inline bool IsCaptured(CUstream stream, bool per_thread) {
  return g_open_captures.load(std::memory_order_relaxed) != 0 && AskCaptured(stream, per_thread);
}

}  // namespace prorata::client
