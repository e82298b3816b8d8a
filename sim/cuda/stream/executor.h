#pragma once

#include <cstdint>
#include <functional>

#include "sim/core/types.h"
#include "sim/cuda/state.h"

// The executor: a thread of the process that does what the machine cannot, when its time has come:
// moves copied bytes and runs host kernels, one after the other in the order of model time. A
// second one calls the program's host functions in that order, for while one runs what stands in
// other streams goes on. Each exists only once something needs it, and has all signals blocked: it
// must never run a handler of the program.

namespace prorata::simgpu::driver {

// True: done. False: not yet (a wait for a word of memory); it is asked again soon, and the thread
// does other things meanwhile.
using ActionFunction = std::function<bool(const Action&)>;

enum class RunsOn { kExecutor, kHostThread };  // which of the two

// Registers what to do for a token; the token is never 0, or 0 when the thread cannot be started.
// The function runs on that thread, without any lock held.
uint64_t AddAction(Context* ctx, ActionFunction function, RunsOn thread = RunsOn::kExecutor);
// Forgets an action that was not submitted.
void DropAction(uint64_t token);
// On the executor's thread: forgets all actions of a context in error, those not submitted yet,
// too. Each is called a last time, so that who must hear of the error does.
void RunOutActions(Context* ctx);
// Forgets all actions of a context whose work the machine dropped; returns when none is running.
void DropActions(Context* ctx);

}  // namespace prorata::simgpu::driver
