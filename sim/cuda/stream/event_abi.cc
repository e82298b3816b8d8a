// Events.

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/pool.h"
#include "sim/cuda/stream/call_time.h"
#include "sim/cuda/stream/operation.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult LookupEvent(CUevent handle, EventRef* event) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  if (CUresult result = FindEvent(handle, event)) return result;
  return ErrorOf(*(*event)->ctx);
}

CUresult LookupOutsideCapture(CUevent handle, EventRef* event) {
  if (CUresult result = LookupEvent(handle, event)) return result;
  std::lock_guard lock(D().mutex);
  return CheckNotCaptured(event->get());
}

CUresult Record(CUevent handle, CUstream stream_handle, unsigned flags, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  EventRef event;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindEvent(handle, &event)) return result;
    if (CUresult result = FindStream(stream_handle, per_thread, ctx, &stream)) return result;
    if (event->ctx != stream->ctx && !Broken(Rule::kRecordIsOfItsContext))
      return CUDA_ERROR_INVALID_HANDLE;
  }
  return RecordEvent(stream, event, flags);
}

}  // namespace

CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (!phEvent || (Flags & ~kKnown)) return CUDA_ERROR_INVALID_VALUE;
  if ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(D().mutex);
  auto handle = D().machine->CreateEvent(ctx->handle);
  if (!handle) return FromCode(handle.error());
  auto event = std::make_shared<Event>();
  event->ctx = ctx;
  event->handle = *handle;
  event->flags = Flags;
  *phEvent = reinterpret_cast<CUevent>(event.get());
  D().events[event.get()] = std::move(event);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  EventRef event;
  if (CUresult result = FindEvent(hEvent, &event)) return result;
  D().events.erase(hEvent);
  if (event->share != 0) return FromCode(D().machine->CloseEvent(event->handle, event->share));
  return FromCode(D().machine->DestroyEvent(event->handle));
}
CUresult cuEventDestroy(CUevent hEvent) { return cuEventDestroy_v2(hEvent); }

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
  return Record(hEvent, hStream, 0, false);
}
CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream) {
  return Record(hEvent, hStream, 0, true);
}
CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return Record(hEvent, hStream, flags, false);
}
CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return Record(hEvent, hStream, flags, true);
}

CUresult cuEventQuery(CUevent hEvent) {
  const CallTime call_time;
  EventRef event;
  if (CUresult result = CheckCaptureSafe()) return result;
  if (CUresult result = LookupOutsideCapture(hEvent, &event)) return result;
  if (Broken(Rule::kEventQueryTellsPending)) return CUDA_SUCCESS;
  if (Broken(Rule::kUnrecordedIsComplete) && !event->recorded) return CUDA_ERROR_NOT_READY;
  if (CUresult result = FromCode(D().machine->QueryEvent(event->handle))) return result;
  return ErrorOf(*event->ctx);
}

CUresult cuEventSynchronize(CUevent hEvent) {
  EventRef event;
  if (CUresult result = CheckCaptureSafe()) return result;
  if (CUresult result = LookupOutsideCapture(hEvent, &event)) return result;
  if (Broken(Rule::kEventSynchronizeWaits)) return CUDA_SUCCESS;
  if (CUresult result = FromCode(D().machine->WaitEvent(event->handle))) return result;
  if (CUresult result = ErrorOf(*event->ctx)) return result;
  AfterSynchronize(event->ctx);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  const CallTime call_time;
  EventRef start;
  EventRef end;
  if (CUresult result = LookupEvent(hStart, &start)) return result;
  if (CUresult result = LookupEvent(hEnd, &end)) return result;
  if (!pMilliseconds) return CUDA_ERROR_INVALID_VALUE;
  if (start->capture || end->capture) return CUDA_ERROR_CAPTURED_EVENT;
  const bool timed =
      Broken(Rule::kElapsedNeedsTiming) || !((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING);
  if (!timed || !start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
  auto elapsed = D().machine->ElapsedNs(start->handle, end->handle);
  if (!elapsed && Broken(Rule::kElapsedNeedsCompletion)) return *pMilliseconds = 0, CUDA_SUCCESS;
  if (!elapsed) return FromCode(elapsed.error());
  *pMilliseconds = static_cast<float>(static_cast<double>(*elapsed) / 1e6);
  return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}
