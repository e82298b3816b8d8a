#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// Parses a size: a positive decimal number (a fraction is allowed) and a unit. A unit is B, or K,
// M, G or T, which B, i or iB may follow; all of one letter mean the same, a power of 1024, as with
// Docker: 4G, 4GB, 4Gi, 4GiB, 4g, 4gb are 4294967296 bytes. A bare number is bytes. Small letters
// are as good as capitals, but for a small b after a capital ("4Gb", "4Gib"): those are bits, and
// an error. So are zero, signs, and anything over 2^63.
Result<uint64_t> ParseBytes(std::string_view text);

// The shortest exact or two-decimal form in binary units: 1073741824 -> "1 GiB", 512 -> "512 B".
std::string FormatBytes(uint64_t bytes);

}  // namespace prorata
