#pragma once

// What a device really lost to a process, against what its ledger says: overhead that no call
// showed, and memory that was taken past the library. Samples in, decisions out.
//
// The problem. The device's figure and the ledger are never read at one moment, and other threads
// allocate all the time: their difference is noise of up to the largest allocation. But a charge
// comes before the driver's allocation and goes after its free, so at every moment
//     on the device <= charged + what nobody charged,
// and a figure that was taken between two readings of the ledger is above it by more than that
// overhead only if something was charged, allocated, seen, freed and uncharged between the two. So
// of each sample the larger reading counts, and of several samples the smallest difference: what
// is there all the time is overhead, what comes and goes is not. Too small for a few samples after
// the overhead grew, never too large for longer than those last.
//
// A ledger above the device's figure is no error: managed memory that was never touched, memory
// reserved by a pool in the middle of growing. It gives no credit: it may be touched at any moment.
//
// All sizes are bytes. Pure; not thread-safe.

#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace prorata::policy {

// Of one process on one device (or of all on a device without figures per process).
class OverheadAudit {
 public:
  static constexpr uint32_t kSamples = 3;

  // What the device showed, and the ledger read before and after it. Answers the overhead now.
  uint64_t Sample(uint64_t on_device, uint64_t charged_before, uint64_t charged_after);
  // A sample beside the row of them, because somebody is about to be refused: it can only lower the
  // overhead. Many of them at one moment are no more than one.
  uint64_t Recheck(uint64_t on_device, uint64_t charged_before, uint64_t charged_after);
  // Where no figure can be had nothing new is known, and what is known stays.
  uint64_t overhead_bytes() const { return overhead_bytes_; }
  // It was just counted elsewhere (a context was settled), or an agent before us knew it.
  void Set(uint64_t overhead_bytes);

 private:
  std::array<uint64_t, kSamples> last_{};
  uint32_t count_ = 0;
  uint64_t overhead_bytes_ = 0;
};

// What lies on a device whose figures per process are missing, beyond what shares do: the least
// that was there beside the ledgers while no member held anything, the driver's own for the most
// part.
class DeviceBaseline {
 public:
  // `on_device` of all processes, while shares hold nothing there.
  void LearnIdle(uint64_t on_device);
  // What the members of all shares hold, or nothing if the device was never seen idle.
  std::optional<uint64_t> OfMembers(uint64_t on_device) const;

 private:
  std::optional<uint64_t> idle_bytes_;
};

// Whether something is far above what it may be, and for how long: overhead that no call showed is
// honest up to a size (libraries load their kernels when they are first used), a multiple of it is
// not. Begins when every one of a few looks in a row was far above, ends when one is near the limit
// again: once an episode.
class ExcessWatch {
 public:
  enum class Verdict : uint8_t { kNothing, kBegan, kEnded };
  static constexpr uint32_t kPolls = 3;

  // Far above a limit: by an eighth of it and at least 64 MiB.
  static uint64_t FarAbove(uint64_t limit_bytes);

  Verdict Poll(uint64_t held_bytes, uint64_t limit_bytes);
  bool on() const { return on_; }

 private:
  uint32_t above_ = 0;
  bool on_ = false;
};

// Whether a process claims more than it can have. An honest claim never passes what was granted
// (usage_file.h, M1 to M3), and what is counted after it was taken stays near the limit: so one
// look that finds a claim far above it is nearly proof, and three are, whatever was claimed between
// them. A liar that changes its claim all the time would seldom be caught three times in a row.
// Begins at the third of such looks among the last ones, ends when none of those was.
class ClaimWatch {
 public:
  static constexpr uint32_t kFound = 3;
  static constexpr uint32_t kPolls = 20;  // the last ones

  ExcessWatch::Verdict Poll(uint64_t claimed_bytes, uint64_t limit_bytes);

 private:
  uint32_t found_ = 0;  // a bit for each look, the last one lowest
  bool on_ = false;
};

// Whether something that may still become less has ceased to: nothing less was seen for a while. It
// is a while of looks, too, so that one who slept does not take that for patience.
class Standstill {
 public:
  static constexpr int64_t kNs = 3 * kNsPerS;
  static constexpr uint32_t kPolls = 30;

  // True: it stands still. `now_ns` never goes back.
  bool Poll(uint64_t bytes, int64_t now_ns);

 private:
  uint64_t least_bytes_ = 0;
  int64_t since_ns_ = 0;  // of the first look that saw the least
  uint32_t polls_ = 0;    // since then, and that one; 0: none yet
};

}  // namespace prorata::policy
