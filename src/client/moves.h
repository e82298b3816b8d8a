#pragma once

// Which calls of this process are moving device memory just now: they have charged and not taken
// it, or given it back to the driver and not uncharged it. Until they are done, what is charged is
// more than what the process has, and a comparison of the two tells nothing of a third thing.
// Lock-free, thread-safe.

#include <atomic>
#include <cstdint>

namespace prorata::client {

class Moves {
 public:
  void Begin() { word_.fetch_add(kBegun + 1); }
  void End() { word_.fetch_sub(1); }

  // Begins a time in which nobody else is to move memory. The caller has begun a move himself.
  uint64_t Look() const { return word_.load(); }
  // Whether nobody did, from that Look() until now.
  bool AloneSince(uint64_t looked) const { return looked % kBegun == 1 && word_.load() == looked; }

 private:
  // Above it, how many have ever begun, modulo 2^32; below, how many are under way.
  static constexpr uint64_t kBegun = uint64_t{1} << 32;
  std::atomic<uint64_t> word_{0};
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
