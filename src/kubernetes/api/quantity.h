#pragma once

// Kubernetes' quantities ("8Gi", "30", "1500m"), as far as sizes and counts need them. Pure;
// thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata::kubernetes {

// A quantity as a whole number, rounded up where it is none ("1500m" is 2). Suffixes: Ki to Ei, n,
// u, m, k, M to E, or a decimal exponent ("1e3"). "bad_quantity": not one, negative, or over 2^63.
Result<uint64_t> ParseQuantity(std::string_view text);

// The form to which Kubernetes itself brings binary sizes: 8589934592 is "8Gi", 1000 is "1000".
std::string FormatBinaryQuantity(uint64_t value);

}  // namespace prorata::kubernetes
