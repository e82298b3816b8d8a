#include "policy/placement/topology.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace prorata::policy::placement {

Shape::Shape(int gpu_count, std::span<const int32_t> bandwidth,
             std::span<const int64_t, 5> weight_of_gpus)
    : gpu_count_(gpu_count) {
  std::copy(weight_of_gpus.begin(), weight_of_gpus.end(), weights_.begin());
  const auto link = [&](int a, int b) { return bandwidth[a * gpu_count + b]; };
  int32_t fastest = 0, slowest = std::numeric_limits<int32_t>::max();
  for (int a = 0; a < gpu_count; ++a) {
    for (int b = 0; b < a; ++b) {
      fastest = std::max(fastest, link(a, b));
      slowest = std::min(slowest, link(a, b));
    }
  }
  even_ = gpu_count < 2 || fastest == slowest;
  if (gpu_count < 2) fastest = 1;  // a GPU alone is as good as it can be
  for (const int64_t weight : weights_) max_damage_ += weight * fastest;

  subsets_.resize(size_t{1} << gpu_count);
  subsets_[0].bottleneck = fastest;
  for (uint32_t mask = 1; mask < subsets_.size(); ++mask) {
    Subset& subset = subsets_[mask];
    const int low = std::countr_zero(mask);
    const Subset& rest = subsets_[mask & (mask - 1)];
    subset.bottleneck = rest.bottleneck;
    subset.sum = rest.sum;
    for (uint32_t others = mask & (mask - 1); others != 0; others &= others - 1) {
      const int32_t pair = link(low, std::countr_zero(others));
      subset.bottleneck = std::min(subset.bottleneck, pair);
      subset.sum += pair;
    }
    const int count = std::popcount(mask);
    for (size_t i = 0; i < kSizes.size(); ++i) {
      if (count == kSizes[i]) subset.best[i] = subset.bottleneck;
      if (count <= kSizes[i]) continue;
      for (uint32_t gpus = mask; gpus != 0; gpus &= gpus - 1) {
        const uint32_t without = mask & ~(1u << std::countr_zero(gpus));
        subset.best[i] = std::max(subset.best[i], subsets_[without].best[i]);
      }
    }
  }
}

Shape Shape::Even(int gpu_count, std::span<const int64_t, 5> weight_of_gpus) {
  const std::vector<int32_t> ones(static_cast<size_t>(gpu_count * gpu_count), 1);
  return Shape(gpu_count, ones, weight_of_gpus);
}

int64_t Shape::Damage(GpuMask free, GpuMask taken) const {
  const Subset& before = subsets_[free];
  const Subset& after = subsets_[free & ~taken];
  int64_t damage = 0;
  for (size_t i = 0; i < kSizes.size(); ++i) {
    damage += weights_[i] * (before.best[i] - after.best[i]);
  }
  return damage;
}

GpuMask Shape::Choose(GpuMask free, int count) const {
  if (count <= 0 || std::popcount(free) < count) return 0;
  std::vector<GpuMask>& choices = choices_[count];
  if (choices.empty()) choices.resize(subsets_.size());
  if (choices[free] == 0) choices[free] = Search(free, count);
  return choices[free];
}

GpuMask Shape::Search(GpuMask free, int count) const {
  if (even_) {  // every subset is as good as the lowest
    GpuMask chosen = 0;
    for (uint32_t rest = free; count > 0; rest &= rest - 1, --count) {
      chosen = static_cast<GpuMask>(chosen | (rest & -rest));
    }
    return chosen;
  }
  GpuMask best = 0;
  std::tuple<int32_t, int64_t, int32_t> best_worth;
  // Subsets of `free`, in ascending order.
  for (uint32_t mask = 0; mask != free;) {
    mask = (mask - free) & free;
    if (std::popcount(mask) != count) continue;
    const Subset& subset = subsets_[mask];
    if (best != 0 && subset.bottleneck < std::get<0>(best_worth)) continue;
    const auto gpus = static_cast<GpuMask>(mask);
    const std::tuple worth{subset.bottleneck, -Damage(free, gpus), subset.sum};
    if (best != 0 && worth <= best_worth) continue;
    best = gpus;
    best_worth = worth;
  }
  return best;
}

}  // namespace prorata::policy::placement
