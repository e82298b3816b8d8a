#include "policy/placement/linked_devices.h"

#include <algorithm>
#include <functional>

namespace prorata::policy {
namespace {

// A walk over all sets of 20 devices visits no more.
constexpr uint32_t kMaxSteps = 1u << 20;

// Looks, among devices in the order in which they are preferred, for the set whose links are all
// at least `least` and together the best; of equal ones the first.
class Search {
 public:
  Search(std::span<const uint32_t> ranks, size_t width, std::span<const size_t> order, size_t count)
      : ranks_(ranks), width_(width), order_(order), count_(count) {
    for (const size_t a : order) {
      for (const size_t b : order) {
        if (a != b) best_rank_ = std::max(best_rank_, Rank(a, b));
      }
    }
  }

  std::optional<std::vector<size_t>> Find(uint32_t least) {
    least_ = least;
    steps_ = 0;
    found_ = false;
    chosen_.clear();
    Extend(0, 0);
    if (!found_) return std::nullopt;
    return best_;
  }

 private:
  uint64_t Rank(size_t a, size_t b) const { return ranks_[a * width_ + b]; }

  // What the pairs that are still missing can add at most.
  uint64_t Hope() const {
    const uint64_t have = chosen_.size();
    return (count_ * (count_ - 1) - have * (have - 1)) / 2 * best_rank_;
  }

  void Extend(size_t from, uint64_t sum) {
    if (chosen_.size() == count_) {
      found_ = true;
      best_ = chosen_;
      best_sum_ = sum;
      return;
    }
    for (size_t at = from; at + (count_ - chosen_.size()) <= order_.size(); ++at) {
      if (++steps_ > kMaxSteps) return;
      const size_t device = order_[at];
      uint64_t with = sum;
      bool linked = true;
      for (const size_t other : chosen_) {
        linked &= Rank(device, other) >= least_;
        with += Rank(device, other);
      }
      if (!linked) continue;
      chosen_.push_back(device);
      if (!found_ || with + Hope() > best_sum_) Extend(at + 1, with);
      chosen_.pop_back();
    }
  }

  const std::span<const uint32_t> ranks_;
  const size_t width_;
  const std::span<const size_t> order_;
  const size_t count_;
  uint64_t best_rank_ = 0;

  uint32_t least_ = 0;
  uint32_t steps_ = 0;
  bool found_ = false;
  std::vector<size_t> chosen_;
  std::vector<size_t> best_;
  uint64_t best_sum_ = 0;
};

}  // namespace

std::optional<std::vector<size_t>> ChooseLinked(std::span<const PlacementDevice> devices,
                                                std::span<const uint32_t> ranks, size_t count) {
  std::vector<size_t> order;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].fits) order.push_back(i);
  }
  if (count == 0 || count > order.size()) return std::nullopt;
  // Not std::stable_sort: clang takes what GCC 12's uses for deprecated.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const uint64_t left_a = devices[a].memory_left_bytes, left_b = devices[b].memory_left_bytes;
    return left_a != left_b ? left_a > left_b : a < b;
  });
  std::vector<uint32_t> levels = {0};
  for (const size_t a : order) {
    for (const size_t b : order) {
      if (a != b && count > 1) levels.push_back(ranks[a * devices.size() + b]);
    }
  }
  std::sort(levels.begin(), levels.end(), std::greater<>());
  levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
  Search search(ranks, devices.size(), order, count);
  for (const uint32_t least : levels) {  // the last, 0, holds for every set
    auto found = search.Find(least);
    if (!found) continue;
    std::sort(found->begin(), found->end());
    return found;
  }
  return std::nullopt;
}

}  // namespace prorata::policy
