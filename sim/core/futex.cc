#include "sim/core/futex.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "base/clock.h"
#include "sim/core/types.h"

namespace prorata::simgpu {

void FutexWait(std::atomic<uint32_t>* word, uint32_t seen, int64_t timeout_ns) {
  if (timeout_ns == kForever) {
    syscall(SYS_futex, word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    return;
  }
  // The default slack of 50 us would be the largest error of the model; the thread gets its own
  // back, for it is somebody else's.
  const int slack_ns = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  const timespec timeout{timeout_ns / kNsPerS, timeout_ns % kNsPerS};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  if (slack_ns > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_ns), 0UL, 0UL, 0UL);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace prorata::simgpu
