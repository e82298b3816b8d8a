#include "sim/cuda/graph/capture.h"

#include <algorithm>

namespace prorata::simgpu::driver {
namespace {

// Streams that a stream's order is known against; beyond, it starts anew.
constexpr size_t kMaxRemembered = 256;

using CaptureRef = std::shared_ptr<Capture>;

// Whether a capture forbids unsafe calls to a thread; see capture.h.
bool Forbids(const Capture& capture, const Thread& thread) {
  constexpr CUstreamCaptureMode kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
  constexpr CUstreamCaptureMode kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  const auto mode = Broken(Rule::kThreadModeIsHeeded) ? kGlobal : thread.capture_mode;
  const auto begun =
      Broken(Rule::kRelaxedForbidsNothing) && capture.mode == kRelaxed ? kGlobal : capture.mode;
  if (mode == kRelaxed) return false;
  if (capture.thread == thread.id) {
    return begun != kRelaxed && !Broken(Rule::kCaptureForbidsItsThread);
  }
  return begun == kGlobal && mode == kGlobal && !Broken(Rule::kGlobalForbidsAllThreads);
}

// A capture on a blocking stream of the context, which the legacy stream would wait for.
CaptureRef BlockingCapture(const Stream& legacy) {
  for (const CaptureRef& capture : D().captures) {
    for (const Stream* stream : capture->streams) {
      const bool waited_for =
          stream->kind == StreamKind::kBlocking || Broken(Rule::kNonBlockingIsNotImplicit);
      const bool beside = stream->ctx == legacy.ctx && stream->green == legacy.green;
      if (beside && waited_for) return capture;
    }
  }
  return nullptr;
}

// Using the legacy stream beside a capture would make it wait for work that never runs.
CUresult CheckImplicit(Stream* stream) {
  if (stream->kind != StreamKind::kLegacy) return CUDA_SUCCESS;
  if (Broken(Rule::kLegacyIsImplicit)) return CUDA_SUCCESS;
  CaptureRef capture = BlockingCapture(*stream);
  if (!capture) return CUDA_SUCCESS;
  capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

}  // namespace

namespace {

// Adds a node where the stream is, if it is capturing. D().mutex held.
CUresult CaptureNode(Stream* stream, CUgraphNodeType type, const StreamOp& operation,
                     GraphNode** node) {
  if (D().captures.empty()) return CUDA_SUCCESS;
  if (CUresult result = CheckImplicit(stream)) return result;
  if (!stream->capture) return CUDA_SUCCESS;
  Capture& capture = *stream->capture;
  if (capture.invalidated && !Broken(Rule::kInvalidRefusesWork)) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *node = AddNode(capture.graph.get(), type, operation, stream->ctx, stream->captured);
  stream->captured = {*node};
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CaptureOperation(const StreamRef& stream, StreamOp* operation, bool* captured) {
  std::lock_guard lock(D().mutex);
  GraphNode* node = nullptr;
  const CUgraphNodeType type = NodeTypeOf(*operation);
  if (CUresult result = CaptureNode(stream.get(), type, *operation, &node)) return result;
  if (!node) return CUDA_SUCCESS;
  // A replay keeps the priority if it is asked to (CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY).
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
    node->attributes[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority = stream->priority;
  }
  *captured = !Broken(Rule::kCaptureDoesNotRun);
  return CUDA_SUCCESS;
}

CUresult CaptureGraph(const StreamRef& stream, const std::shared_ptr<Graph>& graph,
                      bool* captured) {
  std::lock_guard lock(D().mutex);
  GraphNode* node = nullptr;
  if (CUresult result = CaptureNode(stream.get(), CU_GRAPH_NODE_TYPE_GRAPH, EmptyCall{}, &node)) {
    return result;
  }
  if (!node) return CUDA_SUCCESS;
  node->ctx = nullptr;
  SetChild(node, CloneGraph(*graph));
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
    if (!Broken(Rule::kUnsafeInvalidates)) capture->invalidated = true;
    forbidden = true;
  }
  return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult CheckNotCapturing(Stream* stream) {
  if (D().captures.empty()) return CUDA_SUCCESS;
  if (stream->capture) {
    if (Broken(Rule::kCapturingStreamHasNoState)) return CUDA_SUCCESS;
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CheckImplicit(stream);
}

CUresult CheckLegacyUsable(const Stream& stream) {
  if (stream.kind != StreamKind::kLegacy) return CUDA_SUCCESS;
  CaptureRef capture = BlockingCapture(stream);
  if (!capture) return CUDA_SUCCESS;
  if (Broken(Rule::kAskingInvalidatesNothing)) capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult CheckNotCaptured(Event* event) {
  if (!event->capture || Broken(Rule::kCapturedEventHasNoState)) return CUDA_SUCCESS;
  if (!Broken(Rule::kCapturedEventInvalidates)) event->capture->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

void EndCapture(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    if (stream != capture->origin && Broken(Rule::kEndFreesJoinedStreams)) continue;
    stream->capture = nullptr;
    stream->captured.clear();
  }
  capture->streams.clear();
  D().captures.erase(capture);
}

void LeaveCapture(Stream* stream) {
  if (!stream->capture) return;
  const CaptureRef capture = stream->capture;
  capture->invalidated = true;
  capture->streams.erase(stream);
  stream->capture = nullptr;
  stream->captured.clear();
  // Nobody else can end it.
  if (capture->origin == stream) EndCapture(capture);
}

CUresult CheckContextNotCapturing(Context* ctx, const Green* green) {
  if (Broken(Rule::kCapturingContextHasNoState)) return CUDA_SUCCESS;
  bool capturing = false;
  for (const CaptureRef& capture : D().captures) {
    const bool here =
        std::any_of(capture->streams.begin(), capture->streams.end(), [&](const Stream* stream) {
          return stream->ctx == ctx && (!green || stream->green == green);
        });
    if (!here) continue;
    capture->invalidated = true;
    capturing = true;
  }
  return capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

void ForgetOrder(Event* event) {
  event->after.clear();
  ++event->records;
}

CUresult RecordEvent(const StreamRef& stream, const EventRef& event, unsigned flags) {
  StreamClock after;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = CheckImplicit(stream.get())) return result;
    ForgetOrder(event.get());
    after = stream->after;
    const bool external =
        (flags & CU_EVENT_RECORD_EXTERNAL) != 0 && !Broken(Rule::kExternalIsANode);
    if (stream->capture && !external) {
      if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      event->capture = stream->capture;
      event->captured = stream->captured;
      return CUDA_SUCCESS;
    }
    if (!stream->capture && external) return CUDA_ERROR_ILLEGAL_STATE;
  }
  uint64_t sequence = 0;
  if (CUresult result = Enqueue(stream, RecordCall{event}, &sequence)) return result;
  std::lock_guard lock(D().mutex);
  if (!stream->capture) {
    if (sequence != 0 && !(event->flags & CU_EVENT_INTERPROCESS)) {
      event->after = std::move(after);
      event->after[stream->handle] = sequence;
    }
    event->capture = nullptr;
    event->captured.clear();
    event->recorded = true;
  }
  return CUDA_SUCCESS;
}

CUresult WaitForEvent(const StreamRef& stream, const EventRef& event, unsigned flags) {
  StreamClock after;
  uint64_t records;
  {
    std::lock_guard lock(D().mutex);
    after = event->after;
    records = event->records;
    if (CUresult result = CheckImplicit(stream.get())) return result;
    const bool external = (flags & CU_EVENT_WAIT_EXTERNAL) != 0;
    if (!stream->capture && external) return CUDA_ERROR_ILLEGAL_STATE;
    if (event->capture && !external) {
      if (event->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      // An event of a capture that has ended is a place in a graph that nobody can wait for.
      if (!D().captures.contains(event->capture)) return CUDA_ERROR_CAPTURED_EVENT;
      if (stream->capture && stream->capture != event->capture) {
        if (Broken(Rule::kCapturesDoNotMerge)) return CUDA_SUCCESS;
        stream->capture->invalidated = true;
        event->capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
      }
      if (stream->kind == StreamKind::kLegacy) {
        event->capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
      if (!stream->capture && Broken(Rule::kWaitJoinsTheCapture)) return CUDA_SUCCESS;
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
      if (Broken(Rule::kCaptureIsIsolated)) return CUDA_SUCCESS;
      stream->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
  }
  if (Broken(Rule::kEventWaitIsOnTheDevice)) D().machine->WaitEvent(event->handle);
  if (CUresult result = Enqueue(stream, WaitCall{event})) return result;
  std::lock_guard lock(D().mutex);
  // Not when somebody recorded it meanwhile: the wait may be for either record.
  if (stream->capture || event->records != records) return CUDA_SUCCESS;
  if (stream->after.size() > kMaxRemembered) stream->after.clear();
  for (const auto& [before, sequence] : after) {
    uint64_t& known = stream->after[before];
    known = std::max(known, sequence);
  }
  return CUDA_SUCCESS;
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
