#include "bench/gpu_facts/figure.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace prorata::gpufacts {

double Percentile(const std::vector<double>& sorted, double p) {
  const double last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<size_t>(std::lround(p * last))];
}

nlohmann::json Figure(std::string_view unit, std::vector<double> samples) {
  nlohmann::json figure = {{"unit", unit}, {"samples", samples.size()}};
  if (samples.empty()) return figure;
  std::sort(samples.begin(), samples.end());
  figure["median"] = Percentile(samples, 0.5);
  figure["p10"] = Percentile(samples, 0.1);
  figure["p90"] = Percentile(samples, 0.9);
  figure["min"] = samples.front();
  return figure;
}

}  // namespace prorata::gpufacts
