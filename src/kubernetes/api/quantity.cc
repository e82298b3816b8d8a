#include "kubernetes/api/quantity.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

namespace prorata::kubernetes {
namespace {

// Exact up to 2^64 with a binary point: long double has 64 bits on x86-64.
using Number = long double;

struct Suffix {
  std::string_view text;
  Number factor;
};
constexpr Suffix kSuffixes[] = {
    {"", 1},         {"Ki", 0x1p10L}, {"Mi", 0x1p20L}, {"Gi", 0x1p30L},
    {"Ti", 0x1p40L}, {"Pi", 0x1p50L}, {"Ei", 0x1p60L}, {"n", 1e-9L},
    {"u", 1e-6L},    {"m", 1e-3L},    {"k", 1e3L},     {"M", 1e6L},
    {"G", 1e9L},     {"T", 1e12L},    {"P", 1e15L},    {"E", 1e18L},
};
constexpr Number kLimit = 0x1p63L;
constexpr int kMaxExponent = 30;

std::unexpected<Error> Bad(std::string_view text) {
  return Fail("bad_quantity", "'" + std::string(text) +
                                  "' is no quantity of Kubernetes from 0 to 2^63, such as 8Gi, 30 "
                                  "or 1500m");
}

}  // namespace

Result<uint64_t> ParseQuantity(std::string_view text) {
  const size_t digits_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view digits = text.substr(0, digits_end);
  std::string_view suffix = text.substr(digits_end);
  Number number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number,
                                            std::chars_format::fixed);
  if (error != std::errc() || end != digits.data() + digits.size()) return Bad(text);
  if (suffix.size() > 1 && (suffix[0] == 'e' || suffix[0] == 'E') && suffix != "Ei") {
    suffix.remove_prefix(suffix[1] == '+' ? 2 : 1);
    int exponent = 0;
    const auto [stop, wrong] =
        std::from_chars(suffix.data(), suffix.data() + suffix.size(), exponent);
    if (wrong != std::errc() || stop != suffix.data() + suffix.size()) return Bad(text);
    if (exponent < -kMaxExponent || exponent > kMaxExponent) return Bad(text);
    number *= std::pow(Number{10}, Number(exponent));
  } else {
    const Suffix* found = nullptr;
    for (const Suffix& known : kSuffixes) {
      if (known.text == suffix) found = &known;
    }
    if (found == nullptr) return Bad(text);
    number *= found->factor;
  }
  number = std::ceil(number);
  if (!(number < kLimit)) return Bad(text);
  return static_cast<uint64_t>(number);
}

std::string FormatBinaryQuantity(uint64_t value) {
  constexpr std::string_view kUnits[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
  size_t unit = 0;
  while (value != 0 && value % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return std::to_string(value) + std::string(kUnits[unit]);
}

}  // namespace prorata::kubernetes
