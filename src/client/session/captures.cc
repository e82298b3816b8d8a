#include "client/session/captures.h"

namespace prorata::client {

std::atomic<uint32_t> g_open_captures;

CUstreamCaptureStatus CaptureStatusOf(CUstream stream, bool per_thread) {
  const auto ask =
      per_thread ? PRORATA_REAL(cuStreamIsCapturing_ptsz) : PRORATA_REAL(cuStreamIsCapturing);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const OwnCalls own;
  // An error here is the legacy stream's, which cannot be asked while another is captured; it is
  // not captured itself then.
  return ask(stream, &status) == CUDA_SUCCESS ? status : CU_STREAM_CAPTURE_STATUS_NONE;
}

bool AskCaptured(CUstream stream, bool per_thread) {
  return CaptureStatusOf(stream, per_thread) != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace prorata::client
