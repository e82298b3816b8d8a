#include "agent/config/elastic_ceiling.h"

#include "agent/config/of_gpu.h"

namespace prorata::agent {
namespace {

std::unexpected<Error> Bad(std::string_view text, std::string_view why) {
  return Fail("bad_elastic_ceiling", "'" + std::string(text.substr(0, 120)) + "' " +
                                         std::string(why) +
                                         "; write for example 0.9, or 0=0.9 for GPU 0 alone");
}

}  // namespace

Result<ElasticCeiling> ParseElasticCeiling(std::string_view text) {
  const auto split = SplitOfGpu(text);
  if (!split) return Bad(text, "names no GPU before its '='");
  const auto ceiling = ParseFraction(split->value);
  if (!ceiling) return Bad(text, "has no fraction of a GPU from 0 to 1, of at most six decimals");
  if (*ceiling == Fraction::Zero()) return Bad(text, "would leave nothing above the requests");
  return ElasticCeiling{split->gpu, *ceiling};
}

}  // namespace prorata::agent
