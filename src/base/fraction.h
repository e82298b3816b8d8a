#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata {

// A fraction of a GPU's time, in parts per million: exact to add, to compare and to store.
struct Fraction {
  static constexpr uint32_t kOne = 1'000'000;

  uint32_t ppm = 0;

  static constexpr Fraction One() { return {kOne}; }
  static constexpr Fraction Zero() { return {0}; }
  constexpr double value() const { return static_cast<double>(ppm) / kOne; }
  auto operator<=>(const Fraction&) const = default;
};

// Parses "0.3", "1", ".25" or "30%": 0 to 1, at most six decimals. Errors say what is wrong.
Result<Fraction> ParseFraction(std::string_view text);

// "0.3", "1", "0.125": the shortest decimal that reads back as the same fraction.
std::string FormatFraction(Fraction fraction);

// "30%", "12.5%", "100%": the same for people, exact too.
std::string FormatPercent(Fraction fraction);

}  // namespace prorata
