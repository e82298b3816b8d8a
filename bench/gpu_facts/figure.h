#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

namespace prorata::gpufacts {

// What a set of samples says: {"unit", "samples", "median", "p10", "p90", "min"}. Without samples
// only unit and count are there, so that a reader cannot take a missing figure for zero.
nlohmann::json Figure(std::string_view unit, std::vector<double> samples);

// The value below which the fraction `p` (0 to 1) of the sorted samples lies: the nearest one, not
// an interpolation. `sorted` must not be empty.
double Percentile(const std::vector<double>& sorted, double p);

}  // namespace prorata::gpufacts
