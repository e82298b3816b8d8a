#pragma once

// Which calls of this process are moving device memory just now: they have charged and not taken
// it, or given it back to the driver and not uncharged it. Until they are done, what is charged is
// more than what the process has, and a comparison of the two tells nothing of a third thing.
//
// Every allocation passes here, and next to none is measured. So each thread has a word of its own,
// which it changes by plain stores, and who measures adds them up: one word for all would be
// carried from core to core four times in each allocation and free, and even alone cost four locked
// instructions (25 of the 130 ns of a pair on a Xeon). Lock-free, thread-safe.

#include <atomic>
#include <cstdint>

namespace prorata::client {

class InFlight {
 public:
  // A word and whose it is. Number 0 is everybody's who found no other.
  struct alignas(128) Stripe {  // two lines: processors fetch them in pairs
    std::atomic<uint64_t> word{0};
    std::atomic<int32_t> owner{0};
  };

  // A stripe for this thread (its number for the kernel): a free one, else that of a thread that is
  // dead, else the common one. `alive` says whether a thread is.
  Stripe* Claim(int32_t thread, bool (*alive)(int32_t thread)) {
    for (const bool of_the_dead : {false, true}) {
      for (Stripe& stripe : stripes_) {
        int32_t owner = stripe.owner.load();
        if (&stripe == stripes_ || (of_the_dead ? alive(owner) : owner != 0)) continue;
        if (!stripe.owner.compare_exchange_strong(owner, thread)) continue;
        stripe.word.store(stripe.word.load() & ~(kBegun - 1));  // it died in a call
        return &stripe;
      }
    }
    return stripes_;
  }

  // By the thread that claimed the stripe. What it does between Begin and End to words that others
  // see begins with a locked instruction, which orders the store before it on x86.
  void Begin(Stripe* stripe) { Add(stripe, kBegun + 1); }
  void End(Stripe* stripe) { Add(stripe, ~uint64_t{0}); }

  // Begins a time in which nobody else is to move memory. The caller has begun a move himself.
  uint64_t Look() const {
    uint64_t sum = 0;
    for (const Stripe& stripe : stripes_) sum += stripe.word.load();
    return sum;
  }
  // Whether nobody did, from the end of that Look() until now. The words are not read at one
  // moment: but a move that overlaps this time was either under way when its word was read first,
  // and is in `looked`, or has begun since, and its word is another now. A begin adds more than any
  // number of ends takes away, so the sum tells.
  bool AloneSince(uint64_t looked) const { return looked % kBegun == 1 && Look() == looked; }

 private:
  // In a word, above this: how many have ever begun, modulo 2^32; below: how many are under way.
  static constexpr uint64_t kBegun = uint64_t{1} << 32;

  void Add(Stripe* stripe, uint64_t change) {
    if (stripe == stripes_) {
      stripe->word.fetch_add(change);
    } else {
      stripe->word.store(stripe->word.load(std::memory_order_relaxed) + change,
                         std::memory_order_release);
    }
  }

  Stripe stripes_[64];
};

extern InFlight g_in_flight;
extern __thread InFlight::Stripe* t_in_flight __attribute__((tls_model("initial-exec")));
InFlight::Stripe* ClaimInFlight();  // for this thread, for good

// For the time of a call that moves memory, from before it charges until it has given back.
class InFlightEpoch {
 public:
  InFlightEpoch() : stripe_(t_in_flight != nullptr ? t_in_flight : ClaimInFlight()) {
    g_in_flight.Begin(stripe_);
  }
  ~InFlightEpoch() { g_in_flight.End(stripe_); }
  InFlightEpoch(const InFlightEpoch&) = delete;
  InFlightEpoch& operator=(const InFlightEpoch&) = delete;

 private:
  InFlight::Stripe* stripe_;
};

}  // namespace prorata::client
