#pragma once

// Recognises a persistent kernel: work that runs, and goes on running, for far longer than anything
// that ends. A share with one cannot be preempted: its lease is revoked, and it does not drain.
// Pure.
//
// One of these belongs to each fenced batch. Whoever harvests (fence_machine.h) says at each pass
// that the batch is first in its stream and not done. What must not be taken for one:
//
//   A. work that has not begun: behind a wait, a host function, a semaphore (Forget), or behind
//      another stream's work in a way that we do not know (has_begun)
//   B. work that takes long because the device is shared: time counts by the part of it that the
//      context can have had, if all that have work have their slices of it in turn (co_running),
//      and a twentieth of it is taken for the switches between them
//   C. work of a process that was stopped, with the device or without: between two polls no more
//      counts than polls lie apart
//   D. a kernel that is merely long: kPersistentNs, and kTimesEstimate of what it was learned to
//      take. Nobody waits ten seconds for one kernel as a rule: where a display hangs on the GPU
//      the driver ends it after two to five. The longest that the bars name takes 3 s.
//
// It is asked whether it has begun only after kSuspectNs: a batch that ends sooner costs nothing.

#include <cstdint>

namespace prorata::client {

class RunWatch {
 public:
  static constexpr int64_t kPersistentNs = 10'000'000'000;
  static constexpr int64_t kTimesEstimate = 4;
  static constexpr int64_t kSuspectNs = 1'000'000'000;
  // The helper polls every tenth of a second at the least.
  static constexpr int64_t kMaxPollIntervalNs = 200'000'000;

  // `co-run set`: contexts with work on the device, this one included.
  template <typename HasBegun>
  void See(int64_t now_ns, uint32_t co_running, HasBegun&& has_begun) {
    if (since_ns_ == 0) since_ns_ = polled_ns_ = now_ns;
    int64_t passed_ns = now_ns - polled_ns_;
    if (passed_ns > kMaxPollIntervalNs) passed_ns = kMaxPollIntervalNs;
    polled_ns_ = now_ns;
    if (begun_) {
      ran_ns_ += co_running > 1 ? passed_ns / co_running * 19 / 20 : passed_ns;
    } else if (now_ns - since_ns_ >= kSuspectNs) {
      begun_ = has_begun();
      if (!begun_) since_ns_ = now_ns;
    }
  }

  // It has not begun.
  void Forget() { *this = RunWatch(); }

  // For how long it has been running, if it is taken for persistent; else 0.
  uint64_t PersistentNs(uint64_t estimate_ns) const {
    const auto expected_ns = static_cast<int64_t>(estimate_ns);
    const bool persistent = ran_ns_ >= kPersistentNs && ran_ns_ / kTimesEstimate >= expected_ns;
    return persistent ? static_cast<uint64_t>(polled_ns_ - since_ns_) : 0;
  }

 private:
  int64_t since_ns_ = 0;  // it was not known to run before; at most kSuspectNs too early
  int64_t polled_ns_ = 0;
  int64_t ran_ns_ = 0;  // what it can have had of the device since it was suspected
  bool begun_ = false;
};

}  // namespace prorata::client
