// Counting open stream captures: only while one is open anywhere are streams asked whether they are
// being captured. A launch into a captured stream runs nothing, so it is neither gated nor charged.

#include "client/compute/launch.h"
#include "client/session/captures.h"
#include "client/session/share.h"

namespace prorata::client {

namespace {

// The helper records events in the program's streams: never while a capture is open anywhere, for
// such an event would become part of it. Either it sees the count of captures and leaves the
// stream alone, or the thread that begins one sees it recording and waits for it.
std::atomic<uint32_t> g_helper_records;

// Whatever keeps the helper, in the driver perhaps, it keeps nobody for longer than this.
void AwaitZero(const std::atomic<uint32_t>* word) {
  constexpr int64_t kLongestNs = 100'000'000, kPollNs = 20'000;
  if (word->load() == 0) return;
  for (const int64_t until_ns = NowNs() + kLongestNs; word->load() != 0 && NowNs() < until_ns;) {
    FutexWait(word, 1, kPollNs);
  }
}

// Only one capture begins at a time: until what is open is fenced, none may be under way.
Lock g_beginning;

template <typename Call>
CUresult Begin(CUstream stream, bool per_thread, Call&& call) {
  StreamRecord* record = nullptr;
  if (Governed()) {
    record = FindStream(stream, per_thread);
    const LockGuard beginning(g_beginning);
    // Counted before the call, so that no launch that the capture may see goes unasked.
    const bool first = g_open_captures.fetch_add(1) == 0;
    AwaitZero(&g_helper_records);
    for (uint32_t device = 0; first && device < g_share.device_count; ++device) {
      g_world.ForEachWork(device, [](ContextWork& work) { Tracker().FenceOpen(&work); });
    }
  } else {
    g_open_captures.fetch_add(1);
  }
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    g_open_captures.fetch_sub(1);
  } else if (record != nullptr) {
    record->captures.store(1);
  }
  return result;
}

// Of the stream in which it began; others that joined it end nothing, nor does their destruction.
template <typename Call>
CUresult End(CUstream stream, bool per_thread, Call&& call) {
  StreamRecord* const record = Governed() ? FindStream(stream, per_thread, false) : nullptr;
  const bool captured =
      record != nullptr ? record->captures.load() != 0 : IsCaptured(stream, per_thread);
  const CUresult result = call();
  // Whatever the answer (an invalidated capture ends with an error), it is over if it is over.
  if (!captured || CaptureStatusOf(stream, per_thread) != CU_STREAM_CAPTURE_STATUS_NONE) {
    return result;
  }
  if (record == nullptr || record->captures.exchange(0) != 0) g_open_captures.fetch_sub(1);
  return result;
}

// What is open is fenced, and its fences live on when the handle is another's.
void EndStream(CUstream stream, bool captured) {
  StreamRecord* const record = FindStream(stream, false, false);
  if (record == nullptr || reinterpret_cast<uint64_t>(stream) <= 2) return;
  // Either the helper sees the mark, or this thread sees it recording.
  record->ending.store(1);
  AwaitZero(&record->fencing);
  if (!captured && HasOpen(*record)) {
    const InContextOf here(record);
    Tracker().EndOld(record);
  }
  HideStream(record);
  if (!Tracker().StreamGone(record)) FreeRecord(record);
}

template <typename Call>
CUresult DestroyStream(CUstream stream, Call&& call) {
  // A capture that began in it goes with its record.
  if (Governed()) EndStream(stream, IsCaptured(stream, false));
  return call();
}

}  // namespace

bool HelperMayRecord() {
  g_helper_records.store(1);
  return g_open_captures.load() == 0;
}

void HelperDoneRecording() { g_helper_records.store(0); }

}  // namespace prorata::client

using namespace prorata::client;

CUresult cuStreamBeginCapture(CUstream hStream) {
  return Begin(hStream, false, [&] { return PRORATA_REAL(cuStreamBeginCapture)(hStream); });
}

CUresult cuStreamBeginCapture_ptsz(CUstream hStream) {
  return Begin(hStream, true, [&] { return PRORATA_REAL(cuStreamBeginCapture_ptsz)(hStream); });
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  return Begin(hStream, false,
               [&] { return PRORATA_REAL(cuStreamBeginCapture_v2)(hStream, mode); });
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode) {
  return Begin(hStream, true,
               [&] { return PRORATA_REAL(cuStreamBeginCapture_v2_ptsz)(hStream, mode); });
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                     const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode) {
  return Begin(hStream, false, [&] {
    return PRORATA_REAL(cuStreamBeginCaptureToGraph)(hStream, hGraph, dependencies, dependencyData,
                                                     numDependencies, mode);
  });
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph,
                                          const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* dependencyData,
                                          size_t numDependencies, CUstreamCaptureMode mode) {
  return Begin(hStream, true, [&] {
    return PRORATA_REAL(cuStreamBeginCaptureToGraph_ptsz)(hStream, hGraph, dependencies,
                                                          dependencyData, numDependencies, mode);
  });
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  return End(hStream, false, [&] { return PRORATA_REAL(cuStreamEndCapture)(hStream, phGraph); });
}

CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph* phGraph) {
  return End(hStream, true,
             [&] { return PRORATA_REAL(cuStreamEndCapture_ptsz)(hStream, phGraph); });
}

CUresult cuStreamDestroy(CUstream hStream) {
  return DestroyStream(hStream, [&] { return PRORATA_REAL(cuStreamDestroy)(hStream); });
}

CUresult cuStreamDestroy_v2(CUstream hStream) {
  return DestroyStream(hStream, [&] { return PRORATA_REAL(cuStreamDestroy_v2)(hStream); });
}
