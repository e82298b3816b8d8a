#pragma once

// Which calls of this process are moving device memory just now: they have charged and not taken
// it, or given it back to the driver and not uncharged it. Until they are done, what is charged is
// more than what the process has, and a comparison of the two tells nothing of a third thing.
//
// Every allocation passes here, and next to none is measured. So each thread counts in one of many
// words, seldom one that another thread uses, and who measures adds them up: a word that all threads
// write would be carried from core to core four times in each allocation and free. Lock-free,
// thread-safe; a thread ends the moves that it began.

#include <atomic>
#include <cstdint>

namespace prorata::client {

class Moves {
 public:
  void Begin() { OfThisThread().fetch_add(kBegun + 1); }
  void End() { OfThisThread().fetch_sub(1); }

  // Begins a time in which nobody else is to move memory. The caller has begun a move himself.
  uint64_t Look() const {
    uint64_t sum = 0;
    for (const Stripe& stripe : stripes_) sum += stripe.word.load();
    return sum;
  }
  // Whether nobody did, from the end of that Look() until now. The words are not read at one moment:
  // but a move that overlaps this time was either under way when its word was read first, and is in
  // `looked`, or has begun since, and its word is another now. A begin adds more than any number of
  // ends takes away, so the sum tells.
  bool AloneSince(uint64_t looked) const { return looked % kBegun == 1 && Look() == looked; }

 private:
  // In a word, above this: how many have ever begun, modulo 2^32; below: how many are under way.
  static constexpr uint64_t kBegun = uint64_t{1} << 32;
  static constexpr int kStripesLog2 = 6;
  struct alignas(64) Stripe {
    std::atomic<uint64_t> word{0};
  };

  // By the thread's own block, which stands at the top of its stack: a page at least apart from
  // every other's.
  std::atomic<uint64_t>& OfThisThread() {
    const auto block = reinterpret_cast<uint64_t>(__builtin_thread_pointer());
    return stripes_[((block >> 12) * 0x9e3779b97f4a7c15) >> (64 - kStripesLog2)].word;
  }

  Stripe stripes_[1 << kStripesLog2];
};

extern Moves g_moves;

// For the time of a call that moves memory, from before it charges until it has given back.
class Moving {
 public:
  Moving() { g_moves.Begin(); }
  ~Moving() { g_moves.End(); }
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;
};

}  // namespace prorata::client
