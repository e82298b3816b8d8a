#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/fraction.h"

namespace prorata::policy {

// What a share is promised of one device's time.
struct ComputeTerms {
  Fraction request;                  // gets this whenever it wants it
  Fraction limit = Fraction::One();  // never more
  uint32_t weight = 100;             // its part of what nobody's request claims; at least 1
  // While a share of a higher priority wants the device, those of a lower one are closed, and keep
  // no more remaining and queued work than the smallest `yield_within_ns` of those above them.
  int32_t priority = 0;
  int64_t yield_within_ns = 2'000'000;
};

// A share that wants the device is entitled to at least this much of what its priority has, even
// where the requests of others fill it, so that nobody hangs for ever; and all such shares together
// to this much at most: a promise to the others is kept within two points, however many there are.
inline constexpr double kMinEntitled = 0.005;
inline constexpr double kMinEntitledOfAll = 0.02;

// The fraction of the device's time that each of these shares, all of one priority, is entitled to
// while exactly they want it and `part` of it is theirs: its request (scaled down if the requests
// add up to more than that), and its weighted part of the rest, up to its limit. Adds up to `part`,
// or less if the limits leave some unused.
std::vector<double> Entitlements(std::span<const ComputeTerms> runnable, double part = 1);

}  // namespace prorata::policy
