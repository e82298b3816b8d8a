#include "policy/placement/start_line.h"

#include <algorithm>

namespace prorata::policy {
namespace {

constexpr size_t kMaxRanges = 128;

uint64_t Plus(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

}  // namespace

void StartLine::Sums::Add(uint64_t amount) {
  if (amount > 0) added_.push_back(amount);
}

void StartLine::Sums::TakeIn(uint64_t amount) {
  std::vector<Range> all = ranges_;
  for (const auto& [low, high] : ranges_) all.push_back({Plus(low, amount), Plus(high, amount)});
  std::sort(all.begin(), all.end());
  ranges_.clear();
  for (const Range& range : all) {
    if (!ranges_.empty() && range.first <= ranges_.back().second) {
      ranges_.back().second = std::max(ranges_.back().second, range.second);
    } else {
      ranges_.push_back(range);
    }
  }
  if (ranges_.size() <= kMaxRanges) return;
  // The closest neighbours become one: what lies between them counts as a sum, too.
  std::vector<uint64_t> gaps;
  for (size_t i = 1; i < ranges_.size(); ++i) {
    gaps.push_back(ranges_[i].first - ranges_[i - 1].second);
  }
  std::nth_element(gaps.begin(), gaps.end() - kMaxRanges / 2, gaps.end());
  const uint64_t kept_gap = *(gaps.end() - kMaxRanges / 2);
  std::vector<Range> merged;
  for (const Range& range : ranges_) {
    if (!merged.empty() && range.first - merged.back().second < kept_gap) {
      merged.back().second = range.second;
    } else {
      merged.push_back(range);
    }
  }
  // Many gaps of the same size: whatever is beyond the cap becomes one range.
  if (merged.size() > kMaxRanges) {
    merged[kMaxRanges - 1].second = merged.back().second;
    merged.resize(kMaxRanges);
  }
  ranges_ = std::move(merged);
}

uint64_t StartLine::Sums::LargestUpTo(uint64_t bound) {
  for (const uint64_t amount : added_) TakeIn(amount);
  added_.clear();
  uint64_t largest = 0;
  for (const auto& [low, high] : ranges_) {
    if (low > bound) break;
    largest = std::min(high, bound);
  }
  return largest;
}

StartLine::StartLine(const std::vector<StartPlace>& places) : places_(places.size()) {
  for (size_t i = 0; i < places.size(); ++i) {
    for (size_t kind = 0; kind < kStartResources; ++kind) {
      Resource& resource = places_[i][kind];
      resource.capacity = places[i].capacity[kind];
      for (const StartAmounts& held : places[i].held) resource.sums.Add(held[kind]);
    }
  }
}

bool StartLine::MayTake(size_t place, const StartAmounts& takes) const {
  for (size_t kind = 0; kind < kStartResources; ++kind) {
    if (takes[kind] > places_[place][kind].spare) return false;
  }
  return true;
}

void StartLine::PassBy(const StartClaims& claims) {
  for (const auto& [place, claim] : claims) {
    for (size_t kind = 0; kind < kStartResources; ++kind) {
      Resource& resource = places_[place][kind];
      // Beyond the capacity it never fits, whatever is taken.
      if (claim.needs[kind] > 0 && claim.needs[kind] <= resource.capacity) {
        const uint64_t bound = resource.capacity - claim.needs[kind];
        resource.spare = std::min(resource.spare, bound - resource.sums.LargestUpTo(bound));
      }
      resource.sums.Add(claim.takes[kind]);
    }
  }
}

void StartLine::Make(size_t place, const StartAmounts& takes) {
  for (size_t kind = 0; kind < kStartResources; ++kind) {
    Resource& resource = places_[place][kind];
    resource.sums.Add(takes[kind]);
    // Of a waiter in front: the largest sum that leaves it enough has grown by this.
    if (resource.spare != UINT64_MAX) resource.spare -= std::min(resource.spare, takes[kind]);
  }
}

}  // namespace prorata::policy
