#include "client/look_timer.h"

#include <unistd.h>

namespace prorata::client {

void LookTimer::Open(uint32_t count) {
  const int timer = MakeTimer();
  const Holding planning(lock_);
  count_ = count;
  timer_ = timer;
}

bool LookTimer::Plan(uint32_t device, int64_t at_ns, int64_t by_ns) {
  const Holding planning(lock_);
  devices_[device].look_ns.store(at_ns, std::memory_order_relaxed);
  devices_[device].look_by_ns.store(by_ns, std::memory_order_relaxed);
  return timer_ >= 0 && by_ns != 0;
}

bool LookTimer::Await(int fd, int64_t timeout_ns) {
  int timer;
  {
    const Holding planning(lock_);
    timer = timer_;
    armed_ns_ = 0;  // it may have gone off
    Arm();
  }
  if (timer >= 0) return AwaitReadable(fd, timeout_ns, timer);
  return AwaitReadable(fd, Min(timeout_ns, Max(int64_t{1}, NextNs() - NowNs())));
}

void LookTimer::Move(uint32_t device, int64_t at_ns) {
  const Holding planning(lock_);
  if (timer_ < 0 || devices_[device].look_by_ns.load(std::memory_order_relaxed) == 0) return;
  devices_[device].look_ns.store(at_ns, std::memory_order_relaxed);
  Arm();
}

void LookTimer::Forget() {
  if (timer_ >= 0) close(timer_);
  timer_ = -1;
  lock_.Forget();
}

int64_t LookTimer::NextNs() const {
  int64_t next_ns = INT64_MAX;
  for (uint32_t device = 0; device < count_; ++device) {
    next_ns = Min(next_ns, devices_[device].look_ns.load(std::memory_order_relaxed));
  }
  return next_ns;
}

void LookTimer::Arm() {
  const int64_t next_ns = NextNs();
  if (timer_ < 0 || next_ns == armed_ns_) return;
  armed_ns_ = next_ns;
  ArmTimer(timer_, next_ns - NowNs());
}

}  // namespace prorata::client
