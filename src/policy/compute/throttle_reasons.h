#pragma once

// Why a share does not go faster: judged from what was seen of it lately, so that who asks (a
// person before `prorata top`) need not read a dozen figures. docs/guide/top.md says the same to
// people.

#include <cstdint>
#include <vector>

#include "base/throttle_reason.h"

namespace prorata::policy {

// Of one share on one device. Parts are of the last second or so, from 0 to 1; they need not add up
// to 1, for a share may run and wait at once (it has several threads).
struct ThrottleFigures {
  uint32_t programs = 0;  // its living processes
  bool stopped = false;   // they say nothing, though they have work or are asked
  double busy = 0;        // device time it used
  double limit = 1;       // the most that may be
  double waiting = 0;     // held back, for others had the device
  double at_limit = 0;    // held back, for its own limit on GPU time was used up
  double undrained = 0;   // stalled: revoked, and what it launched did not end
  uint32_t persistent_kernels = 0;
  int64_t backlog_ns = 0;  // launched and not done, now
  uint32_t memory_waits = 0;
  bool over_memory_limit = false;
};

// Who used so much of its limit would not have got more without the others.
inline constexpr double kLimitReached = 0.9;
// What is shorter is no reason for anything.
inline constexpr double kMinHeldBack = 0.05;
// Skipped for less than this is a kernel that was long, not one that never ends.
inline constexpr double kMinUndrained = 0.5;
// Less work than this, and nothing that holds it back: the program does not ask for more.
inline constexpr double kMaxIdleBusy = 0.5;

// All that apply, what weighs most first; empty: nothing slows it.
std::vector<ThrottleReason> ThrottleReasons(const ThrottleFigures& figures);

}  // namespace prorata::policy
