#pragma once

// A random program of streams, the same from the same seed, whose observations do not depend on
// time.
//
// Every stream has a *word* that only work of its own stream changes, each time by times * word +
// plus, so that the word tells their order. What one stream does reaches another along a dependency
// alone: before an event is recorded the word is copied to a place that is never written again, and
// who waits for the event mixes that into its own word. The legacy stream and blocking streams of
// one thread read each other's words directly, for they are ordered without events. Threads see
// each other's events after a hand-over on the host, which goes from lower to higher numbers only.
//
// No program may hang on the bare driver. A stream that waits for a value is *gated* until the flag
// is written, and so is whatever waits for it; what may still be missing is tracked:
//   - only non-blocking streams are ever gated, so neither the legacy stream nor another thread's
//     work ever is (the implicit order goes across threads);
//   - a flag is written by the host, or by a stream that does not depend on it; if that stream is
//     itself gated, the gated ones now depend on what gates it;
//   - a thread waits only for what no flag gates, and for the whole context, another thread or the
//     lock of captures only when it owes no flag at all.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/stream_fuzz/driver.h"

namespace prorata::stream_fuzz {

struct Device {
  const Driver* driver = nullptr;
  CUcontext context = nullptr;
  CUfunction mix = nullptr;
};

// Runs the program of this seed and returns what it observed, one line for each observation.
std::vector<std::string> RunProgram(const Device& device, uint64_t seed);

}  // namespace prorata::stream_fuzz
