#pragma once

#include <cstdint>

namespace prorata {

// Time for everything that decides by it. A time is nanoseconds since an arbitrary start; only
// differences mean anything. Implementations are thread-safe unless they say otherwise.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;
};

// CLOCK_MONOTONIC. The same for all processes of one time namespace.
class RealClock final : public Clock {
 public:
  int64_t NowNs() const override;
};

// CLOCK_REALTIME, since 1970: what NVML's stamps are of.
int64_t RealtimeNs();

// Moves only when told. Not thread-safe: the one-process simulation is one thread.
class VirtualClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void AdvanceTo(int64_t now_ns) { now_ns_ = now_ns > now_ns_ ? now_ns : now_ns_; }
  void Advance(int64_t delta_ns) { AdvanceTo(now_ns_ + delta_ns); }

 private:
  int64_t now_ns_ = 0;
};

// Real time slowed down: one nanosecond of it takes `dilation` real ones (at least 1). Makes tests
// on a small, noisy machine trustworthy: the noise shrinks against the time that is measured. With
// a dilation of 1 it is RealClock, to the nanosecond.
class DilatedClock final : public Clock {
 public:
  explicit DilatedClock(double dilation) : dilation_(dilation < 1 ? 1 : dilation) {}
  int64_t NowNs() const override;
  double dilation() const { return dilation_; }
  // How long a span of this clock takes in real time: what a timer must be set to.
  int64_t RealNs(int64_t span_ns) const;
  int64_t FromRealNs(int64_t real_span_ns) const;  // the other way round

 private:
  double dilation_;
};

inline constexpr int64_t kNsPerUs = 1'000;
inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerS = 1'000'000'000;

}  // namespace prorata
