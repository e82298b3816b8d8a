#pragma once

// A share that was asked for and is not made yet. Each goes the same way, with `--wait` or without:
//
//   kNaming   a share of its name that is over already is awaited (Node::AwaitName)
//   kInLine   in line, in the order of `since_ms`; policy::StartLine says whose turn it is. Without
//             `wait` it is refused where it cannot be had at once.
//   kMaking   the share is there, and is written down
//
// Whoever asked may be gone at any moment (Node::GiveUp): then it is taken out, or what was made of
// it is taken away again.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "agent/runtime/process.h"
#include "agent/share/share.h"
#include "api/control.h"
#include "api/start_wait.h"

namespace prorata::agent {

struct Start {
  enum class Stage { kNaming, kInLine, kMaking };
  using OnPlace = std::function<void(const api::WaitingShare&)>;

  api::ShareSpec spec;
  Peer owner;
  std::optional<api::StartWait> wait;
  OnPlace on_place;  // it waits, and in which place now
  std::function<void(Result<Share*>)> then;
  Stage stage = Stage::kNaming;
  uint64_t since_ms = 0;  // CLOCK_BOOTTIME; of an agent before this one, too
  int64_t until_ns = std::numeric_limits<int64_t>::max();  // RealClock
  uint32_t place = 0;                                      // 0: it has not waited so far
  std::string why;
  bool reported = false;  // that it waits
  bool given_up = false;  // in kMaking
};

}  // namespace prorata::agent
