#include "base/clock.h"

#include <ctime>

namespace prorata {

int64_t RealClock::NowNs() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

int64_t RealtimeNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

int64_t DilatedClock::NowNs() const { return FromRealNs(RealClock().NowNs()); }

int64_t DilatedClock::FromRealNs(int64_t real_span_ns) const {
  if (dilation_ == 1) return real_span_ns;
  return static_cast<int64_t>(static_cast<double>(real_span_ns) / dilation_);
}

int64_t DilatedClock::RealNs(int64_t span_ns) const {
  return dilation_ == 1 ? span_ns : static_cast<int64_t>(static_cast<double>(span_ns) * dilation_);
}

}  // namespace prorata
