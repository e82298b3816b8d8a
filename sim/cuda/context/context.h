#pragma once

#include <mutex>

#include "sim/cuda/state.h"

namespace prorata::simgpu::driver {

using Lock = std::unique_lock<std::mutex>;

inline CUcontext HandleOf(Context* ctx) { return reinterpret_cast<CUcontext>(ctx); }
inline Context* ContextOf(CUcontext ctx) { return reinterpret_cast<Context*>(ctx); }

// Makes the context live: costs the device its context memory. D().mutex held.
CUresult OpenContext(Context* ctx);
// Ends it: runs the destructors of its local storage, waits for its work, frees what it had. The
// lock is let go meanwhile.
void CloseContext(Context* ctx, Lock* lock);
// The context of a handle: CUDA_ERROR_INVALID_CONTEXT, or CONTEXT_IS_DESTROYED for one that was.
// Null means the current one; a green context stands for its primary one. D().mutex held.
CUresult LiveContext(CUcontext handle, Context** out);
// The same, where it matters which of the two it is: a green one's view.
CUresult NamedContext(CUcontext handle, Context** out);

// Makes the primary context if nobody holds it, and holds it. D().mutex held.
CUresult RetainPrimary(int device);
// Ends it with its last holder; there must be one. The lock is let go meanwhile.
void ReleasePrimary(int device, Lock* lock);

// The same, for making it current: a primary context may be dead then. cudart (13.0) makes it
// current first and retains it after.
CUresult ContextForStack(CUcontext handle, Context** out);

// A new stream of the machine and its record; on the SMs of a green context of `ctx`, if that is
// given. D().mutex held.
CUresult NewStream(Context* ctx, StreamKind kind, unsigned flags, int priority, StreamRef* out,
                   Green* green = nullptr);

inline constexpr int kLowestPriority = 0;
inline constexpr int kHighestPriority = -5;  // H100: cuCtxGetStreamPriorityRange gives 0 to -5

// Flags that a context may have: known ones, and one way of waiting at most.
inline bool ContextFlagsAreValid(unsigned flags) {
  const unsigned wait = flags & CU_CTX_SCHED_MASK;
  return (flags & ~unsigned{CU_CTX_FLAGS_MASK}) == 0 && (wait & (wait - 1)) == 0;
}

// A live context of this process on the device, the primary one if it lives; null when there is
// none. Memory that belongs to no context is held by it. D().mutex held.
Context* HolderFor(int device);

}  // namespace prorata::simgpu::driver
