#include "policy/compute/entitlement.h"

#include <algorithm>

namespace prorata::policy {
namespace {

// Hands `spare` out by weight, up to each limit: what one share cannot take goes to the others.
void HandOutSpare(std::span<const ComputeTerms> runnable, double spare,
                  std::vector<double>& entitled) {
  for (size_t round = 0; round < runnable.size() && spare > 1e-12; ++round) {
    double weights = 0;
    for (size_t i = 0; i < runnable.size(); ++i) {
      if (entitled[i] < runnable[i].limit.value()) weights += std::max(1u, runnable[i].weight);
    }
    if (weights == 0) return;
    double given = 0;
    for (size_t i = 0; i < runnable.size(); ++i) {
      const double room = runnable[i].limit.value() - entitled[i];
      if (room <= 0) continue;
      const double part = std::min(room, spare * std::max(1u, runnable[i].weight) / weights);
      entitled[i] += part;
      given += part;
    }
    spare -= given;
  }
}

}  // namespace

std::vector<double> Entitlements(std::span<const ComputeTerms> runnable, double part) {
  double requests = 0;
  for (const ComputeTerms& terms : runnable) requests += terms.request.value();
  const double scale = requests > part ? part / requests : 1;
  std::vector<double> entitled;
  double spare = part;
  for (const ComputeTerms& terms : runnable) {
    entitled.push_back(std::min(terms.request.value() * scale, terms.limit.value()));
    spare -= entitled.back();
  }
  HandOutSpare(runnable, spare, entitled);

  // The floor, taken from the others in proportion.
  const auto below = std::count_if(entitled.begin(), entitled.end(),
                                   [part](double e) { return e < part * kMinEntitled; });
  const double each = kMinEntitledOfAll / static_cast<double>(std::max<int64_t>(1, below));
  const double floor =
      part * std::min({kMinEntitled, each, 1 / static_cast<double>(runnable.size())});
  double raised = 0;
  double taken_from = 0;
  for (size_t i = 0; i < runnable.size(); ++i) {
    const double least = std::min(floor, runnable[i].limit.value());
    if (entitled[i] < least) {
      raised += least - entitled[i];
    } else {
      taken_from += entitled[i];
    }
  }
  double sum = 0;
  for (const double e : entitled) sum += e;
  const double over = std::max(0.0, sum + raised - part);
  for (size_t i = 0; i < runnable.size(); ++i) {
    const double least = std::min(floor, runnable[i].limit.value());
    if (entitled[i] < least) {
      entitled[i] = least;
    } else if (taken_from > 0) {
      entitled[i] *= std::max(0.0, 1 - over / taken_from);
    }
  }
  return entitled;
}

}  // namespace prorata::policy
