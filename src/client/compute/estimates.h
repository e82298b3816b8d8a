#pragma once

// What a launch of a function is expected to take on the device, learned from measured batches.
// Pure.
//
// A fixed table, 4-way associative, without locks: a slot's key and value are two words, so a
// reader may pair a new key with the old value of its slot. Such an estimate is wrong once, which
// costs a fence early or late, and nothing else.

#include <atomic>
#include <cstdint>

namespace prorata::client {

// What launches have in common that are expected to take the same: the function, or the graph, and
// how many blocks it has within an eighth. Whatever else differs, time goes with their number; and
// a program whose data has another size each time has few keys. Never 0.
inline uint64_t LaunchKey(const void* function, uint64_t x, uint64_t y = 1, uint64_t z = 1) {
  constexpr int kExactBits = 4;
  const uint64_t blocks = x * y * z;
  const int bits = 64 - __builtin_clzll(blocks | 1);
  const int dropped = bits > kExactBits ? bits - kExactBits : 0;
  uint64_t key = reinterpret_cast<uint64_t>(function) * 0x9e3779b97f4a7c15;
  key ^=
      ((blocks >> dropped) + (static_cast<uint64_t>(dropped) << kExactBits)) * 0xff51afd7ed558ccd;
  key ^= key >> 31;
  return key | 1;
}

// Who else had the device while a launch was measured.
enum class RanBeside : uint8_t {
  kNone,
  kOwnShare,  // other members, which only makes it longer
  kInSlices,  // other shares, in the hardware's time slices
};

class Estimates {
 public:
  static constexpr uint32_t kMinNs = 1'000;  // nothing on a device takes less

  // Nanoseconds, or 0: unknown.
  uint32_t Lookup(uint64_t key) const {
    const Slot* set = SetOf(key);
    for (uint32_t way = 0; way < kWays; ++way) {
      if (set[way].key.load(std::memory_order_relaxed) == key) {
        return set[way].ns.load(std::memory_order_relaxed);
      }
    }
    return 0;
  }

  // What a launch counts as of which nothing is known: what those took that were the first of
  // theirs. `start_ns` until one was measured.
  uint32_t ForUnknown(uint32_t start_ns) const {
    const uint32_t ns = unknown_.ns.load(std::memory_order_relaxed);
    return ns == 0 ? start_ns : ns;
  }
  void LearnUnknown(uint64_t least_ns, uint64_t most_ns, RanBeside beside_whom, uint32_t start_ns) {
    Move(&unknown_, least_ns, most_ns, beside_whom, start_ns);
  }

  // A launch took this long, which is known within bounds: an estimate between them stays. What is
  // seen first, without others, counts as `first_ns` at least, and as half of that at least after
  // each time that it is seen again.
  void Learn(uint64_t key, uint64_t least_ns, uint64_t most_ns,
             RanBeside beside_whom = RanBeside::kNone, uint64_t first_ns = 0) {
    Slot* slot = Find(key);
    if (slot == nullptr) {
      Slot* set = const_cast<Slot*>(SetOf(key));
      slot = &set[next_way_.fetch_add(1, std::memory_order_relaxed) % kWays];
      slot->ns.store(0, std::memory_order_relaxed);
      slot->learned_ns.store(0, std::memory_order_relaxed);
      slot->in_slices.store(true, std::memory_order_relaxed);
      slot->key.store(key, std::memory_order_relaxed);
    }
    Move(slot, least_ns, most_ns, beside_whom, first_ns);
  }

 private:
  static constexpr uint32_t kSets = 1024, kWays = 4;
  static constexpr uint64_t kMaxNs = 4'000'000'000;
  static uint64_t Within(uint64_t ns) { return ns < kMinNs ? kMinNs : ns > kMaxNs ? kMaxNs : ns; }
  struct Slot {
    std::atomic<uint64_t> key{0};
    std::atomic<uint32_t> ns{0};
    std::atomic<bool> in_slices{true};
    std::atomic<uint32_t> learned_ns{0}, floor_ns{0};
  };
  // Moves a known one a quarter of the way, and one that is shorter than what was seen beside
  // kOwnShare by little. What was seen kInSlices says next to nothing of a short launch: of a
  // function that takes now this and now that only the shortest would be believed. It counts until
  // something better is known, and never after.
  static void Move(Slot* slot, uint64_t least_ns, uint64_t most_ns, RanBeside beside_whom,
                   uint64_t first_ns) {
    least_ns = Within(least_ns);
    most_ns = Within(most_ns);
    const bool in_slices = beside_whom == RanBeside::kInSlices;
    const bool was_in_slices = slot->in_slices.load(std::memory_order_relaxed);
    if (in_slices && !was_in_slices) return;
    slot->in_slices.store(in_slices, std::memory_order_relaxed);
    const bool better = was_in_slices && !in_slices;
    const uint64_t old = better ? 0 : slot->learned_ns.load(std::memory_order_relaxed);
    const uint64_t seen_ns = old == 0 || old > most_ns ? most_ns : old < least_ns ? least_ns : old;
    const uint64_t parts = beside_whom == RanBeside::kOwnShare && seen_ns > old ? 32 : 4;
    const uint64_t moved = ((parts - 1) * old + seen_ns + parts / 2) / parts;
    const uint64_t next = old == 0 ? seen_ns : moved;
    slot->learned_ns.store(static_cast<uint32_t>(next), std::memory_order_relaxed);
    const uint64_t floor_ns = old != 0    ? slot->floor_ns.load(std::memory_order_relaxed) / 2
                              : in_slices ? 0
                                          : first_ns;
    slot->floor_ns.store(static_cast<uint32_t>(floor_ns), std::memory_order_relaxed);
    slot->ns.store(static_cast<uint32_t>(next > floor_ns ? next : floor_ns),
                   std::memory_order_relaxed);
  }
  const Slot* SetOf(uint64_t key) const { return &slots_[((key >> 1) % kSets) * kWays]; }
  Slot* Find(uint64_t key) {
    Slot* set = const_cast<Slot*>(SetOf(key));
    for (uint32_t way = 0; way < kWays; ++way) {
      if (set[way].key.load(std::memory_order_relaxed) == key) return &set[way];
    }
    return nullptr;
  }

  Slot slots_[kSets * kWays];
  Slot unknown_;
  std::atomic<uint32_t> next_way_{0};
};

}  // namespace prorata::client
