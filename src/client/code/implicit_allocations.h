#pragma once

// Calls that take device memory and do not say how much: loading code, larger heaps and stacks.
// What is expected is reserved before the call. After it the agent compares what NVML says of the
// process with what is charged for it; what the call took is charged then, to what it made, and if
// the share cannot cover it the call is undone: only for its own length more was taken than the
// share has.
//
// What other threads have reserved and not yet taken makes the figure too small, and it is none
// when they charge at the same moment. What was expected stays charged then: it is given back only
// by a figure taken while this thread alone was moving memory (in_flight.h). What is missing is
// counted by the next such call, with what was taken implicitly meanwhile: code that is loaded
// lazily, at its first launch, which must not wait for an answer.

#include <cstdint>

#include "client/memory/memory.h"
#include "client/session/driver_functions.h"

namespace prorata::client {

struct ImplicitCall {
  CUresult (*call)(void*);
  void (*undo)(void*);
  uint64_t (*key)(void*);  // what the charge is remembered by, after the call (allocations.h)
  void* data;
};
// `certain_bytes` of those expected are what the call takes for certain: they stay charged whatever
// is measured.
CUresult TakeImplicit(const Place& place, uint64_t expected_bytes, uint64_t certain_bytes,
                      const ImplicitCall& implicit);

// Heaps that the next code loaded into a context makes larger.
void ExpectHeap(uint32_t device, uint64_t bytes);
uint64_t TakeExpectedHeaps(uint32_t device);

}  // namespace prorata::client
