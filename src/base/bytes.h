#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// Parses a size: a positive decimal number (a fraction is allowed) and a unit, B, KiB, MiB, GiB or
// TiB, or K, M, G, T with the same meaning; a bare number is bytes. The case of the unit matters
// ("4Gib" is an error, for bits are not bytes). Zero, signs, and anything over 2^63 are errors.
Result<uint64_t> ParseBytes(std::string_view text);

// The shortest exact or two-decimal form in binary units: 1073741824 -> "1 GiB", 512 -> "512 B".
std::string FormatBytes(uint64_t bytes);

}  // namespace prorata
