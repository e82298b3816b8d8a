#include "api/memory_size.h"

#include <algorithm>
#include <cstdio>

#include "base/bytes.h"

namespace prorata::api {

uint64_t MemorySize::Of(uint64_t total_bytes) const {
  if (part == Fraction::Zero()) return bytes;
  // A device of 2^44 bytes times a million is still below 2^64.
  const uint64_t exact = total_bytes / Fraction::kOne * part.ppm +
                         total_bytes % Fraction::kOne * part.ppm / Fraction::kOne;
  return std::max(exact / kMemoryStep * kMemoryStep, kMemoryStep);
}

Result<MemorySize> ParseMemorySize(std::string_view text) {
  if (!text.ends_with('%')) {
    const auto bytes = ParseBytes(text);
    if (!bytes) return std::unexpected(bytes.error());
    return MemorySize(*bytes);
  }
  const auto part = ParseFraction(text);
  if (part && *part > Fraction::Zero()) return MemorySize(*part);
  return Fail("bad_size", "'" + std::string(text.substr(0, 80)) +
                              "' is no part of a GPU's memory, which is above 0% and at most 100%; "
                              "write for example 25% or 4GiB");
}

Result<MemorySize> ParseMemoryRequest(std::string_view text) {
  if (text == "0") return MemorySize();
  auto size = ParseMemorySize(text);
  if (size) return size;
  return Fail(size.error().code, size.error().message + ", or 0 to set nothing aside");
}

std::string FormatMemorySize(const MemorySize& size) {
  if (size.part == Fraction::Zero()) return FormatBytes(size.bytes);
  char text[32];
  std::snprintf(text, sizeof text, "%g%%", 100 * size.part.value());
  return text;
}

}  // namespace prorata::api
