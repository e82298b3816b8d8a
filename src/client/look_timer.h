#pragma once

// The helper's sleep: until there is something to read, or the next look at a device is due.
// Launching threads may move a look while it sleeps (LeaseWatch::Act::may_be_moved): that is one
// call of the kernel, and spares the helper a wake-up that would find nothing, and the agent the
// message that a lease has opened.
//
// The deadline of a thread that sleeps in poll() cannot be moved, that of a timerfd can. Where no
// descriptor is to be had looks are not moved.

#include <cstdint>

#include "client/guest.h"
#include "client/member_compute.h"

namespace prorata::client {

class LookTimer {
 public:
  // `devices` must stay; the first `count` of them that Open is told are looked at.
  constexpr explicit LookTimer(DeviceCompute* devices) : devices_(devices) {}

  // Helper, before its first look.
  void Open(uint32_t count);
  // Helper: when it looks next, and until when that may be put off (0: it may not be moved).
  // Answers whether launches can move it.
  bool Plan(uint32_t device, int64_t at_ns, int64_t by_ns);
  // Helper: sleeps until the first of the looks, or for timeout_ns. True: `fd` is readable.
  bool Await(int fd, int64_t timeout_ns);
  // Anyone: the look at this device is at at_ns instead, if it may be moved.
  void Move(uint32_t device, int64_t at_ns);
  // In the child after a fork: the timer is that of its parent.
  void Forget();

 private:
  int64_t NextNs() const;
  void Arm();

  DeviceCompute* devices_;
  uint32_t count_ = 0;
  // Of all below, and of the devices' look_ns and look_by_ns. Held while the timer is armed.
  Lock lock_;
  int timer_ = -1;
  int64_t armed_ns_ = 0;
};

}  // namespace prorata::client
