#include "client/platform/os.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

extern "C" __attribute__((weak)) const char* gnu_get_libc_version();

namespace prorata::client {
namespace {

// 1 but in tests. Written once, before this process has a second thread of ours; threads of the
// program may read the clock already.
std::atomic<int64_t> g_dilation{1};

int64_t Dilation() { return g_dilation.load(std::memory_order_relaxed); }

timespec RealSpan(int64_t span_ns) {
  constexpr int64_t kLongestNs = int64_t{3600} * 1'000'000'000;
  const int64_t real_ns = span_ns < kLongestNs ? span_ns * Dilation() : span_ns;
  return {real_ns / 1'000'000'000, real_ns % 1'000'000'000};
}

int64_t ClockNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  const int64_t real_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  const int64_t dilation = Dilation();
  return dilation == 1 ? real_ns : real_ns / dilation;
}

}  // namespace

const char* WhyNoDriverLoads() {
  return &gnu_get_libc_version != nullptr
             ? ""
             : "; this program's C library is not glibc, which the driver needs, so it has no GPU: "
               "it runs with no limits and is not counted";
}

int64_t NowNs() { return ClockNs(CLOCK_MONOTONIC); }

int64_t ThreadCpuNs() { return ClockNs(CLOCK_THREAD_CPUTIME_ID); }

void SetDilation(uint32_t dilation) {
  constexpr uint32_t kMost = 10'000;
  g_dilation.store(dilation < 1 ? 1 : Min(dilation, kMost), std::memory_order_relaxed);
}

void* MapPages(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

void UnmapPages(void* pages, size_t bytes) { munmap(pages, bytes); }

void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns) {
  const timespec timeout = RealSpan(timeout_ns);
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

bool AwaitReadable(int fd, int64_t timeout_ns) {
  pollfd readable = {fd, POLLIN, 0};  // one below 0 is skipped
  const timespec timeout = RealSpan(timeout_ns);
  return syscall(SYS_ppoll, &readable, 1, &timeout, nullptr, 0) > 0;
}

// Its sleeps are in real time: the holder was preempted by a real scheduler.
void Lock::AcquireSlowly() {
  constexpr int64_t kFirstSleepNs = 20'000, kLongestSleepNs = 2'000'000;
  for (int64_t sleep_ns = kFirstSleepNs;; sleep_ns = Min(2 * sleep_ns, kLongestSleepNs)) {
    for (int spins = 0; spins < 100; ++spins) {
      uint32_t free = 0;
      if (word_.load(std::memory_order_relaxed) == 0 &&
          word_.compare_exchange_weak(free, 1, std::memory_order_acquire)) {
        return;
      }
      __builtin_ia32_pause();
    }
    const timespec sleep = {0, sleep_ns};
    syscall(SYS_futex, &word_, FUTEX_WAIT, 1, &sleep, nullptr, 0);
  }
}

StderrMessage& StderrMessage::Text(const char* text) {
  const size_t room = sizeof text_ - 1 - bytes_;
  const size_t bytes = Min(std::strlen(text), room);
  std::memcpy(text_ + bytes_, text, bytes);
  bytes_ += bytes;
  text_[bytes_] = 0;
  return *this;
}

StderrMessage& StderrMessage::Number(uint64_t value) {
  char digits[24];
  size_t at = sizeof digits - 1;
  digits[at] = 0;
  do {
    digits[--at] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  return Text(digits + at);
}

StderrMessage& StderrMessage::Errno(int error_number) {
  return Text(": ").Text(strerror(error_number));
}

void StderrMessage::Print() {
  char line[sizeof text_ + 16];
  constexpr char kPrefix[] = "prorata: ";
  std::memcpy(line, kPrefix, sizeof kPrefix - 1);
  std::memcpy(line + sizeof kPrefix - 1, text_, bytes_);
  size_t bytes = sizeof kPrefix - 1 + bytes_;
  line[bytes++] = '\n';
  // A closed or full stderr is the program's affair.
  [[maybe_unused]] const ssize_t written = write(2, line, bytes);
}

}  // namespace prorata::client
