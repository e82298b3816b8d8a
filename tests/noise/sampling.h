#pragma once

// Measures this machine, now: real threads on real CPUs. What the samples mean is noise.h's.

#include <atomic>

#include "noise/noise.h"

namespace prorata::noise {

// One thread on each CPU that this process may use wakes every millisecond by a timed futex wait,
// as the simulated driver waits, until `over`; how late each was. With `busy` another thread on
// each is busy for the last third of `length_ns`, and its gaps are noted. A length of 0: until
// `over`.
Samples Measure(int64_t length_ns, bool busy, const std::atomic<bool>& over);

}  // namespace prorata::noise
