#pragma once

// Randomness of the simulation, from one seed: the same seed gives the same numbers everywhere
// (std's distributions differ between libraries).

#include <cmath>
#include <cstdint>

namespace prorata::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) { Next(); }

  // SplitMix64 (Steele, Lea, Flood 2014).
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // [0, 1)
  int64_t Between(int64_t low, int64_t high) {                           // both included
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(double p) { return p > 0 && Unit() < p; }
  int64_t Exponential(int64_t mean) {
    return static_cast<int64_t>(-static_cast<double>(mean) * std::log1p(-Unit()));
  }

 private:
  uint64_t state_;
};

}  // namespace prorata::simulation
