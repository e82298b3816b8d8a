#pragma once

// The registry of physical device memory (cuMemCreate): what holds each allocation, and so when its
// charge goes. Pure, thread-safe.
//
// The driver keeps the memory while a handle reference (cuMemCreate, cuMemRetainAllocationHandle)
// or a mapping (cuMemMap) is left. So here an allocation is a record with a count of holds, and
// handles and mappings are entries that own holds of it: a handle's entry one for each reference,
// a mapping's entry one. A driver may give a handle's value out again while an older allocation
// lives on through its mappings; so entries name the record by a number that is never used twice.
//
// Invariants, A and B on the side of the charge that cannot be too low:
//   A. A hold is taken before the driver call that needs it (Hold*), and either handed to an entry
//      after it succeeded (Put*) or dropped after it failed (Drop).
//   B. An entry's hold is dropped after the driver call that ended it succeeded, never before. A
//      call that failed changes nothing.
//   C. No lock across a driver call. What keeps one call from undoing another's work is the order
//      of the stamps: a call that ends something draws its stamp before the driver call, an entry
//      is stamped after the driver call that made it, and the former ends only what was stamped
//      before it (it takes earlier entries and leaves later ones).
//
// Two threads at one address (or one handle value, which reads the same):
//   unmap    stamp 5; driver unmaps;                                  Unmapped(5): see below
//   map                              driver maps; PutMapping, stamp 6
// The map found the older entry and dropped its hold, for the driver would not have mapped there
// were it still mapped. Unmapped(5) finds stamp 6 and leaves it. In the other order of the last two
// steps the unmap drops the older entry itself. Each hold is dropped once, whichever comes first.
// Two unmaps of one mapping: the driver lets one succeed, and only that one touches the registry.
// Release against retain of one handle value: both change one count under one lock, in either
// order; the record lives meanwhile by the mapping that was asked, held since before the call (A).
//
// Assumed: no thread ends what another is still making (an unmap of an address whose cuMemMap has
// not returned yet). Where one does, the entry stays and the charge is too high until the address
// is mapped anew. A thread that retains at an address which another remaps cannot know itself which
// allocation it gets, nor do we.
//
// Sparse arrays (cuMemMapArrayAsync) and multicast objects keep what is bound to them: an entry by
// owner and record owns a hold until the owner is gone. Unbinding drops nothing: what an owner
// once had is charged until its end, at most too high.
//
// What came from another process (an import) is a record without bytes: its maker pays (sharing.h),
// or, where nobody in the share is known to, each mapping of it is charged by its own size.
//
// Unknown here, and passed through: what was made before this process joined, memory of the host.
// Not held here: an exported descriptor, which keeps memory by itself, in a socket's buffer too.
//
// Lock order: a shard of the handles, mappings or keeps, then a shard of the records.

#include <atomic>

#include "client/platform/table.h"

namespace prorata::client {

struct Physical {
  uint64_t bytes = 0;  // charged
  uint64_t holds = 0;
  uint64_t number = 0;   // shared with other processes: sharing.h
  uint32_t device = 0;   // index in the limits file
  bool foreign = false;  // imported, and nobody in the share is known to pay
};

class PhysicalRegistry {
 public:
  // What a caller must give back, when there is a `record`: it is no more.
  struct Gone {
    uint64_t bytes = 0;
    uint32_t device = 0;
    uint64_t record = 0;
    uint64_t number = 0;
  };

  // A stamp for Released or Unmapped, drawn before the driver call.
  uint64_t Stamp() { return clock_.fetch_add(1) + 1; }

  // A record with one hold, the caller's; 0: no memory for it.
  uint64_t Make(uint32_t device, uint64_t bytes, uint64_t number = 0, bool foreign = false);
  // Of a record that the caller holds.
  Physical Look(uint64_t record);
  void SetNumber(uint64_t record, uint64_t number);
  // The record behind a handle, or behind the mapping that covers an address, held once more; 0:
  // unknown.
  uint64_t HoldHandle(uint64_t handle);
  uint64_t HoldMapped(uint64_t address);
  uint64_t HoldNumber(uint64_t number);
  // Drops holds of a record. *gone: the record's charge if they were the last.
  void Drop(uint64_t record, uint64_t holds, Gone* gone);

  // Hands the caller's hold to a handle reference, or to the mapping of [address, address + bytes).
  // False: no memory; the hold is still the caller's. *gone: an allocation that the driver let go
  // of without our having seen the end of it.
  bool PutHandle(uint64_t handle, uint64_t record, Gone* gone);
  bool PutMapping(uint64_t address, uint64_t bytes, uint64_t record, Gone* gone);

  // Hands the caller's hold to what keeps the record: a sparse array, or the record of a multicast
  // object. `owner` is any number but 0 that is its own.
  bool PutKept(uint64_t owner, uint64_t record);
  // The owner is gone. gone(const Gone&) as for Unmapped.
  template <typename F>
  void OwnerGone(uint64_t owner, F&& gone) {
    if (kept_.load() == 0) return;
    keeps_.ForEach([&](uint64_t, const Kept& kept) {
      if (kept.owner != owner) return true;
      Gone ended;
      Drop(kept.record, 1, &ended);
      if (ended.record != 0) gone(ended);
      kept_.fetch_sub(1);
      return false;
    });
  }

  // cuMemRelease succeeded: one reference less.
  void Released(uint64_t handle, uint64_t stamp, Gone* gone);

  // cuMemUnmap succeeded: the mappings that start in the range are no more. gone(const Gone&) for
  // each allocation that ends; it may run under locks of the tables, so it must only count.
  template <typename F>
  void Unmapped(uint64_t address, uint64_t bytes, uint64_t stamp, F&& gone) {
    if (UnmapInARow(&address, &bytes, stamp, gone)) return;
    mappings_.ForEach([&](uint64_t key, const Mapping& mapping) {
      if (key - address >= bytes || mapping.stamp > stamp) return true;
      DropMapping(mapping, gone);
      return false;
    });
  }

 private:
  struct Handle {
    uint64_t record = 0;
    uint64_t references = 0;
    uint64_t stamp = 0;
  };
  struct Mapping {
    uint64_t record = 0;
    uint64_t bytes = 0;
    uint64_t stamp = 0;
  };

  struct Kept {
    uint64_t owner = 0;
    uint64_t record = 0;
  };

  // The common case without a look at the whole table: known mappings that adjoin. False: there is
  // a hole, or a mapping made since; *address and *bytes are then what is left.
  template <typename F>
  bool UnmapInARow(uint64_t* address, uint64_t* bytes, uint64_t stamp, F&& gone) {
    while (*bytes > 0) {
      Mapping mapping;
      bool ended = false;
      mappings_.Find(*address, [&](const Mapping& found) {
        ended = found.stamp <= stamp && found.bytes <= *bytes;
        if (ended) mapping = found;
        return !ended;
      });
      if (!ended) return false;
      DropMapping(mapping, gone);
      *address += mapping.bytes;
      *bytes -= mapping.bytes;
    }
    return true;
  }

  template <typename F>
  void DropMapping(const Mapping& mapping, F&& gone) {
    Gone ended;
    Drop(mapping.record, 1, &ended);
    if (ended.record != 0) gone(ended);
  }

  void HoldRecord(uint64_t record);

  std::atomic<uint64_t> clock_{0};
  std::atomic<uint64_t> last_record_{0};
  Table<Physical> records_;
  Table<Handle> handles_;    // by KeyOf(handle)
  Table<Mapping> mappings_;  // by address
  Table<Kept> keeps_;        // by both
  std::atomic<uint64_t> kept_{0};
};

}  // namespace prorata::client
