#pragma once

// What a program's own pauses between launches are like: whether one that has lasted a little, with
// nothing on the device, goes on for long as a rule. Then its idleness is told of sooner, and the
// next program has the device for more of each pause. Pure; thread-safe, and right only as a rule:
// threads that launch at the same time may count one pause twice or not at all.

#include <atomic>
#include <cstdint>

namespace prorata::client {

class IdleGaps {
 public:
  // After so long without work a pause is taken for a long one, if they are long as a rule.
  static constexpr int64_t kSoonNs = 60'000;
  // A pause from here on is worth the turn that it ends.
  static constexpr int64_t kLongNs = 1'000'000;

  // A thread is about to wait for the lease: its program's pause ends here, and not when the lease
  // opens. `done_ns`: when all that it had launched was done.
  void Waits(int64_t done_ns, int64_t now_ns) {
    if (noted_.exchange(1, std::memory_order_relaxed) == 0) Note(now_ns - done_ns);
  }
  // The first launch after a pause.
  void Launches(int64_t done_ns, int64_t now_ns) {
    if (noted_.exchange(0, std::memory_order_relaxed) == 0) Note(now_ns - done_ns);
  }
  bool AreLong() const { return long_.load(std::memory_order_relaxed) >= kEnough; }

 private:
  static constexpr uint32_t kEnough = 8, kMost = 16, kMistake = 4;

  void Note(int64_t gap_ns) {
    if (gap_ns < kSoonNs) return;  // over before it could be mistaken
    const uint32_t before = long_.load(std::memory_order_relaxed);
    uint32_t after = before < kMost ? before + 1 : before;
    if (gap_ns < kLongNs) after = before > kMistake ? before - kMistake : 0;
    long_.store(after, std::memory_order_relaxed);
  }

  std::atomic<uint32_t> long_{0};
  std::atomic<uint32_t> noted_{0};
};

}  // namespace prorata::client
