#pragma once

// How much of a device's time shares may use together above their requests, as `prorata agent
// --elastic-ceiling` is given it: "0.9" for every GPU, "0=0.9" or "GPU-...=0.9" for one.

#include <string>
#include <string_view>

#include "base/fraction.h"
#include "base/result.h"

namespace prorata::agent {

struct ElasticCeiling {
  std::string gpu;  // index or UUID; empty: every GPU
  Fraction ceiling = Fraction::One();
};

// "bad_elastic_ceiling", for a person.
Result<ElasticCeiling> ParseElasticCeiling(std::string_view text);

}  // namespace prorata::agent
