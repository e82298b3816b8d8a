#pragma once

// Since when, and for how long in all, a member's work may have been on a device: the time in which
// not everything that it submitted is proven done. Thread-safe.
//
// It counts reasons to be busy: one for each stream with work that is not proven done, one for each
// context with untracked work. The figure of measured device time is kept here too, for it can
// never be more than the time in which the device was busy.
//
// A process that has used up its processor quota, or is stopped, looks at nothing for tens of
// milliseconds, and finds its work done when it is back. Of the time in which nobody looked, though
// the helper thread was to, counts what that work is known to take (Ran), or all of it if some of
// it is not done even then.

#include <atomic>
#include <cstdint>

#include "client/platform/os.h"
#include "shm/usage_file.h"

namespace prorata::client {

class Occupancy {
 public:
  // So long after a process is back it is decided how long its work ran meanwhile.
  static constexpr int64_t kBackNs = 5'000'000;

  // Something was submitted at `since_ns`, or a little later.
  void Begin(shm::DeviceUsage& usage, int64_t since_ns) {
    const LockGuard holding(lock_);
    const uint32_t before = reasons_.load(std::memory_order_relaxed);
    if (before == 0) {
      since_ns_ = looked_ns_ = Max(since_ns, ended_ns_.load(std::memory_order_relaxed));
      ShowSince(usage, since_ns_, total_ns_);
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
      const bool known = away_ns_ > 0 && ran_until_ns_ > 0;
      ended_ns_.store(known ? Min(now_ns, ran_until_ns_) : now_ns, std::memory_order_relaxed);
      away_ns_ = ran_ns_ = 0;
    }
    reasons_.store(before - 1);
  }
  // The last moment of work so far as is known: when the last of it was proven done, or before.
  int64_t ended_ns() const { return ended_ns_.load(std::memory_order_relaxed); }
  uint32_t reasons() const { return reasons_.load(); }

  // Publishes the time so far, and answers it.
  uint64_t Publish(shm::DeviceUsage& usage, int64_t now_ns) {
    const LockGuard holding(lock_);
    return Show(usage, now_ns);
  }

  // Of a time in which nobody looked it is not settled yet how much counts.
  bool away() {
    const LockGuard holding(lock_);
    return away_ns_ > 0;
  }
  // Work that began by `since_ns`, and took so long, is seen to be done now. Answers by when it
  // was, so far as is known.
  int64_t Ran(int64_t since_ns, int64_t ns, int64_t now_ns) {
    const LockGuard holding(lock_);
    const int64_t ended_ns = Min(now_ns, since_ns + ns);
    if (away_ns_ > 0) ran_ns_ += Max(int64_t{0}, ended_ns - Max(since_ns, away_from_ns_));
    ran_until_ns_ = Max(ran_until_ns_, ended_ns);
    return ended_ns;
  }
  // The last time from which on nobody looked, though somebody should have.
  int64_t LateFrom(const shm::DeviceUsage& usage, int64_t now_ns) {
    const LockGuard holding(lock_);
    Look(usage, now_ns);
    return late_from_ns_;
  }
  // Helper: of what is not done the oldest was submitted at `oldest_ns`; INT64_MAX: nothing is left
  // but what should take `open_ns`.
  void Settle(const shm::DeviceUsage& usage, int64_t oldest_ns, uint64_t open_ns, int64_t now_ns) {
    const LockGuard holding(lock_);
    Look(usage, now_ns);
    if (away_ns_ == 0) return;
    // What it finds when it is back may be done, too, and not be seen to be yet: a callback of the
    // program's that comes before it has not run meanwhile, or the driver's own threads have not.
    if (oldest_ns <= back_ns_ && now_ns < settles_ns_) return;
    ran_ns_ += static_cast<int64_t>(open_ns);
    ran_ns_ += Max(int64_t{0}, back_ns_ - Max(oldest_ns, away_from_ns_));
    since_ns_ += away_ns_ - Min(away_ns_, ran_ns_);
    away_ns_ = ran_ns_ = 0;
  }

  // Kernels ran for so long, as measured or estimated.
  void Measure(shm::DeviceUsage& usage, uint64_t busy_ns, int64_t now_ns) {
    const LockGuard holding(lock_);
    measured_ns_ = Min(measured_ns_ + busy_ns, Show(usage, now_ns));
    usage.device_time_ns.store(measured_ns_, std::memory_order_relaxed);
  }

 private:
  void Look(const shm::DeviceUsage& usage, int64_t now_ns) {
    const int64_t looks_by_ns = usage.looks_by_ns.load(std::memory_order_relaxed);
    if (shm::IsLate(looks_by_ns, now_ns) && reasons_.load(std::memory_order_relaxed) != 0 &&
        looked_ns_ < now_ns) {
      if (away_ns_ == 0) {
        settles_ns_ = now_ns + kBackNs;
        away_from_ns_ = looked_ns_;
        ran_until_ns_ = 0;
        late_from_ns_ = Max(looked_ns_, looks_by_ns + shm::kLateLookNs);
      }
      away_ns_ += now_ns - looked_ns_;
      back_ns_ = now_ns;
    }
    looked_ns_ = Max(looked_ns_, now_ns);
  }
  uint64_t TotalNs(int64_t now_ns) const {
    const int64_t since_ns = since_ns_ + away_ns_ - Min(away_ns_, ran_ns_);
    const bool busy = reasons_.load(std::memory_order_relaxed) != 0 && now_ns > since_ns;
    return total_ns_ + (busy ? static_cast<uint64_t>(now_ns - since_ns) : 0);
  }
  // It is occupied since then, and was for so long before. More may have been shown: by another
  // thread's clock, or of a time in which nobody looked.
  void ShowSince(shm::DeviceUsage& usage, int64_t since_ns, uint64_t total_ns) const {
    usage.occupied_since_ns.store(since_ns + static_cast<int64_t>(shown_ns_ - total_ns));
  }
  // What is published never goes back: threads read the clock before they come here, so a later
  // one may bring an earlier time, and readers take differences.
  uint64_t Show(shm::DeviceUsage& usage, int64_t now_ns) {
    Look(usage, now_ns);
    const uint64_t total_ns = TotalNs(now_ns);
    shown_ns_ = Max(shown_ns_, total_ns);
    usage.occupied_since_ns.store(0);
    usage.occupied_ns.store(shown_ns_);
    if (reasons_.load(std::memory_order_relaxed) != 0) ShowSince(usage, now_ns, total_ns);
    return shown_ns_;
  }

  Lock lock_;
  std::atomic<uint32_t> reasons_{0};
  std::atomic<int64_t> ended_ns_{0};
  int64_t since_ns_ = 0;
  int64_t looked_ns_ = 0;     // by any thread, while it is busy
  int64_t away_from_ns_ = 0;  // nobody looked from then on, ...
  int64_t late_from_ns_ = 0;  // ... though from then on somebody should have, ...
  int64_t back_ns_ = 0;       // ... until then
  int64_t settles_ns_ = 0;    // from then on it is decided
  int64_t away_ns_ = 0;       // ... for so long in all; 0: it was settled
  int64_t ran_ns_ = 0;        // of which so much is known to have been used, ...
  int64_t ran_until_ns_ = 0;  // ... until then
  uint64_t total_ns_ = 0;
  uint64_t shown_ns_ = 0;
  uint64_t measured_ns_ = 0;
};

}  // namespace prorata::client
