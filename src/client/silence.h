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
// that a silence does not start with a feast. Nor with a stop: what was used above the part before
// the silence was noticed is owed, and a quarter of what is earned goes to pay for it.
class LocalBucket {
 public:
  static constexpr int64_t kBurstNs = 20'000'000;

  // The silence began `silent_ns` ago, and since then `spent_ns` of device time were used, before
  // anybody knew.
  void Begin(int64_t now_ns, int64_t silent_ns, uint64_t spent_ns, uint32_t limit_ppm) {
    const int64_t left_ns = Earned(silent_ns, limit_ppm) - static_cast<int64_t>(spent_ns);
    level_ns_.store(Within(left_ns, 0, kBurstNs));
    owed_ns_.store(Within(-left_ns, 0, kMostDebtNs));
    filled_at_ns_.store(now_ns);
  }

  // True if work may start now.
  bool MayRun(int64_t now_ns, uint32_t limit_ppm) {
    int64_t last = filled_at_ns_.load(std::memory_order_relaxed);
    if (now_ns > last && filled_at_ns_.compare_exchange_strong(last, now_ns)) {
      const int64_t earned = Earned(last == 0 ? 0 : now_ns - last, limit_ppm);
      const int64_t paid = Within(owed_ns_.load(std::memory_order_relaxed), 0, (earned + 3) / 4);
      owed_ns_.fetch_sub(paid);
      Add(earned - paid);
    }
    return level_ns_.load(std::memory_order_relaxed) > 0;
  }

  // Device time was used. Debt is bounded by one second, so that a single long kernel does not lock
  // the program out for minutes.
  void Spend(uint64_t busy_ns) { Add(-static_cast<int64_t>(busy_ns)); }

 private:
  static constexpr int64_t kMostDebtNs = 1'000'000'000;
  static constexpr int64_t kLongNs = 10'000'000'000;

  static int64_t Within(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
  }
  static int64_t Earned(int64_t passed_ns, uint32_t limit_ppm) {
    return Within(passed_ns, 0, kLongNs) * limit_ppm / 1'000'000;
  }
  void Add(int64_t ns) {
    int64_t level = level_ns_.load(std::memory_order_relaxed);
    while (!level_ns_.compare_exchange_weak(level, Within(level + ns, -kMostDebtNs, kBurstNs))) {
    }
  }

  std::atomic<int64_t> filled_at_ns_{0};
  std::atomic<int64_t> level_ns_{kBurstNs};
  std::atomic<int64_t> owed_ns_{0};
};

}  // namespace prorata::client
