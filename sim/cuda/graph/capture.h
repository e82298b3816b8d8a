#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "sim/cuda/graph/graph.h"
#include "sim/cuda/state.h"
#include "sim/cuda/stream/operation.h"

namespace prorata::simgpu::driver {

// One stream capture: from cuStreamBeginCapture on its origin to cuStreamEndCapture there. Other
// streams join by waiting for an event that was recorded in it.
struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t thread = 0;  // Thread::id of the thread that began it
  bool invalidated = false;
  Stream* origin = nullptr;
  std::shared_ptr<Graph> graph;
  bool graph_is_callers = false;  // cuStreamBeginCaptureToGraph: survives an invalid capture
  std::set<Stream*> streams;      // that take part
};

// If the stream is capturing: adds the operation to its graph and says so. Submitting to the legacy
// stream while a blocking stream of its context captures is refused and invalidates the capture.
// D().mutex not held.
CUresult CaptureOperation(const StreamRef& stream, StreamOp* operation, bool* captured);

// The same for a graph that is launched: it becomes a child graph of the capture's. `graph` is read
// under D().mutex.
CUresult CaptureGraph(const StreamRef& stream, const std::shared_ptr<Graph>& graph, bool* captured);

// What calls that could disturb a capture check (cuMemAlloc, cuEventQuery, ...): refused with
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the captures in question become invalid, if
//   A. the calling thread began a capture that is not relaxed, or
//   B. any thread began a global one and the calling thread's own mode is global,
// unless the calling thread's mode is relaxed (cuThreadExchangeStreamCaptureMode).
// D().mutex not held.
CUresult CheckCaptureSafe();

// For calls that look at one stream or wait for it: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the
// capture is invalid, when it is capturing; CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for the legacy
// stream beside a capturing one. D().mutex held.
CUresult CheckNotCapturing(Stream* stream);
// For calls that ask the stream about captures, which the legacy stream cannot answer beside that
// of a blocking stream: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, and no capture is invalidated by it.
CUresult CheckLegacyUsable(const Stream& stream);
// For calls that ask or wait for an event: one whose last record was captured stands for a place in
// a graph, not in time. CUDA_ERROR_CAPTURED_EVENT then, and its capture is invalid.
CUresult CheckNotCaptured(Event* event);
// Takes all its streams out of it. D().mutex held.
void EndCapture(const std::shared_ptr<Capture>& capture);
// For calls that wait for a whole context, or for a green one of it.
CUresult CheckContextNotCapturing(Context* ctx, const Green* green = nullptr);
// The stream goes: it is taken out of its capture, which is invalid, and ended if it began there.
void LeaveCapture(Stream* stream);

// The event is to be recorded: what is known of its last record is not true of the next. D().mutex
// held.
void ForgetOrder(Event* event);
// Event record and wait, captured or not. D().mutex not held.
CUresult RecordEvent(const StreamRef& stream, const EventRef& event, unsigned flags);
CUresult WaitForEvent(const StreamRef& stream, const EventRef& event, unsigned flags);

// The context goes: captures on its streams end. D().mutex held.
void DropCaptures(Context* ctx);

}  // namespace prorata::simgpu::driver
