#pragma once

// What this layer needs done by those above it, which it does not include: filled in by
// entry/duties.cc.

#include <cstdint>

#include "wire/messages.h"

namespace prorata::client {

struct Duties {
  // Has fork() call what must be forgotten in the child. Before this process waits for another of
  // its threads: a child that is forked meanwhile has no such thread.
  void (*watch_forks)();
  // The helper thread's work; does not return.
  void (*help)();
  // What the agent sent, on the helper thread: the measured overhead of a device, ...
  void (*overhead_measured)(uint32_t device, uint64_t overhead_bytes);
  // ... the answer to an opening of shared memory that the process holds now, ...
  void (*opening_answered)(const wire::MemoryAnswer& answer);
  // ... one that nobody waits for any more, ...
  void (*opening_unwanted)(const wire::MemoryAnswer& answer);
  // ... and the charge of shared memory that its owner gave up.
  void (*take_memory)(uint64_t number);
};
extern const Duties kDuties;

}  // namespace prorata::client
