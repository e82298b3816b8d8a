// The program's own synchronisation proves that what it waited for is done: without another call of
// the driver. What was launched meanwhile, by other threads, it says nothing of. And the driver
// gives back what its memory pools do not keep (pools.h).

#include "client/compute/library_world.h"
#include "client/entry/contexts.h"
#include "client/memory/pools.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

template <typename Call>
CUresult SynchronizeStream(CUstream stream, bool per_thread, Call&& call) {
  if (Live() != kGoverned) return call();
  StreamRecord* const record = FindStream(stream, per_thread, false);
  if (record == nullptr || record->busy.load() == 0) return call();
  auto tracker = Tracker();
  const auto mark = tracker.Mark(record);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) tracker.Proven(record, mark);
  return result;
}

// A green context's synchronisation waits for its own streams, and they are records of the primary
// context: then it proves nothing.
template <typename Call>
CUresult SynchronizeContext(CUcontext context, Call&& call) {
  if (Live() != kGoverned || g_green_contexts.load() != 0) return call();
  ContextWork* const work = FindWork(context);
  if (work == nullptr) return call();
  auto tracker = Tracker();
  const uint64_t epoch = tracker.MarkContext(work);
  const CUresult result = call();
  if (epoch != 0) tracker.ContextProven(work, epoch, result == CUDA_SUCCESS);
  return result;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuStreamSynchronize(CUstream hStream) {
  return Synchronized(SynchronizeStream(
      hStream, false, [&] { return PRORATA_REAL(cuStreamSynchronize)(hStream); }));
}

CUresult cuStreamSynchronize_ptsz(CUstream hStream) {
  return Synchronized(SynchronizeStream(
      hStream, true, [&] { return PRORATA_REAL(cuStreamSynchronize_ptsz)(hStream); }));
}

CUresult cuCtxSynchronize() {
  return Synchronized(SynchronizeContext(nullptr, [] { return PRORATA_REAL(cuCtxSynchronize)(); }));
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  return Synchronized(
      SynchronizeContext(ctx, [&] { return PRORATA_REAL(cuCtxSynchronize_v2)(ctx); }));
}
