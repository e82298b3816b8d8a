#pragma once

// What is charged for a pool, in one word that many threads change at once: how much is pending,
// and a generation that counts the settlements, so that who settles knows whether another did since
// he asked the driver (pools.h). One thread at a time, the owner of `lock`, sets the bit "busy" and
// changes `settled`; all others only add to what is pending meanwhile.

#include <atomic>
#include <cstdint>

#include "client/platform/os.h"

namespace prorata::client {

class PoolCharge {
 public:
  static constexpr uint64_t kUnitBytes = 16384;  // of what is pending

  static uint64_t PendingOf(uint64_t word) { return (word >> kPendingShift) * kUnitBytes; }
  static bool IsBusy(uint64_t word) { return (word & 1) != 0; }
  uint64_t word() const { return word_.load(); }
  uint64_t settled() const { return settled_.load(); }
  // Never less than what is charged at some moment of the call.
  uint64_t Charged() const {
    const uint64_t pending = PendingOf(word());
    return settled() + pending;
  }

  // S4 of pools.h: what is charged in all once the driver was seen to have reserved `reserved`, of
  // which the `pending` of others may or may not be a part. Not less than both together, for they
  // may grow by it yet, nor more than was `charged` before, which covers them.
  static uint64_t TotalOf(uint64_t reserved, uint64_t charged, uint64_t pending) {
    return Max(reserved, Min(charged, reserved + pending));
  }

  void AddPending(uint64_t bytes) { word_.fetch_add(bytes / kUnitBytes << kPendingShift); }

  // Takes `bytes` out of what is pending, if `settled` has not changed since `noted` and nobody is
  // about to change it.
  bool TakePending(uint64_t noted, uint64_t bytes) {
    if (IsBusy(noted)) return false;
    uint64_t now = word_.load(std::memory_order_relaxed);
    do {
      if (((now ^ noted) & kSettled) != 0 || IsBusy(now)) return false;
    } while (!word_.compare_exchange_weak(now, Less(now, bytes) | Count(now, kTaken, kTakenOne)));
    return true;
  }

  // By the owner of the pool's lock. False: somebody has settled or taken since `noted`.
  bool BeginSettling(uint64_t noted) {
    uint64_t now = word_.load(std::memory_order_relaxed);
    do {
      if (((now ^ noted) & (kSettled | kTaken)) != 0) return false;
    } while (!word_.compare_exchange_weak(now, now | 1));
    return true;
  }
  // The same by who does not go by an earlier figure.
  void BeginSettling() { word_.fetch_or(1); }
  // Ends it: `bytes` are no longer pending, and what is settled is what settled(pending before)
  // answers.
  template <typename F>
  void Settle(uint64_t bytes, F&& settled) {
    uint64_t now = word_.load(std::memory_order_relaxed);
    do {
      settled_.store(settled(PendingOf(now)));
    } while (
        !word_.compare_exchange_weak(now, Less(now, bytes) | Count(now, kSettled, kSettledOne)));
  }

 private:
  // From the top: 28 bits of pending units, 4 TiB, more than any share has; how often somebody
  // settled, and how often somebody took, both modulo 2^17 and more: one who is held up between two
  // steps would have to miss just a multiple of that; and one bit for "busy".
  static constexpr int kPendingShift = 36;
  static constexpr uint64_t kTakenOne = 2, kSettledOne = uint64_t{1} << 19;
  static constexpr uint64_t kTaken = kSettledOne - kTakenOne;
  static constexpr uint64_t kSettled = (uint64_t{1} << kPendingShift) - kSettledOne;

  // The word with less pending and without a count, and with one more in one of the counts, not
  // busy.
  static uint64_t Less(uint64_t word, uint64_t bytes) {
    return ((word >> kPendingShift) - bytes / kUnitBytes) << kPendingShift;
  }
  static uint64_t Count(uint64_t word, uint64_t count, uint64_t one) {
    return (word & (kTaken | kSettled) & ~count) | (((word & count) + one) & count);
  }

  std::atomic<uint64_t> word_;
  std::atomic<uint64_t> settled_;
};

}  // namespace prorata::client
