#include "agent/config/overcommit.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "agent/config/of_gpu.h"

namespace prorata::agent {
namespace {

std::unexpected<Error> BadOvercommit(std::string_view text, std::string_view why) {
  return Fail("bad_overcommit", "'" + std::string(text.substr(0, 120)) + "' " + std::string(why) +
                                    "; write for example 1.5, or 0=1.5 for GPU 0 alone");
}

Result<double> ParseRatio(std::string_view text) {
  double ratio = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [at, error] = std::from_chars(begin, end, ratio, std::chars_format::fixed);
  if (text.empty() || error != std::errc{} || at != end || !std::isfinite(ratio)) {
    return BadOvercommit(text, "is no ratio: it is not a number");
  }
  if (ratio < 1) {
    return BadOvercommit(
        text, "is below 1: to promise less than a GPU has, give its shares less --memory");
  }
  if (ratio > kMaxOvercommit) return BadOvercommit(text, "is above 100");
  return ratio;
}

}  // namespace

Result<std::vector<Overcommit>> ParseOvercommit(std::string_view text) {
  const auto list = SplitGpuList(text, "1.5, or 0=1.5 for GPU 0 alone");
  if (!list) return Fail("bad_overcommit", list.error().message);
  std::vector<Overcommit> all;
  for (const OfGpu& one : *list) {
    const auto ratio = ParseRatio(one.value);
    if (!ratio) return std::unexpected(ratio.error());
    all.push_back({one.gpu, *ratio});
  }
  return all;
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
