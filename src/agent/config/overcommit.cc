#include "agent/config/overcommit.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "agent/config/of_gpu.h"

namespace prorata::agent {
namespace {

std::unexpected<Error> Bad(std::string_view text, std::string_view why) {
  return Fail("bad_overcommit", "'" + std::string(text.substr(0, 120)) + "' " + std::string(why) +
                                    "; write for example 1.5, or 0=1.5 for GPU 0 alone");
}

}  // namespace

Result<Overcommit> ParseOvercommit(std::string_view text) {
  const auto split = SplitOfGpu(text);
  if (!split) return Bad(text, "names no GPU before its '='");
  Overcommit overcommit;
  overcommit.gpu = split->gpu;
  const std::string_view number = split->value;
  const char* const end = text.data() + text.size();  // the number's, too
  const auto [at, error] =
      std::from_chars(end - number.size(), end, overcommit.ratio, std::chars_format::fixed);
  if (number.empty() || error != std::errc{} || at != end || !std::isfinite(overcommit.ratio)) {
    return Bad(text, "has no ratio that is a number");
  }
  if (overcommit.ratio < 1) {
    return Bad(text, "is below 1: less than a GPU has is promised by giving shares less --memory");
  }
  if (overcommit.ratio > kMostOvercommit) return Bad(text, "is above 100");
  return overcommit;
}

std::string FormatRatio(double ratio) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6f", ratio);
  std::string text = buffer;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace prorata::agent
