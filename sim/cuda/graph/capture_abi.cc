// Stream capture: begin, end, and what a capturing stream says of itself.

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/capture.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult Begin(CUstream handle, CUstreamCaptureMode mode, bool per_thread,
               std::shared_ptr<Graph> graph, std::vector<GraphNode*> dependencies) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(D().mutex);
  StreamRef stream;
  if (CUresult result = FindStream(handle, per_thread, ctx, &stream)) return result;
  if (stream->kind == StreamKind::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) {
    return Broken(Rule::kBeginNeedsNoCapture) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
  }
  auto capture = std::make_shared<Capture>();
  capture->id = Broken(Rule::kCaptureIdIsUnique) ? 1 : D().next_id++;
  capture->mode = mode;
  capture->thread = Self().id;
  capture->origin = stream.get();
  capture->graph_is_callers = graph != nullptr;
  capture->graph = graph ? std::move(graph) : NewGraph();
  capture->streams.insert(stream.get());
  if (!Broken(Rule::kToGraphDependsOnItsNodes)) stream->captured = std::move(dependencies);
  stream->capture = capture;
  D().captures.insert(std::move(capture));
  return CUDA_SUCCESS;
}

CUresult BeginToGraph(CUstream handle, CUgraph graph_handle, const CUgraphNode* dependencies,
                      size_t count, CUstreamCaptureMode mode, bool per_thread) {
  if (CUresult result = EnterCall()) return result;
  std::shared_ptr<Graph> graph;
  std::vector<GraphNode*> nodes;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindGraph(graph_handle, &graph)) return result;
    if (count > 0 && !dependencies) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      GraphNode* node;
      Graph* owner;
      if (CUresult result = FindNode(dependencies[i], &node, &owner)) return result;
      if (owner != graph.get()) return CUDA_ERROR_INVALID_VALUE;
      nodes.push_back(node);
    }
  }
  return Begin(handle, mode, per_thread, std::move(graph), std::move(nodes));
}

// A branch is joined when its last node is among those that the origin's next node would wait for,
// directly or through others.
bool Unjoined(const Capture& capture) {
  std::set<const GraphNode*> reached;
  std::vector<const GraphNode*> open(capture.origin->captured.begin(),
                                     capture.origin->captured.end());
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (const Stream* stream : capture.streams) {
    for (const GraphNode* node : stream->captured) {
      if (!reached.contains(node)) return true;
    }
  }
  return false;
}

CUresult End(CUstream handle, CUgraph* out, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  StreamRef stream;
  if (CUresult result = FindStream(handle, per_thread, ctx, &stream)) return result;
  if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream.get()) {
    if (Broken(Rule::kOnlyTheOriginEnds)) return CUDA_SUCCESS;
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != Self().id &&
      !Broken(Rule::kOnlyItsThreadEnds)) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->invalidated) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!Broken(Rule::kJoinedIsJoinedBack) && Unjoined(*capture)) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  EndCapture(capture);
  if (!Broken(Rule::kInvalidHasNoGraph)) *out = nullptr;
  if (result != CUDA_SUCCESS) {
    capture->invalidated = true;  // for events that still name it
    if (!capture->graph_is_callers) ForgetNodes(capture->graph.get());
    return result;
  }
  *out = reinterpret_cast<CUgraph>(capture->graph.get());
  D().graphs[capture->graph.get()] = capture->graph;
  return CUDA_SUCCESS;
}

struct Info {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
};

CUresult Look(CUstream handle, bool per_thread, Info* info) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  std::lock_guard lock(D().mutex);
  StreamRef stream;
  if (CUresult result = FindStream(handle, per_thread, ctx, &stream)) return result;
  if (CUresult result = CheckLegacyUsable(*stream)) return result;
  if (!stream->capture) return CUDA_SUCCESS;
  const Capture& capture = *stream->capture;
  info->id = capture.id;
  if (capture.invalidated) {
    info->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
  }
  info->status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  info->graph = reinterpret_cast<CUgraph>(capture.graph.get());
  // A graph being captured can be looked at and added to.
  D().graphs[capture.graph.get()] = capture.graph;
  info->dependencies = reinterpret_cast<const CUgraphNode*>(stream->captured.data());
  info->count = stream->captured.size();
  return CUDA_SUCCESS;
}

CUresult GetInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                 const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count,
                 bool per_thread) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  Info info;
  if (CUresult result = Look(handle, per_thread, &info)) return result;
  *status = info.status;
  if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = info.id;
  if (graph) *graph = info.graph;
  if (dependencies) *dependencies = info.dependencies;
  if (edges) *edges = nullptr;  // all edges are plain ones
  if (count) *count = info.count;
  return CUDA_SUCCESS;
}

CUresult Update(CUstream handle, CUgraphNode* dependencies, size_t count, unsigned flags,
                bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count > 0 && !dependencies)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(D().mutex);
  StreamRef stream;
  if (CUresult result = FindStream(handle, per_thread, ctx, &stream)) return result;
  if (!stream->capture || stream->capture->invalidated) return CUDA_ERROR_ILLEGAL_STATE;
  std::vector<GraphNode*> nodes;
  if (flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES || Broken(Rule::kSetReplacesDependencies))
    nodes = stream->captured;
  for (size_t i = 0; i < count; ++i) {
    GraphNode* node;
    Graph* graph;
    if (CUresult result = FindNode(dependencies[i], &node, &graph)) return result;
    if (graph != stream->capture->graph.get()) return CUDA_ERROR_INVALID_VALUE;
    nodes.push_back(node);
  }
  stream->captured = std::move(nodes);
  return CUDA_SUCCESS;
}

}  // namespace

#define PRORATA_BOTH(name, params, call) \
  CUresult name params {                 \
    constexpr bool kPerThread = false;   \
    return call;                         \
  }                                      \
  CUresult name##_ptsz params {          \
    constexpr bool kPerThread = true;    \
    return call;                         \
  }

PRORATA_BOTH(cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode),
             Begin(hStream, mode, kPerThread, nullptr, {}))
// The first ABI had no mode: global.
PRORATA_BOTH(cuStreamBeginCapture, (CUstream hStream),
             Begin(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL, kPerThread, nullptr, {}))
PRORATA_BOTH(cuStreamBeginCaptureToGraph,
             (CUstream hStream, CUgraph hGraph, const CUgraphNode* dependencies,
              const CUgraphEdgeData*, size_t numDependencies, CUstreamCaptureMode mode),
             BeginToGraph(hStream, hGraph, dependencies, numDependencies, mode, kPerThread))
PRORATA_BOTH(cuStreamEndCapture, (CUstream hStream, CUgraph* phGraph),
             End(hStream, phGraph, kPerThread))
PRORATA_BOTH(cuStreamIsCapturing, (CUstream hStream, CUstreamCaptureStatus* captureStatus),
             GetInfo(hStream, captureStatus, nullptr, nullptr, nullptr, nullptr, nullptr,
                     kPerThread))
PRORATA_BOTH(cuStreamGetCaptureInfo,
             (CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out),
             GetInfo(hStream, captureStatus_out, id_out, nullptr, nullptr, nullptr, nullptr,
                     kPerThread))
PRORATA_BOTH(cuStreamGetCaptureInfo_v2,
             (CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out,
              CUgraph* graph_out, const CUgraphNode** dependencies_out,
              size_t* numDependencies_out),
             GetInfo(hStream, captureStatus_out, id_out, graph_out, dependencies_out, nullptr,
                     numDependencies_out, kPerThread))
PRORATA_BOTH(cuStreamGetCaptureInfo_v3,
             (CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out,
              CUgraph* graph_out, const CUgraphNode** dependencies_out,
              const CUgraphEdgeData** edgeData_out, size_t* numDependencies_out),
             GetInfo(hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
                     numDependencies_out, kPerThread))
PRORATA_BOTH(cuStreamUpdateCaptureDependencies,
             (CUstream hStream, CUgraphNode* dependencies, size_t numDependencies,
              unsigned int flags),
             Update(hStream, dependencies, numDependencies, flags, kPerThread))
PRORATA_BOTH(cuStreamUpdateCaptureDependencies_v2,
             (CUstream hStream, CUgraphNode* dependencies, const CUgraphEdgeData*,
              size_t numDependencies, unsigned int flags),
             Update(hStream, dependencies, numDependencies, flags, kPerThread))

#undef PRORATA_BOTH

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (CUresult result = EnterCall()) return result;
  if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, Self().capture_mode);
  return CUDA_SUCCESS;
}
