#pragma once

#include <atomic>
#include <cstdint>

namespace prorata::simgpu {

// Every place at which a kill leaves something that another process has to mend. Tests set
// `g_step` and end their process at the n-th step, for every n; so a place that is not here is one
// that no test was killed at. In programs `g_step` is null: a load and a branch.
enum class Step : uint8_t {
  // The undo log (transaction.h): before an old value is logged, after it is there but not counted,
  // after it is counted; around the commit; around each restored entry, after it is uncounted.
  kBeforeLogged,
  kLogged,
  kCounted,
  kBeforeCommit,
  kCommitted,
  kBeforeRestored,
  kRestored,
  kUncounted,
  // The lock: just taken, and before the dead owner's changes are undone; about to be let go; gone,
  // and those who wait for the change not yet woken.
  kLocked,
  kBeforeUnlocked,
  kUnlocked,
  // Memory: about to be wiped, wiped and not yet free.
  kBeforeWiped,
  kWiped,
  // The file of a descriptor: made and not yet locked, locked and not yet committed; nobody's any
  // more, with its record gone and its name still there.
  kDescriptorFile,
  kDescriptorHeld,
  kDescriptorDropped,
  // A process's byte of the file `processes`.
  kClaimed,
  kReleased,
  // Joining or making a machine (attachment.cc), in this order.
  kFolder,
  kGate,
  kRetired,
  kOldGone,
  kFileGone,
  kFileEmpty,
  kFileSized,
  kFilled,
  kShown,
  kCount,
};

extern void (*g_step)(Step);

inline void At(Step step) {
  if (g_step != nullptr) [[unlikely]] {
    // What was stored before stays before, for a process that ends here.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    g_step(step);
  }
}

}  // namespace prorata::simgpu
