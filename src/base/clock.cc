#include "base/clock.h"

#include <ctime>

namespace prorata {

int64_t RealClock::NowNs() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

int64_t DilatedClock::NowNs() const {
  return static_cast<int64_t>(static_cast<double>(RealClock().NowNs()) / dilation_);
}

}  // namespace prorata
