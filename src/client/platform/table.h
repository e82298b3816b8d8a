#pragma once

// A hash table from a non-zero 64-bit key to a small trivially copyable value, for many threads.
//
// 64 shards by the upper bits of the hash, each with its own lock and its own open-addressing array
// in mapped pages (never the program's heap: we may be called from inside its allocator). Linear
// probing, removal by shifting back, so there are no tombstones and a lookup never degrades. An
// array doubles when it is three quarters full. The callbacks run under the shard's lock: they must
// not call the driver, nor the table again.

#include "client/platform/os.h"

namespace prorata::client {

template <typename Value>
class Table {
 public:
  // Finds `key`, or makes it with a zeroed value, and runs keep = f(value, made). Erases the key if
  // `keep` is false. Answers false, without running f, if there is no memory for a new key.
  template <typename F>
  bool Update(uint64_t key, F&& f) {
    Shard& shard = ShardOf(key);
    const LockGuard holding(shard.lock);
    if ((shard.count + 1) * 4 > shard.capacity * 3 && !Grow(shard)) return false;
    const size_t at = Probe(shard, key);
    const bool made = shard.slots[at].key == 0;
    if (made) {
      shard.slots[at] = Slot{key, Value{}};
      ++shard.count;
    }
    if (!f(shard.slots[at].value, made)) Erase(shard, at);
    return true;
  }

  // As Update for a key that is there; false if it is not.
  template <typename F>
  bool Find(uint64_t key, F&& f) {
    Shard& shard = ShardOf(key);
    const LockGuard holding(shard.lock);
    if (shard.capacity == 0) return false;
    const size_t at = Probe(shard, key);
    if (shard.slots[at].key == 0) return false;
    if (!f(shard.slots[at].value)) Erase(shard, at);
    return true;
  }

  bool Take(uint64_t key, Value* value) {
    return Find(key, [value](Value& found) {
      *value = found;
      return false;
    });
  }

  // Visits every entry, one shard at a time: keep = f(key, value). An entry may be visited twice
  // (when an erasure shifts it), never missed; entries made meanwhile may be missed.
  template <typename F>
  void ForEach(F&& f) {
    for (Shard& shard : shards_) {
      const LockGuard holding(shard.lock);
      for (size_t at = 0; at < shard.capacity;) {
        Slot& slot = shard.slots[at];
        if (slot.key != 0 && !f(slot.key, slot.value)) {
          Erase(shard, at);  // and look at what moved here
        } else {
          ++at;
        }
      }
    }
  }

  // In the child after a fork.
  void ForgetLocks() {
    for (Shard& shard : shards_) shard.lock.Forget();
  }

 private:
  static constexpr size_t kShards = 64;

  struct Slot {
    uint64_t key;
    Value value;
  };
  struct alignas(64) Shard {
    Lock lock;
    size_t count = 0;
    size_t capacity = 0;  // zero or a power of two
    Slot* slots = nullptr;
  };

  static uint64_t Hash(uint64_t key) {
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15;
    return key ^ (key >> 29);
  }
  Shard& ShardOf(uint64_t key) { return shards_[Hash(key) >> 58]; }

  static size_t Probe(const Shard& shard, uint64_t key) {
    size_t at = Hash(key) & (shard.capacity - 1);
    while (shard.slots[at].key != 0 && shard.slots[at].key != key) {
      at = (at + 1) & (shard.capacity - 1);
    }
    return at;
  }

  static bool Grow(Shard& shard) {
    const size_t capacity = shard.capacity == 0 ? 64 : shard.capacity * 2;
    auto* slots = static_cast<Slot*>(MapPages(capacity * sizeof(Slot)));
    if (slots == nullptr) return shard.count + 1 < shard.capacity;
    Slot* old = shard.slots;
    const size_t old_capacity = shard.capacity;
    shard.slots = slots;
    shard.capacity = capacity;
    for (size_t i = 0; i < old_capacity; ++i) {
      if (old[i].key != 0) slots[Probe(shard, old[i].key)] = old[i];
    }
    if (old != nullptr) UnmapPages(old, old_capacity * sizeof(Slot));
    return true;
  }

  // Knuth's algorithm R: move back whatever the hole would hide.
  static void Erase(Shard& shard, size_t hole) {
    const size_t mask = shard.capacity - 1;
    for (size_t at = (hole + 1) & mask; shard.slots[at].key != 0; at = (at + 1) & mask) {
      const size_t home = Hash(shard.slots[at].key) & mask;
      if (((at - home) & mask) >= ((at - hole) & mask)) {
        shard.slots[hole] = shard.slots[at];
        hole = at;
      }
    }
    shard.slots[hole].key = 0;
    --shard.count;
  }

  Shard shards_[kShards];
};

}  // namespace prorata::client
