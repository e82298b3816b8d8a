#pragma once

// What the client library needs of an operating system, without libstdc++ and without ever exiting,
// throwing or allocating from the program's heap: pages, a lock, futexes, a clock, one line of
// text.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace prorata::client {

// CLOCK_MONOTONIC, slowed down under a dilated agent; only differences mean anything. So are the
// waits below: every duration of this library but the lock's own sleeps is meant in this time.
int64_t NowNs();
// What the calling thread has had of a processor.
int64_t ThreadCpuNs();

// From here on one nanosecond of this time takes `dilation` real ones (shm::LimitsHeader).
// Before the first NowNs that is compared with another.
void SetDilation(uint32_t dilation);

// Zeroed private pages, or nullptr. Never given back but by UnmapPages.
void* MapPages(size_t bytes);
void UnmapPages(void* pages, size_t bytes);

// Waits until woken, until *word != expected, or for timeout_ns. The word may be in memory that
// other processes share, and that this one may only read.
void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns);
void FutexWakeAll(std::atomic<uint32_t>* word);

// True when fd has something to read, or has ended, within timeout_ns. fd < 0: only waits. No
// cancellation point, nor is any of these: a thread that waits here may hold locks, and be counted.
bool AwaitReadable(int fd, int64_t timeout_ns);

// A lock of one word: spins a little, then sleeps. Zero is free, so zeroed pages hold free locks.
// It is never held across a call of the driver (such a call may block, or call us again), and only
// one is held at a time unless a comment at the place says in which order.
//
// What it guards takes nanoseconds, so it is found held for longer only when its holder was
// preempted. Those who wait then sleep for a time of their own and are not woken: that makes the
// release a plain store, and an allocation and its free pass two of them.
class Lock {
 public:
  void Acquire() {
    uint32_t free = 0;
    if (!word_.compare_exchange_strong(free, 1, std::memory_order_acquire)) AcquireSlowly();
  }
  bool TryAcquire() {
    uint32_t free = 0;
    return word_.compare_exchange_strong(free, 1, std::memory_order_acquire);
  }
  void Release() { word_.store(0, std::memory_order_release); }
  // For the child after a fork: whoever held it does not exist here.
  void Forget() { word_.store(0, std::memory_order_relaxed); }

 private:
  void AcquireSlowly();
  std::atomic<uint32_t> word_{0};  // 0 free, 1 held
};

class LockGuard {
 public:
  explicit LockGuard(Lock& lock) : lock_(lock) { lock_.Acquire(); }
  ~LockGuard() { lock_.Release(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  Lock& lock_;
};

// What explains, after the loader's complaint, why a driver that is there cannot be loaded: a
// program whose C library is musl cannot load the driver, which needs glibc. Else empty.
const char* WhyNoDriverLoads();

// One line on stderr, built in place: StderrMessage("cannot map ").Text(path).Errno(e).Print(). Cut
// when long.
class StderrMessage {
 public:
  explicit StderrMessage(const char* start) { Text(start); }
  StderrMessage& Text(const char* text);
  StderrMessage& Number(uint64_t value);
  StderrMessage& Errno(int error_number);
  void Print();  // "prorata: ...\n"

 private:
  char text_[1400];
  size_t bytes_ = 0;
};

template <typename T>
constexpr T Min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
constexpr T Max(T a, T b) {
  return a < b ? b : a;
}
constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace prorata::client
