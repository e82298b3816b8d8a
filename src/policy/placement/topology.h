#pragma once

// Which GPUs of a node go together.
//
// A Shape knows how fast each pair of a node's GPUs is linked, in any unit (GB/s, or a rank). Nodes
// built alike share one shape. For every subset of the GPUs, as a bit mask, it holds the slowest
// pair and the best subset of 1, 2, 4, 8 and 16 GPUs inside; from these a choice costs a walk over
// the subsets of the wanted size, at most 70 for 8 GPUs and 12,870 for 16, and is kept.
//
// Not thread-safe: choices are kept in the object. Memory: 30 bytes per subset, and 2 more for
// each number of GPUs asked for: 10 KiB for 8 GPUs, 2.5 to 4 MiB for 16.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/placement/resources.h"

namespace prorata::policy::placement {

class Shape {
 public:
  // `bandwidth`: a row of `gpu_count` values for each GPU, symmetric, of any value >= 0; the
  // diagonal is not read. `weight_of_gpus`: how often shares of 1, 2, up to 4, up to 8 and up to 16
  // GPUs are asked for; any scale whose products with bandwidths stay below 2^60.
  Shape(int gpu_count, std::span<const int32_t> bandwidth,
        std::span<const int64_t, 5> weight_of_gpus);

  // All pairs alike (one PCIe switch, or NVSwitch).
  static Shape Even(int gpu_count, std::span<const int64_t, 5> weight_of_gpus);

  int gpu_count() const { return gpu_count_; }
  bool even() const { return even_; }

  // The slowest pair of the subset; of less than two GPUs, the fastest link that there is.
  int32_t Bottleneck(GpuMask gpus) const { return subsets_[gpus].bottleneck; }

  // What later shares lose if `taken` leaves `free`: the bandwidth of the best pair, four and so
  // on that is left, less than before, weighted by how often they are asked for.
  int64_t Damage(GpuMask free, GpuMask taken) const;
  // No damage is above this.
  int64_t max_damage() const { return max_damage_; }

  // The `count` GPUs of `free` with the best bottleneck; of those the ones that do least damage; of
  // those the ones that are fastest together; of those the lowest mask. 0 if there are too few.
  GpuMask Choose(GpuMask free, int count) const;

 private:
  static constexpr std::array<int, 5> kSizes = {1, 2, 4, 8, 16};

  struct Subset {
    int32_t bottleneck = 0;
    int32_t sum = 0;
    std::array<int32_t, 5> best = {};  // best bottleneck of a subset of kSizes[i] GPUs; 0: too few
  };

  GpuMask Search(GpuMask free, int count) const;

  int gpu_count_;
  bool even_ = true;
  int64_t max_damage_ = 0;
  std::array<int64_t, 5> weights_;
  std::vector<Subset> subsets_;
  // Of each count: the choice for each mask of free GPUs; 0: not looked for yet.
  mutable std::array<std::vector<GpuMask>, kMaxGpusPerNode + 1> choices_;
};

}  // namespace prorata::policy::placement
