#pragma once

// The account of one share's memory on one device: how the share's limit is divided into grants.
//
// A member charges its own `used` word up to its grant without asking anybody; this class decides
// how large the grants are. It moves no memory and reads no file: the agent feeds it what it read,
// and carries out what it says, in the order that shm/usage_file.h names A1 to A3.
//
// What stays true after every call:
//   1. the grants add up to at most the limit (and the ceiling), or, after SetLimit lowered the
//      limit below them, to no more than they did before: nothing grows until the sum is under the
//      limit again, but by Acknowledge;
//   2. a grant is lowered only by FinishRecall, which never goes below the use that the agent read
//      after the member could have seen the lower grant; so no use that proceeds is above its
//      grant;
//   3. what a departed member held stays counted until Release: its memory may still be on the
//      device.
// A lie in `used` changes only the liar's own grant, and never raises it.
//
// All sizes are bytes. Not thread-safe: the agent is one thread.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace prorata::policy {

class Ledger {
 public:
  enum class SlotState : uint8_t { kFree, kAlive, kDeparted };
  enum class Verdict : uint8_t {
    kGranted,  // grant_bytes is the member's grant now, and covers what it needs
    kRecall,   // recall the slots in `recall`, then ask again
    kBeyond,   // the limit would allow it, what the device gave the share does not: see below
    kRefused,  // even with all slack recalled there is no room
  };
  struct Decision {
    Verdict verdict = Verdict::kRefused;
    uint64_t grant_bytes = 0;
    std::vector<uint32_t> recall;
    // kBeyond: with a ceiling of sum_bytes the request is met as things stand; `recall` names slots
    // with slack, which lowers that (none: sum_bytes is the least).
    uint64_t sum_bytes = 0;
  };

  // In a list of uses: not known (a member that has not joined again since the agent started). Such
  // a member's grant is not recalled.
  static constexpr uint64_t kUnknownUse = ~uint64_t{0};

  Ledger(uint64_t limit_bytes, uint32_t slots);

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t granted_bytes() const { return granted_bytes_; }
  uint32_t slots() const { return static_cast<uint32_t>(slots_.size()); }
  uint64_t grant_bytes(uint32_t slot) const { return slots_[slot].grant_bytes; }
  SlotState state(uint32_t slot) const { return slots_[slot].state; }
  bool OverLimit() const { return granted_bytes_ > limit_bytes_; }

  // A free slot becomes a member's, with a grant of nothing, or with the grant that stood in the
  // limits file when the agent started again (taken as it is: it was within the limit when given).
  void Admit(uint32_t slot, uint64_t grant_bytes = 0);
  // The member's process is dead. Its grant stays until Release.
  void Depart(uint32_t slot);
  // The device shows the departed member's memory gone. Returns what came back.
  uint64_t Release(uint32_t slot);

  // The member in `slot` wants its use to be able to reach `needed_bytes`. `used` has one entry per
  // slot: each member's use as just read (an estimate: it may change at any moment).
  Decision Request(uint32_t slot, uint64_t needed_bytes, std::span<const uint64_t> used);

  // Slots whose slack should be recalled because the sum is above the limit.
  std::vector<uint32_t> RecallsOverLimit(std::span<const uint64_t> used) const;

  // A1: the value to lower the grant to, given the use as just read. Changes nothing here.
  uint64_t RecallTarget(uint32_t slot, uint64_t used_bytes) const;
  // A3: the grant that remains, given the use read after the lowered grant was visible (A2).
  uint64_t FinishRecall(uint32_t slot, uint64_t target_bytes, uint64_t used_after_bytes);

  // Memory that `from` is charged for is charged to `to` as well by now: its grant goes with it.
  void Move(uint32_t from, uint32_t to, uint64_t bytes);
  // Memory that nobody is granted is on the device, and charged to `slot` now (see 1).
  void Acknowledge(uint32_t slot, uint64_t bytes);

  // May be below what is granted; see 1.
  void SetLimit(uint64_t limit_bytes) { limit_bytes_ = limit_bytes; }

  // What the device has given the share (memory_admission.h), where more was promised than there
  // is: nothing is granted beyond it. At first there is no such bound. Below what is granted it
  // only keeps it from growing.
  void SetCeiling(uint64_t bytes) { ceiling_bytes_ = bytes; }
  uint64_t ceiling_bytes() const { return std::min(ceiling_bytes_, limit_bytes_); }

 private:
  struct Slot {
    SlotState state = SlotState::kFree;
    uint64_t grant_bytes = 0;
  };

  uint64_t Slack(uint32_t slot, std::span<const uint64_t> used) const;

  uint64_t limit_bytes_;
  uint64_t ceiling_bytes_ = ~uint64_t{0};
  uint64_t granted_bytes_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace prorata::policy
