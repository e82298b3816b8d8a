#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata {

// Parses a span of time: a whole number and a unit, us, ms, s, m or h ("500ms", "30s", "5m", "2h").
// Answers nanoseconds. Zero, signs, a missing unit and anything over 2^62 ns are errors.
Result<int64_t> ParseDuration(std::string_view text);

// The shortest exact form in those units: 90'000'000'000 -> "90s", 300'000'000'000 -> "5m". What is
// below a microsecond is cut off.
std::string FormatDuration(int64_t span_ns);

}  // namespace prorata
