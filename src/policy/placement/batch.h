#pragma once

// Shares that wait, placed together: a bounded look-ahead.
//
// Shares are placed in the order of their arrival while all of them fit; sorting them by size then
// makes later shares fit worse, not better. Where some do not fit, other orders are tried on the
// cluster, and the one is kept that places most.

#include <optional>
#include <span>
#include <vector>

#include "policy/placement/cluster.h"
#include "policy/placement/placer.h"

namespace prorata::policy::placement {

inline constexpr size_t kMaxBatch = 32;

struct Waiting {
  Request request;
  Labels labels;
};

// Places what fits of up to kMaxBatch shares (of more, a batch at a time, in their order); of each,
// the share placed, or nothing. Costs a choice for each share, and where some do not fit one more
// for each order that is tried: five at most.
std::vector<std::optional<ShareId>> PlaceBatch(std::span<const Waiting> batch, Cluster* cluster,
                                               Placer* placer);

}  // namespace prorata::policy::placement
