#include "simgpu/driver/capture.h"

#include <algorithm>

namespace prorata::simgpu::driver {
namespace {

using CaptureRef = std::shared_ptr<Capture>;

// Whether a capture forbids unsafe calls to a thread; see capture.h.
bool Forbids(const Capture& capture, const Thread& thread) {
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (capture.thread == thread.id && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED) return true;
  return capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
         thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

// A capture on a blocking stream of the context, which the legacy stream would wait for.
CaptureRef BlockingCapture(Context* ctx) {
  for (const CaptureRef& capture : D().captures) {
    for (const Stream* stream : capture->streams) {
      if (stream->ctx == ctx && stream->kind == StreamKind::kBlocking) return capture;
    }
  }
  return nullptr;
}

// Using the legacy stream beside a capture would make it wait for work that never runs.
CUresult CheckImplicit(Stream* stream) {
  if (stream->kind != StreamKind::kLegacy) return CUDA_SUCCESS;
  CaptureRef capture = BlockingCapture(stream->ctx);
  if (!capture) return CUDA_SUCCESS;
  capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

}  // namespace

CUresult CaptureOperation(const StreamRef& stream, StreamOp* operation, bool* captured) {
  std::lock_guard lock(D().mutex);
  if (D().captures.empty()) return CUDA_SUCCESS;
  if (CUresult result = CheckImplicit(stream.get())) return result;
  if (!stream->capture) return CUDA_SUCCESS;
  Capture& capture = *stream->capture;
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  const CUgraphNodeType type = NodeTypeOf(*operation);
  GraphNode* node =
      AddNode(capture.graph.get(), type, std::move(*operation), stream->ctx, stream->captured);
  stream->captured = {node};
  *captured = true;
  return CUDA_SUCCESS;
}

CUresult CheckCaptureSafe() {
  std::lock_guard lock(D().mutex);
  if (D().captures.empty()) return CUDA_SUCCESS;
  const Thread& self = Self();
  bool forbidden = false;
  for (const CaptureRef& capture : D().captures) {
    if (!Forbids(*capture, self)) continue;
    capture->invalidated = true;
    forbidden = true;
  }
  return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult CheckNotCapturing(Stream* stream) {
  if (D().captures.empty()) return CUDA_SUCCESS;
  if (stream->capture) {
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CheckImplicit(stream);
}

CUresult CheckContextNotCapturing(Context* ctx) {
  bool capturing = false;
  for (const CaptureRef& capture : D().captures) {
    const bool here = std::any_of(capture->streams.begin(), capture->streams.end(),
                                  [&](const Stream* stream) { return stream->ctx == ctx; });
    if (!here) continue;
    capture->invalidated = true;
    capturing = true;
  }
  return capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult RecordEvent(const StreamRef& stream, const EventRef& event, unsigned flags) {
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = CheckImplicit(stream.get())) return result;
    if (stream->capture && !(flags & CU_EVENT_RECORD_EXTERNAL)) {
      if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      event->capture = stream->capture;
      event->captured = stream->captured;
      return CUDA_SUCCESS;
    }
    if (!stream->capture && (flags & CU_EVENT_RECORD_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult result = Enqueue(stream, RecordCall{event})) return result;
  std::lock_guard lock(D().mutex);
  if (!stream->capture) {
    event->capture = nullptr;
    event->captured.clear();
    event->recorded = true;
  }
  return CUDA_SUCCESS;
}

CUresult WaitForEvent(const StreamRef& stream, const EventRef& event, unsigned flags) {
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = CheckImplicit(stream.get())) return result;
    const bool external = (flags & CU_EVENT_WAIT_EXTERNAL) != 0;
    if (!stream->capture && external) return CUDA_ERROR_INVALID_VALUE;
    if (event->capture && !external) {
      if (event->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      // An event of a capture that has ended is a place in a graph that nobody can wait for.
      if (!D().captures.contains(event->capture)) return CUDA_ERROR_CAPTURED_EVENT;
      if (stream->capture && stream->capture != event->capture) {
        stream->capture->invalidated = true;
        event->capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
      }
      if (stream->kind == StreamKind::kLegacy) {
        event->capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
      stream->capture = event->capture;
      stream->capture->streams.insert(stream.get());
      for (GraphNode* node : event->captured) {
        if (std::find(stream->captured.begin(), stream->captured.end(), node) ==
            stream->captured.end()) {
          stream->captured.push_back(node);
        }
      }
      return CUDA_SUCCESS;
    }
    if (stream->capture && !external) {
      // Captured work cannot wait for work outside; a record that never was is nothing to wait for.
      if (!event->recorded) return CUDA_SUCCESS;
      stream->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
  }
  return Enqueue(stream, WaitCall{event});
}

void DropCaptures(Context* ctx) {
  for (auto capture = D().captures.begin(); capture != D().captures.end();) {
    const bool here = std::any_of((*capture)->streams.begin(), (*capture)->streams.end(),
                                  [&](const Stream* stream) { return stream->ctx == ctx; });
    if (!here) {
      ++capture;
      continue;
    }
    (*capture)->invalidated = true;
    for (Stream* stream : (*capture)->streams) {
      stream->capture = nullptr;
      stream->captured.clear();
    }
    capture = D().captures.erase(capture);
  }
}

}  // namespace prorata::simgpu::driver
