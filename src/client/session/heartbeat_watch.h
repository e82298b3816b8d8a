#pragma once

// For how long the agent's heartbeat has been lost. Pure, thread-safe. Callers report the heartbeat
// counter as they see it, at any intervals; one that has not moved since an earlier report has not
// moved in between.

#include <atomic>
#include <cstdint>

namespace prorata::client {

class HeartbeatWatch {
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
    const int64_t heartbeat_lost_ns = now_ns - since_ns_.load(std::memory_order_relaxed);
    return heartbeat_lost_ns > 0 ? heartbeat_lost_ns : 0;
  }

 private:
  std::atomic<bool> seen_{false};
  std::atomic<uint64_t> last_{0};
  std::atomic<int64_t> since_ns_{0};
};

// For how long the heartbeat of this process's agent has certainly been lost. Thread-safe.
int64_t HeartbeatLostNs();

}  // namespace prorata::client
