#include "base/duration.h"

#include <array>
#include <utility>

#include "base/clock.h"

namespace prorata {
namespace {

constexpr std::array<std::pair<std::string_view, int64_t>, 5> kUnits = {{
    {"h", 3600 * kNsPerS},
    {"m", 60 * kNsPerS},
    {"s", kNsPerS},
    {"ms", kNsPerMs},
    {"us", kNsPerUs},
}};
constexpr int64_t kMaxNs = int64_t{1} << 62;

std::unexpected<Error> BadDuration(std::string_view text, std::string_view why) {
  return Fail("bad_duration", "'" + std::string(text.substr(0, 80)) + "' is not a span of time: " +
                                  std::string(why) + "; write for example 30s or 5m");
}

}  // namespace

Result<int64_t> ParseDuration(std::string_view text) {
  size_t i = 0;
  int64_t count = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    if (count > kMaxNs / 10 - 10) return BadDuration(text, "it is too long");
    count = count * 10 + (text[i] - '0');
  }
  if (i == 0) return BadDuration(text, "it does not begin with a digit");
  for (const auto& [name, unit_ns] : kUnits) {
    if (text.substr(i) != name) continue;
    if (count == 0) return BadDuration(text, "it must be above zero");
    if (count > kMaxNs / unit_ns) return BadDuration(text, "it is too long");
    return count * unit_ns;
  }
  if (i == text.size()) return BadDuration(text, "it has no unit, which is us, ms, s, m or h");
  return BadDuration(
      text, "the unit '" + std::string(text.substr(i, 80)) + "' is not one of us, ms, s, m, h");
}

std::string FormatDuration(int64_t span_ns) {
  const int64_t whole_ns = span_ns / kNsPerUs * kNsPerUs;
  for (const auto& [name, unit_ns] : kUnits) {
    if (whole_ns != 0 && whole_ns % unit_ns == 0) {
      return std::to_string(whole_ns / unit_ns) + std::string(name);
    }
  }
  return "0s";
}

}  // namespace prorata
