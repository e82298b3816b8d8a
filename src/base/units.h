#pragma once

// Short names of times in nanoseconds, for tests and simulations, which are full of them.

#include <cstdint>

#include "base/clock.h"

namespace prorata {

inline constexpr int64_t kUs = kNsPerUs;
inline constexpr int64_t kMs = kNsPerMs;
inline constexpr int64_t kS = kNsPerS;

}  // namespace prorata
