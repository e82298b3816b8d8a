#pragma once

#include <thread>

#include "conformance.h"

namespace prorata::conformance {

#define MODES DRIVER_API("Stream Management, cuThreadExchangeStreamCaptureMode")
#define GRAPH_GUIDE(section) GUIDE("CUDA Graphs, Creating a Graph Using Stream Capture, " section)

// A word, and a non-blocking stream to be captured. Every test gets both anew.
class CaptureFixture : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    Kernel("step");
    word_ = NewWord(1);
    stream_ = NewStream();
    event_ = NewEvent();
  }

  void Begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    CUDA_OK(cuStreamBeginCapture_v2, stream_, mode);
  }
  CUresult End() { return End(stream_); }
  CUresult End(CUstream stream) {
    graph_ = reinterpret_cast<CUgraph>(this);  // to see that it is set
    return CUDA(cuStreamEndCapture)(stream, &graph_);
  }
  CUstreamCaptureStatus Status(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(CUDA(cuStreamIsCapturing)(stream, &status), CUDA_SUCCESS);
    return status;
  }
  // `other` joins the capture of stream_, which must be open.
  void Join(CUstream other) {
    CUDA_OK(cuEventRecord, event_, stream_);
    CUDA_OK(cuStreamWaitEvent, other, event_, 0);
  }
  // The origin waits for what `other` has.
  void JoinBack(CUstream other) {
    const CUevent back = NewEvent();
    CUDA_OK(cuEventRecord, back, other);
    CUDA_OK(cuStreamWaitEvent, stream_, back, 0);
  }
  size_t NodeCount(CUgraph graph) {
    size_t count = 0;
    EXPECT_EQ(CUDA(cuGraphGetNodes)(graph, nullptr, &count), CUDA_SUCCESS);
    return count;
  }
  void Replay(CUgraph graph) {
    CUgraphExec exec;
    CUDA_OK(cuGraphInstantiateWithFlags, &exec, graph, 0);
    CUDA_OK(cuGraphLaunch, exec, stream_);
    CUDA_OK(cuStreamSynchronize, stream_);
    CUDA_OK(cuGraphExecDestroy, exec);
  }
  // A call that is potentially unsafe during a capture: cuMemAlloc is the documentation's example.
  CUresult Unsafe() {
    CUdeviceptr address = 0;
    return CUDA(cuMemAlloc_v2)(&address, 64);
  }
  // Runs in a thread of its own, with the context current.
  template <typename Body>
  void Elsewhere(Body body) {
    std::thread([&] {
      ASSERT_EQ(CUDA(cuCtxSetCurrent)(ctx_), CUDA_SUCCESS);
      body();
    }).join();
  }

  CUdeviceptr word_ = 0;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  CUgraph graph_ = nullptr;
};

}  // namespace prorata::conformance
