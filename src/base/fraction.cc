#include "base/fraction.h"

#include <cstdio>

namespace prorata {
namespace {

std::unexpected<Error> BadFraction(std::string_view text, std::string_view why) {
  return Fail("bad_fraction", "'" + std::string(text) + "' is not a fraction of a GPU: " +
                                  std::string(why) + "; write for example 0.3 or 30%");
}

}  // namespace

Result<Fraction> ParseFraction(std::string_view text) {
  std::string_view digits = text;
  const bool percent = !digits.empty() && digits.back() == '%';
  if (percent) digits.remove_suffix(1);
  const int decimals_max = percent ? 4 : 6;
  uint64_t value = 0;
  int decimals = -1;
  int seen = 0;
  for (const char c : digits) {
    if (c == '.' && decimals < 0) {
      decimals = 0;
      continue;
    }
    if (c < '0' || c > '9') return BadFraction(text, "it is not a plain decimal number");
    if (++seen > 12) return BadFraction(text, "it has too many digits");
    if (decimals >= 0 && ++decimals > decimals_max) {
      return BadFraction(text, "it is finer than one millionth");
    }
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  if (seen == 0) return BadFraction(text, "it has no digits");
  for (int i = decimals < 0 ? 0 : decimals; i < decimals_max; ++i) value *= 10;
  if (value > Fraction::kOne) return BadFraction(text, "it is above 1");
  return Fraction{static_cast<uint32_t>(value)};
}

namespace {

// `ppm` of `one`, with so many decimals less the zeros that end it.
std::string Shortest(uint32_t ppm, uint32_t one, int decimals) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%u.%0*u", ppm / one, decimals, ppm % one);
  std::string text(buffer);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

std::string FormatFraction(Fraction fraction) { return Shortest(fraction.ppm, Fraction::kOne, 6); }

std::string FormatPercent(Fraction fraction) {
  return Shortest(fraction.ppm, Fraction::kOne / 100, 4) + "%";
}

}  // namespace prorata
