#pragma once

// Since when, and for how long in all, a member's work may have been on a device: the time in which
// not everything that it submitted is proven done. Thread-safe.
//
// It counts reasons to be busy: one for each stream with work that is not proven done, one for each
// context with untracked work. The figure of measured device time is kept here too, for it can
// never be more than the time in which the device was busy.

#include <atomic>
#include <cstdint>

#include "client/platform/os.h"
#include "shm/usage_file.h"

namespace prorata::client {

class Occupancy {
 public:
  // Something was submitted at `since_ns`, or a little later.
  void Begin(shm::DeviceUsage& usage, int64_t since_ns) {
    const LockGuard holding(lock_);
    const uint32_t before = reasons_.load(std::memory_order_relaxed);
    if (before == 0) {
      since_ns_ = Max(since_ns, ended_ns_.load(std::memory_order_relaxed));
      // What was shown of the time before, that began later by another thread's clock.
      usage.occupied_since_ns.store(since_ns_ + static_cast<int64_t>(shown_ns_ - total_ns_));
    }
    reasons_.store(before + 1);
  }
  // That is proven done by now.
  void End(shm::DeviceUsage& usage, int64_t now_ns) {
    const LockGuard holding(lock_);
    const uint32_t before = reasons_.load(std::memory_order_relaxed);
    if (before == 1) {
      Show(usage, now_ns);
      usage.occupied_since_ns.store(0);
      total_ns_ = TotalNs(now_ns);
      ended_ns_.store(now_ns, std::memory_order_relaxed);
    }
    reasons_.store(before - 1);
  }
  // The last moment of work so far as is known: now, or when the last of it was proven done.
  int64_t ended_ns() const { return ended_ns_.load(std::memory_order_relaxed); }
  uint32_t reasons() const { return reasons_.load(); }

  // Publishes the time so far, and answers it.
  uint64_t Publish(shm::DeviceUsage& usage, int64_t now_ns) {
    const LockGuard holding(lock_);
    return Show(usage, now_ns);
  }
  // Kernels ran for so long, as measured or estimated.
  void Measure(shm::DeviceUsage& usage, uint64_t busy_ns, int64_t now_ns) {
    const LockGuard holding(lock_);
    measured_ns_ = Min(measured_ns_ + busy_ns, Show(usage, now_ns));
    usage.device_time_ns.store(measured_ns_, std::memory_order_relaxed);
  }

 private:
  uint64_t TotalNs(int64_t now_ns) const {
    const bool busy = reasons_.load(std::memory_order_relaxed) != 0 && now_ns > since_ns_;
    return total_ns_ + (busy ? static_cast<uint64_t>(now_ns - since_ns_) : 0);
  }
  // What is published never goes back: threads read the clock before they come here, so a later
  // one may bring an earlier time, and readers take differences.
  uint64_t Show(shm::DeviceUsage& usage, int64_t now_ns) {
    const uint64_t total_ns = TotalNs(now_ns);
    if (total_ns <= shown_ns_) return shown_ns_;
    shown_ns_ = total_ns;
    usage.occupied_since_ns.store(0);
    usage.occupied_ns.store(shown_ns_);
    if (reasons_.load(std::memory_order_relaxed) != 0) usage.occupied_since_ns.store(now_ns);
    return shown_ns_;
  }

  Lock lock_;
  std::atomic<uint32_t> reasons_{0};
  std::atomic<int64_t> ended_ns_{0};
  int64_t since_ns_ = 0;
  uint64_t total_ns_ = 0;
  uint64_t shown_ns_ = 0;
  uint64_t measured_ns_ = 0;
};

}  // namespace prorata::client
