#pragma once

// Contexts: their overhead is charged, and everything that lives in one goes with it.
//
// A context is known from its creation (cuCtxCreate*, cuDevicePrimaryCtxRetain) to its end. The
// driver says whether a primary context is active; nobody counts references but the driver.
//
// Primary contexts. Retains, releases and resets race with each other, and the driver's answer to
// "active?" is old when it arrives. So every one of them is bracketed, Begin before the driver call
// and Settle after it:
//
//   Begin    lock; changing++; generation++; unlock
//   Settle   note the generation; ask the driver: active?; lock; if the generation moved, or
//            another is between Begin and Settle, leave it to that other one (it comes after us and
//            asks again); else make the registry agree: charged <=> active
//
// Whoever leaves last sees the state that all of them produced together.

#include <cstdint>

#include "client/session/driver_functions.h"
#include "client/session/known_contexts.h"

namespace prorata::client {

// Reserves the overhead of one context and starts what contexts need (helper). CUDA_SUCCESS, or why
// not. *reserved_bytes goes to ContextMade or ContextFailed.
CUresult ReserveContext(uint32_t device, uint64_t* reserved_bytes);
void ContextFailed(uint32_t device, uint64_t reserved_bytes);
// The context exists: tells the agent, which measures what it took.
void ContextMade(CUcontext context, uint32_t device, uint64_t reserved_bytes);

// The end of a context that cuCtxCreate* made, around the driver's call.
struct ContextEnd {
  CUcontext context;
  uint32_t work;  // the number of its work's ending
  uint32_t device;
  bool known, charged;
  uint32_t attached;
};
ContextEnd ContextEnding(CUcontext context);
void ContextEnded(const ContextEnd& end, bool success);

// cuCtxAttach makes a context outlive so many of cuCtxDetach. Whether this detach ends it.
void ContextAttached(CUcontext context);
bool LastDetach(CUcontext context);

// Green contexts hold the primary context of their device, and what is allocated in one is the
// primary's.
CUresult CreateGreen(CUgreenCtx* green, CUdevice ordinal, CUresult (*call)(void*), void* data);
void ContextFromGreen(CUcontext context, CUgreenCtx green);
CUresult DestroyGreen(CUgreenCtx green);

CUresult RetainPrimary(CUcontext* context, CUdevice ordinal);
// Releases or resets, by `call`.
CUresult EndPrimary(CUdevice ordinal, CUresult (*call)(CUdevice));

}  // namespace prorata::client
