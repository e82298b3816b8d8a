#pragma once

// Failsafe mode: what a member does while the agent's heartbeat has stopped.

#include <atomic>
#include <cstdint>

namespace prorata::client {

// Holds a member to its part of a share's limit while no agent does: device time may be spent as it
// accrues, `limit_ppm` millionths of real time. Pure, thread-safe. A burst of at most kBurstNs, so
// that failsafe mode does not start with a feast. Nor with a stop: what was used above the part
// before the loss was noticed is owed, and a quarter of what is earned goes to pay for it.
class FallbackBucket {
 public:
  static constexpr int64_t kBurstNs = 20'000'000;

  // The heartbeat was lost `heartbeat_lost_ns` ago, and since then `spent_ns` of device time were
  // used, before anybody knew.
  void Begin(int64_t now_ns, int64_t heartbeat_lost_ns, uint64_t spent_ns, uint32_t limit_ppm) {
    const int64_t left_ns = Earned(heartbeat_lost_ns, limit_ppm) - static_cast<int64_t>(spent_ns);
    level_ns_.store(Within(left_ns, 0, kBurstNs));
    owed_ns_.store(Within(-left_ns, 0, kMaxDebtNs));
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
  static constexpr int64_t kMaxDebtNs = 1'000'000'000;
  static constexpr int64_t kLongNs = 10'000'000'000;

  static int64_t Within(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
  }
  static int64_t Earned(int64_t passed_ns, uint32_t limit_ppm) {
    return Within(passed_ns, 0, kLongNs) * limit_ppm / 1'000'000;
  }
  void Add(int64_t ns) {
    int64_t level = level_ns_.load(std::memory_order_relaxed);
    while (!level_ns_.compare_exchange_weak(level, Within(level + ns, -kMaxDebtNs, kBurstNs))) {
    }
  }

  std::atomic<int64_t> filled_at_ns_{0};
  std::atomic<int64_t> level_ns_{kBurstNs};
  std::atomic<int64_t> owed_ns_{0};
};

}  // namespace prorata::client
