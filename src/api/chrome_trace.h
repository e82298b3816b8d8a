#pragma once

// A device's trace (api/trace.h) in the Trace Event Format, JSON that the Perfetto UI and
// chrome://tracing open: a process for each GPU; in it a track for how the GPU is shared, and one
// for each share with a slice for each of its states; counters of GPU time and lag; and instants.
//
// Times are whole microseconds from the beginning of the trace, cut off in the same way everywhere:
// so a slice ends exactly where the next one of its track begins, and no rounding makes them
// overlap.

#include <cstdint>
#include <span>
#include <string>

#include "api/trace.h"

namespace prorata::api {

struct TracedDevice {
  uint32_t index = 0;
  std::string uuid = {};
  std::string name = {};
  int64_t begins_ns = 0;  // what was before is left out
  TraceReply trace;       // all pages of it, with the first one's times
};

// `maker`: who wrote it, for its metadata.
std::string ChromeTrace(std::span<const TracedDevice> devices, const std::string& maker);

}  // namespace prorata::api
