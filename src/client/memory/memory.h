#pragma once

// What the allocation calls have in common: reserve before the driver call, account for what came
// of it, give back after a free. Thread-safe; no lock is held across a driver call.
//
// Lock order: a shard of the allocations, then a shard of the slabs or the lock of a pool.

#include <cstdint>

#include "client/memory/allocations.h"
#include "client/memory/in_flight.h"
#include "client/session/captures.h"
#include "client/session/driver_functions.h"
#include "client/session/known_contexts.h"

namespace prorata::client {

// The device whose pools a stream-ordered allocation in `stream` takes from: the stream's, whatever
// context is current.
uint32_t DeviceOfStream(CUstream stream, const Place& current);

// What to reserve for `bytes` of plain memory: a slab for what is carved from one, else whole
// slabs.
uint64_t ReserveFor(uint64_t bytes);

// Accounts for plain memory that the driver gave, `reserved` being charged already: gives the
// surplus back, or charges what is missing. False: it cannot be accounted for, nothing is charged
// any more, and the caller must give the memory back to the driver.
bool AccountLinear(const Place& place, uint64_t address, uint64_t bytes, uint64_t reserved);

// Accounts for something charged by itself (array, mipmap) or by its pool.
bool AccountWhole(uint64_t key, const Allocation& allocation);

// Forgets what `key` was (kind kNone: unknown), for a free that is about to be tried ...
Allocation ForgetForFree(uint64_t key);
// ... and after the driver's answer: gives the charge back, or remembers it again.
void AfterFree(uint64_t key, const Allocation& allocation, CUresult result);

// Of allocations that others may hold too: the number of `key`'s (0: none), and its setting, false
// when the allocation is gone.
bool FindAllocation(uint64_t key, Allocation* allocation);
uint64_t NumberOfAllocation(uint64_t key);
bool SetNumberOfAllocation(uint64_t key, uint64_t number);

// Runs change(Allocation&), under a lock of the allocations, if `key` is one.
void ChangeAllocation(uint64_t key, void (*change)(Allocation&, void*), void* data);
template <typename Change>
void ChangeAllocation(uint64_t key, Change& change) {
  ChangeAllocation(
      key, [](Allocation& found, void* data) { (*static_cast<Change*>(data))(found); }, &change);
}

// Accounts for another process's memory that was opened: `bytes` are charged for it already, or it
// is held by `number` (0: it is not). False: as AccountLinear.
bool AccountOpened(const Place& place, uint64_t key, uint64_t bytes, uint64_t number);
// As AfterFree, for something that may have been opened several times.
void AfterClose(uint64_t key, Allocation allocation, CUresult result);

// A sparse array or mipmap, by its key, is gone: it keeps nothing any more. May run under a lock of
// the allocations; what others hold too is settled later.
void SparseArrayGone(uint64_t key);

void MarkMemoryOfContext(CUcontext context, bool dying);
void MemoryOfContextGone(CUcontext context);

}  // namespace prorata::client
