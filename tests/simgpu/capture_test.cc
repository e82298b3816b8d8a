// Stream capture: what is captured, what it forbids, and how it ends.

#include <thread>

#include "driver.h"

namespace prorata::simgpu {
namespace {

class CaptureTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    Kernel("step");
    word_ = NewWord(1);
    CUDA_OK(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
    CUDA_OK(cuEventCreate, &event_, CU_EVENT_DISABLE_TIMING);
  }

  void Begin(CUstreamCaptureMode mode) { CUDA_OK(cuStreamBeginCapture_v2, stream_, mode); }
  CUresult End() {
    graph_ = nullptr;
    return CUDA(cuStreamEndCapture)(stream_, &graph_);
  }
  CUstreamCaptureStatus Status(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(CUDA(cuStreamIsCapturing)(stream, &status), CUDA_SUCCESS);
    return status;
  }
  void Replay(CUgraph graph) {
    CUgraphExec exec;
    CUDA_OK(cuGraphInstantiateWithFlags, &exec, graph, 0);
    CUDA_OK(cuGraphLaunch, exec, stream_);
    CUDA_OK(cuStreamSynchronize, stream_);
    CUDA_OK(cuGraphExecDestroy, exec);
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

TEST_F(CaptureTest, NothingRunsUntilTheGraphIsLaunched) {
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_EQ(Step(stream_, word_, 2, 0, 1000), CUDA_SUCCESS);
  ASSERT_EQ(Step(stream_, word_, 1, 3, 1000), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(ReadWord(word_), 1u);
  size_t count = 0;
  CUDA_OK(cuGraphGetNodes, graph_, nullptr, &count);
  EXPECT_EQ(count, 2u);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 5u);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 13u);
  CUDA_OK(cuGraphDestroy, graph_);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy, graph_);
}

TEST_F(CaptureTest, OtherStreamsJoinByEventsAndMustBeJoined) {
  CUstream other;
  CUevent back;
  CUDA_OK(cuStreamCreate, &other, CU_STREAM_NON_BLOCKING);
  CUDA_OK(cuEventCreate, &back, CU_EVENT_DISABLE_TIMING);
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(Step(stream_, word_, 1, 1, 1000), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event_, stream_);
  CUDA_OK(cuStreamWaitEvent, other, event_, 0);
  EXPECT_EQ(Status(other), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_EQ(Step(other, word_, 10, 0, 1000), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, back, other);
  CUDA_OK(cuStreamWaitEvent, stream_, back, 0);
  ASSERT_EQ(Step(stream_, word_, 1, 3, 1000), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(Status(other), CU_STREAM_CAPTURE_STATUS_NONE);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 23u);

  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUDA_OK(cuEventRecord, event_, stream_);
  CUDA_OK(cuStreamWaitEvent, other, event_, 0);
  ASSERT_EQ(Step(other, word_, 10, 0, 1000), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph_, nullptr);
}

TEST_F(CaptureTest, AGlobalCaptureForbidsUnsafeCallsToAllThreads) {
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUevent idle;
  CUDA_OK(cuEventCreate, &idle, 0);
  Elsewhere([&] { CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuEventQuery, idle); });
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(Step(stream_, word_, 1, 1, 1000), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUDA_OK(cuEventQuery, idle);
}

TEST_F(CaptureTest, AThreadInRelaxedModeMayDoAnything) {
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUevent idle;
  CUDA_OK(cuEventCreate, &idle, 0);
  auto unsafe = [&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUDA_OK(cuEventQuery, idle);
    CUdeviceptr address;
    CUDA_OK(cuMemAlloc_v2, &address, 100);
    CUDA_OK(cuMemFree_v2, address);
    CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  };
  Elsewhere(unsafe);
  unsafe();
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

TEST_F(CaptureTest, AThreadLocalCaptureForbidsThemToItsThreadOnly) {
  CUdeviceptr address;
  Begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  Elsewhere([&] {
    CUDA_OK(cuMemAlloc_v2, &address, 100);
    CUDA_OK(cuMemFree_v2, address);
  });
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2, &address, 100);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, ARelaxedCaptureForbidsNothing) {
  CUdeviceptr address;
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuMemAlloc_v2, &address, 100);
  Elsewhere([&] { CUDA_OK(cuMemFree_v2, address); });
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

TEST_F(CaptureTest, WaitingForACapturingStreamInvalidatesIt) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize, stream_);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, TheLegacyStreamMayNotBeUsedBesideABlockingOne) {
  CUstream blocking;
  CUDA_OK(cuStreamCreate, &blocking, CU_STREAM_DEFAULT);
  CUDA_OK(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(Step(nullptr, word_, 1, 1, 1000), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph;
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, blocking, &graph);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);  // on a non-blocking stream it may
  EXPECT_EQ(Step(nullptr, word_, 1, 1, 1000), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_SUCCESS);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2, nullptr,
          CU_STREAM_CAPTURE_MODE_RELAXED);
}

TEST_F(CaptureTest, EventsDoNotCrossTheBorder) {
  CUevent outside;
  CUDA_OK(cuEventCreate, &outside, 0);
  CUDA_OK(cuEventRecord, outside, nullptr);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent, stream_, outside, 0);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuEventRecord, event_, stream_);
  CUDA_IS(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize, event_);
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

TEST_F(CaptureTest, TwoCapturesCannotMerge) {
  CUstream other;
  CUDA_OK(cuStreamCreate, &other, CU_STREAM_NON_BLOCKING);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuStreamBeginCapture_v2, other, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuEventRecord, event_, stream_);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent, other, event_, 0);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUgraph graph;
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, other, &graph);
}

TEST_F(CaptureTest, OnlyTheThreadThatBeganMayEnd) {
  Begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  Elsewhere([&] {
    CUgraph graph;
    CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture, stream_, &graph);
  });
  EXPECT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(CaptureTest, InfoNamesTheCapture) {
  CUstreamCaptureStatus status;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(Step(stream_, word_, 1, 1, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamGetCaptureInfo_v2, stream_, &status, &id, &graph, &dependencies, &count);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_NE(id, 0u);
  EXPECT_NE(graph, nullptr);
  EXPECT_EQ(count, 1u);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(graph_, graph);
}

TEST_F(CaptureTest, MemoryOfACapturedGraphKeepsItsAddress) {
  CUdeviceptr scratch = 0;
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUDA_OK(cuMemAllocAsync, &scratch, 8, stream_);
  CUDA_OK(cuMemsetD32Async, scratch, 0, 2, stream_);
  ASSERT_EQ(Step(stream_, scratch, 0, 6, 1000), CUDA_SUCCESS);
  CUDA_OK(cuMemcpyDtoDAsync_v2, word_, scratch, 8, stream_);
  CUDA_OK(cuMemFreeAsync, scratch, stream_);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  uint64_t reserved = 0;
  CUDA_OK(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
  EXPECT_GT(reserved, 0u);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 6u);
  CUDA_OK(cuGraphDestroy, graph_);
  CUDA_OK(cuDeviceGraphMemTrim, 0);
  CUDA_OK(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
  EXPECT_EQ(reserved, 0u);
}

}  // namespace
}  // namespace prorata::simgpu
