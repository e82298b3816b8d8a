#include "noise/sampling.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace prorata::noise {
namespace {

constexpr int64_t kEveryNs = kNsPerMs;
constexpr int64_t kGapNs = 20'000;  // shorter ones are interrupts: every machine has them

std::vector<int> Cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void StayOn(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

void SleepUntil(int64_t when_ns) {
  static const uint32_t never = 0;
  const timespec until{when_ns / kNsPerS, when_ns % kNsPerS};
  ::syscall(SYS_futex, &never, FUTEX_WAIT_BITSET, 0, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

std::vector<int64_t> Wake(int64_t end_ns, const std::atomic<bool>& over) {
  ::prctl(PR_SET_TIMERSLACK, 1);
  std::vector<int64_t> late;
  const RealClock clock;
  for (int64_t next = clock.NowNs() + kEveryNs; !over && (end_ns == 0 || next < end_ns);) {
    SleepUntil(next);
    const int64_t now = clock.NowNs();
    late.push_back(std::max<int64_t>(0, now - next));
    next = now + kEveryNs;
  }
  return late;
}

std::vector<int64_t> Spin(int64_t end_ns, const std::atomic<bool>& over) {
  std::vector<int64_t> gaps;
  const RealClock clock;
  for (int64_t last = clock.NowNs(); last < end_ns && !over;) {
    const int64_t now = clock.NowNs();
    if (now - last > kGapNs) gaps.push_back(now - last);
    last = now;
  }
  return gaps;
}

}  // namespace

Samples Measure(int64_t length_ns, bool busy, const std::atomic<bool>& over) {
  Samples samples;
  std::mutex mutex;
  const int64_t begin_ns = RealClock().NowNs();
  const int64_t quiet_end_ns = length_ns == 0 ? 0 : begin_ns + length_ns * (busy ? 2 : 3) / 3;
  std::vector<std::jthread> threads;
  for (const int cpu : Cpus()) {
    threads.emplace_back([&, cpu] {
      StayOn(cpu);
      const std::vector<int64_t> late = Wake(quiet_end_ns, over);
      const int64_t spin_ns = RealClock().NowNs();
      const int64_t end_ns = busy ? begin_ns + length_ns : 0;
      const std::vector<int64_t> gaps = busy ? Spin(end_ns, over) : std::vector<int64_t>();
      const std::lock_guard lock(mutex);
      samples.late_ns.insert(samples.late_ns.end(), late.begin(), late.end());
      samples.gap_ns.insert(samples.gap_ns.end(), gaps.begin(), gaps.end());
      if (busy) samples.spun_ns += std::max<int64_t>(0, RealClock().NowNs() - spin_ns);
    });
  }
  threads.clear();
  return samples;
}

}  // namespace prorata::noise
