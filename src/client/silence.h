#pragma once

// How long the agent has been silent, from its heartbeat counter. Pure, thread-safe: whoever looks,
// at whatever intervals, says what it saw; a counter that did not move since an earlier look was
// silent all that while.

#include <atomic>
#include <cstdint>

namespace prorata::client {

class Silence {
 public:
  // Answers for how many nanoseconds the counter has certainly not moved.
  int64_t Observe(uint64_t heartbeat, int64_t now_ns) {
    if (!seen_.load(std::memory_order_acquire) ||
        heartbeat != last_.load(std::memory_order_acquire)) {
      since_ns_.store(now_ns, std::memory_order_relaxed);
      last_.store(heartbeat, std::memory_order_release);
      seen_.store(true, std::memory_order_release);
      return 0;
    }
    const int64_t silent_ns = now_ns - since_ns_.load(std::memory_order_relaxed);
    return silent_ns > 0 ? silent_ns : 0;
  }

 private:
  std::atomic<bool> seen_{false};
  std::atomic<uint64_t> last_{0};
  std::atomic<int64_t> since_ns_{0};
};

// Holds a member to its part of a share's limit while no agent does: device time may be spent as it
// accrues, `limit_ppm` millionths of real time. Pure, thread-safe. A burst of at most kBurstNs, so
// that a silence starts neither with a stop nor with a feast.
class LocalBucket {
 public:
  static constexpr int64_t kBurstNs = 20'000'000;

  // True if work may start now.
  bool MayRun(int64_t now_ns, uint32_t limit_ppm) {
    int64_t last = filled_at_ns_.load(std::memory_order_relaxed);
    if (now_ns > last && filled_at_ns_.compare_exchange_strong(last, now_ns)) {
      const int64_t passed_ns = last == 0 ? 0 : now_ns - last;
      const int64_t earned =
          passed_ns < 1'000'000'000 ? passed_ns * limit_ppm / 1'000'000 : kBurstNs;
      int64_t level = level_ns_.load(std::memory_order_relaxed), next;
      do {
        next = level + earned > kBurstNs ? kBurstNs : level + earned;
      } while (!level_ns_.compare_exchange_weak(level, next));
    }
    return level_ns_.load(std::memory_order_relaxed) > 0;
  }

  // Device time was used. Debt is bounded by one second, so that a single long kernel does not lock
  // the program out for minutes.
  void Spend(uint64_t busy_ns) {
    int64_t level = level_ns_.load(std::memory_order_relaxed), next;
    do {
      next = level - static_cast<int64_t>(busy_ns);
      if (next < -1'000'000'000) next = -1'000'000'000;
    } while (!level_ns_.compare_exchange_weak(level, next));
  }

 private:
  std::atomic<int64_t> filled_at_ns_{0};
  std::atomic<int64_t> level_ns_{kBurstNs};
};

}  // namespace prorata::client
