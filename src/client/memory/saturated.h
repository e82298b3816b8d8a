#pragma once

// Sizes that a program or an image states, and that may be anything.

#include <cstdint>

namespace prorata::client {

// More than any memory, and far enough from overflow that two may be added.
inline constexpr uint64_t kMost = uint64_t{1} << 62;

// The product, or kMost if it is more.
inline uint64_t Times(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) || product > kMost ? kMost : product;
}

}  // namespace prorata::client
