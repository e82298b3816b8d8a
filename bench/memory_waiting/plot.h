#pragma once

#include <string>
#include <vector>

#include "bench/memory_waiting/experiment.h"

namespace prorata::bench {

// An SVG picture: makespan, mean suspended time and longest wait over the number of containers, a
// line for each policy.
std::string Plot(const std::vector<Row>& rows);

}  // namespace prorata::bench
