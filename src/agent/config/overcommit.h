#pragma once

// How much of a device's memory an agent may promise, as `prorata agent --overcommit` is given it:
// "1.5" for every GPU, "0=1.5" or "GPU-...=1.5" for one, "1.5,0=2" for both (of_gpu.h).

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::agent {

struct Overcommit {
  std::string gpu;   // index or UUID; empty: every GPU
  double ratio = 1;  // from 1 to kMaxOvercommit
};
inline constexpr double kMaxOvercommit = 100;

// "bad_overcommit", for a person.
Result<std::vector<Overcommit>> ParseOvercommit(std::string_view text);
// "1.5", without zeroes at the end.
std::string FormatRatio(double ratio);

}  // namespace prorata::agent
