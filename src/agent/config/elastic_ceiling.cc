#include "agent/config/elastic_ceiling.h"

#include "agent/config/of_gpu.h"

namespace prorata::agent {
namespace {

std::unexpected<Error> BadCeiling(std::string_view text, std::string_view why) {
  return Fail("bad_elastic_ceiling", "'" + std::string(text.substr(0, 120)) + "' " +
                                         std::string(why) +
                                         "; write for example 0.9, or 0=0.9 for GPU 0 alone");
}

}  // namespace

Result<std::vector<ElasticCeiling>> ParseElasticCeiling(std::string_view text) {
  const auto list = SplitGpuList(text, "0.9, or 0=0.9 for GPU 0 alone");
  if (!list) return Fail("bad_elastic_ceiling", list.error().message);
  std::vector<ElasticCeiling> all;
  for (const OfGpu& one : *list) {
    const auto ceiling = ParseFraction(one.value);
    if (!ceiling) {
      return BadCeiling(one.value, "is no fraction of a GPU from 0 to 1, of at most six decimals");
    }
    if (*ceiling == Fraction::Zero()) {
      return BadCeiling(one.value, "would leave nothing above the requests");
    }
    all.push_back({one.gpu, *ceiling});
  }
  return all;
}

}  // namespace prorata::agent
