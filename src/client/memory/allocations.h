#pragma once

// What this process holds of device memory, by address or handle. Pure, thread-safe.

#include "client/platform/table.h"

namespace prorata::client {

inline constexpr uint64_t kSlabBytes = uint64_t{2} << 20;  // the unit the driver takes memory in
inline constexpr uint32_t kSlabShift = 21;

enum class Kind : uint8_t {
  kNone = 0,
  kLarge,     // `bytes` are charged
  kSmall,     // carved from a slab; `bytes` is its size, the slab carries the charge
  kPool,      // from pool number `pool`, which carries the charge
  kArray,     // `bytes` are charged
  kMipmap,    // same
  kImplicit,  // same; code, or what a limit of a context costs
  kSparse,    // an array or mipmap without memory of its own; it keeps what is mapped behind it
  kOpened,    // another process's; `bytes` are charged, none where its maker pays; opened `times`
};

struct Allocation {
  uint64_t context = 0;  // CUcontext it dies with; 0: none (pools)
  uint64_t bytes = 0;
  union {
    uint32_t pool = 0;  // kPool
    uint32_t times;     // kOpened
    // kLarge, kSmall: under this number managed.h keeps what is charged on other devices; 0:
    // nothing
    uint32_t elsewhere;
  };
  uint8_t device = 0;  // index in the limits file
  Kind kind = Kind::kNone;
  bool dying = false;   // its context is being destroyed
  bool shared = false;  // others may hold it too: it has a number (sharing.h)
};

// Handles of different kinds may be equal numbers; the top bits, which no address uses, keep them
// apart.
enum class Space : uint64_t {
  kPointer = 0,
  kArray = 1,
  kMipmap = 2,
  kModule = 3,
  kLibrary = 4,
  kLimit = 5,
  kExternal = 6
};
inline uint64_t KeyOf(Space space, uint64_t value) {
  return value ^ (static_cast<uint64_t>(space) << 60);
}

class Allocations {
 public:
  // False: no memory to remember it in. If the key was known, what it was comes back in *replaced
  // (kind kNone otherwise): the driver gave the address out again, so the old one is gone without
  // our having seen it go.
  bool Remember(uint64_t key, const Allocation& allocation, Allocation* replaced) {
    return table_.Update(key, [&](Allocation& slot, bool made) {
      *replaced = made ? Allocation{} : slot;
      slot = allocation;
      return true;
    });
  }

  // Runs keep = f(allocation) if there is one.
  template <typename F>
  bool Find(uint64_t key, F&& f) {
    return table_.Find(key, f);
  }

  bool Forget(uint64_t key, Allocation* allocation) { return table_.Take(key, allocation); }

  // Destroying a context, in three steps: mark what lives in it, call the driver, then either
  // take every marked one, or clear the marks. An address that is given out again in between loses
  // its mark in Remember.
  void MarkContext(uint64_t context, bool dying) {
    table_.ForEach([&](uint64_t, Allocation& slot) {
      if (slot.context == context) slot.dying = dying;
      return true;
    });
  }
  template <typename F>  // f(key, const Allocation&), under a lock of the table
  void TakeDying(uint64_t context, F&& f) {
    table_.ForEach([&](uint64_t key, Allocation& slot) {
      if (!slot.dying || slot.context != context) return true;
      f(key, slot);
      return false;
    });
  }

 private:
  Table<Allocation> table_;
};

// How many small allocations live in each 2 MiB slab. The charge of a slab is made by whoever finds
// it empty and given back by whoever empties it:
//
//   allocate   reserve 2 MiB; driver; Add: slab had allocations? give the reservation back
//   free       driver; Drop: was it the last? give 2 MiB back
//
// Drop comes after the driver's free, so a slab that the driver holds is always counted:
//   A. two threads allocate from one new slab: the first Add keeps its 2 MiB, the second returns
//   its B. T frees the last one; before T's Drop, U gets an address in the same slab (kept, or made
//      anew by the driver at the same address): U finds a count of 1, gives its reservation back;
//      T drops 2 -> 1. One slab, one charge.
//   C. T frees the last one and the driver gives the slab to the device; before T's Drop, the
//      charge is 2 MiB too high. Never too low.
//
// The counts stand in a tree of two levels, found by the upper and the lower half of a slab's
// number: threads that allocate from one slab meet at one word, and at no lock. Leaves are made
// when first needed (32 KiB for 16 GiB of addresses) and stay. An address beyond the 49 bits of a
// GPU's is charged a slab of its own: too high, never too low. Lock-free, thread-safe.
class Slabs {
 public:
  // False: no memory to count it in. *first: the slab was empty.
  bool Add(uint64_t slab, bool* first) {
    *first = true;
    if (Beyond(slab)) return true;
    std::atomic<uint32_t>* count = CountOf(slab, true);
    if (count == nullptr) return false;
    *first = count->fetch_add(1) == 0;
    return true;
  }
  // True: it is empty now. Only for what was added.
  bool Drop(uint64_t slab) {
    if (Beyond(slab)) return true;
    std::atomic<uint32_t>* count = CountOf(slab, false);
    return count != nullptr && count->fetch_sub(1) == 1;
  }

 private:
  static constexpr uint32_t kLeafLog2 = 13, kRootLog2 = 15;  // with a slab's 21: 49 bits
  static constexpr size_t kLeafBytes = sizeof(std::atomic<uint32_t>) << kLeafLog2;

  static bool Beyond(uint64_t slab) { return slab >> (kRootLog2 + kLeafLog2) != 0; }

  std::atomic<uint32_t>* CountOf(uint64_t slab, bool make) {
    std::atomic<std::atomic<uint32_t>*>& slot = leaves_[slab >> kLeafLog2];
    std::atomic<uint32_t>* leaf = slot.load(std::memory_order_acquire);
    if (leaf == nullptr) {
      if (!make) return nullptr;
      auto* made = static_cast<std::atomic<uint32_t>*>(MapPages(kLeafBytes));
      if (made == nullptr) return nullptr;
      if (slot.compare_exchange_strong(leaf, made)) {
        leaf = made;
      } else {
        UnmapPages(made, kLeafBytes);  // another thread was first
      }
    }
    return &leaf[slab & ((1u << kLeafLog2) - 1)];
  }

  std::atomic<std::atomic<uint32_t>*> leaves_[1 << kRootLog2] = {};
};

}  // namespace prorata::client
