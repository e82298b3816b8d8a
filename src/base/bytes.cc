#include "base/bytes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <optional>

namespace prorata {
namespace {

std::unexpected<Error> BadSize(std::string_view text, std::string_view why) {
  return Fail("bad_size", "'" + std::string(text) + "' is not a size: " + std::string(why) +
                              "; write for example 512MiB or 4GiB");
}

// The power of two that a unit stands for; nothing: it is none.
std::optional<int> ShiftOf(std::string_view unit) {
  if (unit.empty()) return 0;
  const bool bits = unit.ends_with('b') && std::isupper(static_cast<unsigned char>(unit[0])) != 0;
  if (bits) return std::nullopt;
  std::string small(unit);
  std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
  if (small == "b") return 0;
  const size_t letter = std::string_view("kmgt").find(small[0]);
  const std::string rest = small.substr(1);
  if (letter == std::string_view::npos) return std::nullopt;
  if (!rest.empty() && rest != "b" && rest != "i" && rest != "ib") return std::nullopt;
  return 10 * (static_cast<int>(letter) + 1);
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Result<uint64_t> ParseBytes(std::string_view text) {
  size_t i = 0;
  long double value = 0;
  while (i < text.size() && IsDigit(text[i])) value = value * 10 + (text[i++] - '0');
  if (i == 0) return BadSize(text, "it does not begin with a digit");
  if (i < text.size() && text[i] == '.') {
    const size_t point = i++;
    long double scale = 0.1L;
    for (; i < text.size() && IsDigit(text[i]); ++i, scale /= 10) value += scale * (text[i] - '0');
    if (i == point + 1) return BadSize(text, "there is no digit after the point");
  }
  std::string_view unit = text.substr(i);
  if (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const auto shift = ShiftOf(unit);
  if (!shift) {
    return BadSize(text, "the unit '" + std::string(unit) +
                             "' is not one of B, K, M, G, T (or KB, Ki, KiB and so on, each 1024 "
                             "of the one before it)");
  }
  const long double bytes = std::ldexp(value, *shift);
  if (bytes >= std::ldexp(1.0L, 63)) return BadSize(text, "it is too large");
  const auto whole = static_cast<uint64_t>(bytes);
  if (whole == 0) return BadSize(text, "it must be above zero");
  return whole;
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (unit + 1 < kNames.size() && bytes >= (uint64_t{1} << (10 * (unit + 1)))) ++unit;
  const double value = std::ldexp(static_cast<double>(bytes), -10 * static_cast<int>(unit));
  char buffer[48];
  const bool whole = bytes % (uint64_t{1} << (10 * unit)) == 0;
  std::snprintf(buffer, sizeof buffer, whole ? "%.0f %s" : "%.2f %s", value, kNames[unit]);
  return buffer;
}

}  // namespace prorata
