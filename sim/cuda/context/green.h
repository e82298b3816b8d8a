#pragma once

#include <map>
#include <vector>

#include "sim/cuda/context/context.h"
#include "sim/cuda/state.h"

// Green contexts: a part of a device's SMs, and streams whose kernels run on that part only.
//
// A green context holds the primary context of its device, and everything but streams is that
// one's: memory, code, events. So in this driver a green context is no Context of its own but a
// view of the primary one: current to a thread, it makes the thread's context the primary one
// (EnterContext, LiveContext) and its default streams those of the view (FindStream). To the
// machine its streams are the primary context's, confined to some SMs (StreamPart).

namespace prorata::simgpu::driver {

struct Green {
  Context* primary = nullptr;  // not `view` first: the two handles of it must differ
  // The CUcontext of it. Alive until it is destroyed or the primary context is taken apart.
  Context view;
  bool alive = true;  // not destroyed yet
  SmSet sms;
  StreamRef legacy;
  std::map<uint64_t, StreamRef> per_thread;  // by Thread::id
  // Streams of its own behind cuGreenCtxWaitEvent and cuGreenCtxRecordEvent. `gate` waits for one
  // event after the other, and all that is submitted later waits for it to have passed `gated`;
  // `collector` waits for what was submitted, streams destroyed since included.
  StreamRef gate;
  StreamRef collector;
  uint64_t gated = 0;
};

inline CUgreenCtx HandleOf(Green* green) { return reinterpret_cast<CUgreenCtx>(green); }

// All of these need D().mutex.
//
// CUDA_ERROR_INVALID_CONTEXT for what is none, CONTEXT_IS_DESTROYED for one that was.
CUresult LiveGreen(CUgreenCtx handle, Green** out);
// The one that is current to the thread and alive; null when there is none.
Green* CurrentGreen();
// The SMs that a stream's kernels may use.
uint32_t SmsOf(const Stream& stream);
// Its streams, default ones included.
std::vector<StreamRef> StreamsOf(const Green& green);
// A stream of it was made: it comes after what the context waits for.
CUresult JoinGreen(const Stream& stream);
// A stream of it is about to be destroyed: what was submitted to it still counts as the context's.
void LeaveGreen(const Stream& stream);
// The primary context is being taken apart, and with it the streams of its green contexts.
void EndGreens(const Context* primary);

}  // namespace prorata::simgpu::driver
