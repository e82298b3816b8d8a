// Stream capture: what is captured, how it begins and ends, what is unsafe in each mode.

#include "capture_fixture.h"

namespace prorata::conformance {
namespace {

class CaptureTest : public CaptureFixture {};

RULE_TEST(CaptureTest, NothingRunsUntilTheGraphIsLaunched,
          "operations pushed into a capturing stream are not executed, but captured into a graph",
          STREAM_API("cuStreamBeginCapture")) {
  Begin();
  ASSERT_EQ(Step(stream_, word_, 2, 0, 1000), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(ReadWord(word_), 1u);
}

RULE_TEST(CaptureTest, TheGraphHasWhatTheStreamWasGiven,
          "cuStreamEndCapture returns the graph of the captured operations, in their order",
          STREAM_API("cuStreamEndCapture")) {
  Begin();
  ASSERT_EQ(Step(stream_, word_, 2, 0, 1000), CUDA_SUCCESS);
  ASSERT_EQ(Step(stream_, word_, 1, 3, 1000), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(NodeCount(graph_), 2u);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 5u);
}

RULE_TEST(CaptureTest, AGraphCanBeLaunchedAgain, "a captured graph runs each time it is launched",
          GUIDE("CUDA Graphs, Graph Structure")) {
  Begin();
  ASSERT_EQ(Step(stream_, word_, 3, 0, 1000), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  Replay(graph_);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 9u);
}

RULE_TEST(CaptureTest, AnEmptyCaptureIsAnEmptyGraph,
          "a capture in which nothing was pushed ends with a graph without nodes",
          STREAM_API("cuStreamEndCapture")) {
  Begin();
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(NodeCount(graph_), 0u);
}

RULE_TEST(CaptureTest, TheStreamIsUsableAfterwards,
          "after cuStreamEndCapture the stream executes what it is given",
          STREAM_API("cuStreamEndCapture")) {
  Begin();
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
  ASSERT_EQ(Step(stream_, word_, 0, 7, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(ReadWord(word_), 7u);
}

RULE_TEST(CaptureTest, WorkAroundACaptureKeepsItsOrder,
          "what a stream gets after a capture depends on what it got before it",
          GRAPH_GUIDE("Cross-stream Dependencies and Events")) {
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream_), CUDA_SUCCESS);
  ASSERT_EQ(Step(stream_, word_, 0, 5, 2'000'000), CUDA_SUCCESS);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_EQ(Step(stream_, word_, 100, 0, 1000), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  ASSERT_EQ(Step(stream_, word_, 2, 0, 1000), CUDA_SUCCESS);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(ReadWord(word_), 10u);
}

RULE_TEST(CaptureTest, TheLegacyStreamCannotBeCaptured,
          "capture may not be initiated if the stream is CU_STREAM_LEGACY",
          STREAM_API("cuStreamBeginCapture")) {
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2, nullptr,
          CU_STREAM_CAPTURE_MODE_RELAXED);
}

RULE_TEST(CaptureTest, ThePerThreadStreamCanBeCaptured,
          "stream capture can be used on any stream except the legacy stream",
          GUIDE("CUDA Graphs, Creating a Graph Using Stream Capture")) {
  CUDA_OK(cuStreamBeginCapture_v2, CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(Step(CU_STREAM_PER_THREAD, word_, 0, 4, 1000), CUDA_SUCCESS);
  ASSERT_EQ(End(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  EXPECT_EQ(NodeCount(graph_), 1u);
}

RULE_TEST(CaptureTest, ACaptureCannotBeginInACapture,
          "capture may only be initiated if the stream is not already in capture mode",
          STREAM_API("cuStreamBeginCapture")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_NE(CUDA(cuStreamBeginCapture_v2)(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  End();
}

RULE_TEST(CaptureTest, AnEndNeedsABegin,
          "cuStreamEndCapture of a stream that is not capturing is CUDA_ERROR_ILLEGAL_STATE",
          STREAM_API("cuStreamEndCapture")) {
  EXPECT_EQ(End(), CUDA_ERROR_ILLEGAL_STATE);
}

RULE_TEST(CaptureTest, UnknownModesAreRefused,
          "a capture begins with one of the three modes of CUstreamCaptureMode",
          STREAM_API("cuStreamBeginCapture")) {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamBeginCapture_v2, stream_,
          static_cast<CUstreamCaptureMode>(3));
}

RULE_TEST(CaptureTest, OnlyTheThreadThatBeganMayEnd,
          "a capture that is not relaxed must be ended by the thread that began it",
          STREAM_API("cuStreamBeginCapture, cuStreamEndCapture")) {
  Begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  Elsewhere([&] { EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD); });
  End();
}

RULE_TEST(CaptureTest, AnyThreadMayEndARelaxedCapture,
          "a relaxed capture may be ended by another thread",
          STREAM_API("cuStreamBeginCapture, cuStreamEndCapture")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  Elsewhere([&] { EXPECT_EQ(End(), CUDA_SUCCESS); });
}

RULE_TEST(CaptureTest, AGlobalCaptureForbidsUnsafeCallsToItsThread,
          "a thread with a global capture of its own is prohibited from potentially unsafe calls",
          MODES) {
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(Unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  End();
}

RULE_TEST(CaptureTest, AGlobalCaptureForbidsUnsafeCallsToOtherThreads,
          "while any thread has a global capture, threads in global mode are prohibited from "
          "potentially unsafe calls",
          MODES) {
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  Elsewhere([&] { EXPECT_EQ(Unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); });
  End();
}

RULE_TEST(CaptureTest, AThreadLocalCaptureForbidsUnsafeCallsToItsThread,
          "a thread with a thread-local capture of its own is prohibited from unsafe calls",
          MODES) {
  Begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_EQ(Unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  End();
}

RULE_TEST(CaptureTest, AThreadLocalCaptureLeavesOtherThreadsAlone,
          "a thread-local capture does not prohibit other threads from potentially unsafe calls",
          MODES) {
  Begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  Elsewhere([&] { EXPECT_EQ(Unsafe(), CUDA_SUCCESS); });
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

RULE_TEST(CaptureTest, ARelaxedCaptureForbidsNothing,
          "a relaxed capture prohibits neither its own nor other threads from unsafe calls",
          MODES) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(Unsafe(), CUDA_SUCCESS);
  Elsewhere([&] { EXPECT_EQ(Unsafe(), CUDA_SUCCESS); });
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

RULE_TEST(
    CaptureTest, AThreadInRelaxedModeMayMakeUnsafeCalls,
    "a thread whose mode is relaxed is not prohibited from unsafe calls, whatever the captures",
    MODES) {
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  const auto relaxed = [&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
    EXPECT_EQ(Unsafe(), CUDA_SUCCESS);
    CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
  };
  relaxed();
  Elsewhere(relaxed);
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

RULE_TEST(CaptureTest, AThreadInThreadLocalModeIgnoresOtherThreadsCaptures,
          "a thread whose mode is thread-local ignores concurrent captures of other threads",
          MODES) {
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  Elsewhere([&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
    EXPECT_EQ(Unsafe(), CUDA_SUCCESS);
  });
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

RULE_TEST(CaptureTest, AThreadInThreadLocalModeHeedsItsOwnCapture,
          "thread-local mode does not free a thread from its own capture's prohibition", MODES) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(Unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  End();
  CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
}

RULE_TEST(CaptureTest, ExchangeGivesThePreviousMode,
          "cuThreadExchangeStreamCaptureMode overwrites *mode with the thread's previous mode; the "
          "first is global",
          MODES) {
  Elsewhere([&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  });
}

RULE_TEST(CaptureTest, ExchangeIsForTheCallingThreadOnly,
          "cuThreadExchangeStreamCaptureMode changes the mode of the calling thread", MODES) {
  Elsewhere([&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
  });
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUDA_OK(cuThreadExchangeStreamCaptureMode, &mode);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

RULE_TEST(CaptureTest, AnUnsafeCallInvalidatesTheCapture,
          "an operation that is invalid during a capture invalidates the associated captures",
          GRAPH_GUIDE("Invalidation")) {
  Begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_NE(Unsafe(), CUDA_SUCCESS);
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE_TEST(CaptureTest, AnInvalidCaptureHasNoGraph,
          "cuStreamEndCapture of an invalidated capture returns a NULL graph",
          STREAM_API("cuStreamEndCapture")) {
  Begin();
  EXPECT_NE(Unsafe(), CUDA_SUCCESS);
  EXPECT_NE(End(), CUDA_SUCCESS);
  EXPECT_EQ(graph_, nullptr);
}

RULE_TEST(CaptureTest, AnInvalidCaptureRefusesFurtherWork,
          "further use of a stream whose capture is invalidated is an error until the capture ends",
          GRAPH_GUIDE("Invalidation")) {
  Begin();
  EXPECT_NE(Unsafe(), CUDA_SUCCESS);
  EXPECT_EQ(Step(stream_, word_, 1, 1, 1000), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  End();
}

RULE_TEST(CaptureTest, EndingAnInvalidCaptureFreesTheStream,
          "cuStreamEndCapture takes the stream of an invalidated capture out of capture mode",
          GRAPH_GUIDE("Invalidation")) {
  Begin();
  EXPECT_NE(Unsafe(), CUDA_SUCCESS);
  EXPECT_NE(End(), CUDA_SUCCESS);
  ASSERT_EQ(Step(stream_, word_, 0, 6, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(ReadWord(word_), 6u);
}

RULE_TEST(CaptureTest, UnsafeCallsAreAllowedAgainAfterwards,
          "the prohibition of unsafe calls ends with the capture", MODES) {
  Begin();
  EXPECT_NE(Unsafe(), CUDA_SUCCESS);
  End();
  EXPECT_EQ(Unsafe(), CUDA_SUCCESS);
}

RULE_TEST(CaptureTest, OtherStreamsRunDuringACapture,
          "work in a non-blocking stream that takes no part in a capture is executed",
          GUIDE("CUDA Graphs, Creating a Graph Using Stream Capture")) {
  const CUstream other = NewStream();
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_EQ(Step(other, word_, 0, 8, 1000), CUDA_SUCCESS);
  EXPECT_EQ(Status(other), CU_STREAM_CAPTURE_STATUS_NONE);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, other);
  EXPECT_EQ(ReadWord(word_), 8u);
}

RULE_TEST(CaptureTest, WaitingForACapturingStreamIsInvalid,
          "it is invalid to synchronize a stream that is being captured",
          GRAPH_GUIDE("Prohibited and Unhandled Operations")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize, stream_);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE_TEST(CaptureTest, QueryingACapturingStreamIsInvalid,
          "it is invalid to query the execution status of a stream that is being captured",
          GRAPH_GUIDE("Prohibited and Unhandled Operations")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery, stream_);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE_TEST(CaptureTest, WaitingForACapturingContextIsInvalid,
          "it is invalid to synchronize a context when one of its streams is being captured",
          GRAPH_GUIDE("Prohibited and Unhandled Operations")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE_TEST(CaptureTest, TheLegacyStreamIsUnusableBesideABlockingCapture,
          "while a blocking stream is captured any use of the legacy stream is invalid",
          GRAPH_GUIDE("Prohibited and Unhandled Operations")) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  CUDA_OK(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(Step(nullptr, word_, 1, 1, 1000), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(End(blocking), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE_TEST(CaptureTest, SynchronousCopiesAreInvalidBesideABlockingCapture,
          "synchronous calls enqueue work to the legacy stream: invalid while a blocking stream is "
          "captured",
          GRAPH_GUIDE("Prohibited and Unhandled Operations")) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  uint64_t value = 0;
  CUDA_OK(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemcpyDtoH_v2, &value, word_, sizeof(value));
  EXPECT_EQ(End(blocking), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE_TEST(
    CaptureTest, TheLegacyStreamIsUsableBesideANonBlockingCapture,
    "the capture of a stream made with CU_STREAM_NON_BLOCKING leaves the legacy stream usable",
    GRAPH_GUIDE("Prohibited and Unhandled Operations")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(Step(nullptr, word_, 1, 1, 1000), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

RULE_TEST(CaptureTest, HostFunctionsAreCaptured,
          "cuLaunchHostFunc in a capturing stream becomes a host node and is not called",
          STREAM_API("cuStreamAddCallback; cuLaunchHostFunc")) {
  int calls = 0;
  Begin();
  CUDA_OK(cuLaunchHostFunc, stream_, [](void* data) { ++*static_cast<int*>(data); }, &calls);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(calls, 0);
  Replay(graph_);
  EXPECT_EQ(calls, 1);
}

RULE_TEST(CaptureTest, CallbacksCannotBeCaptured,
          "cuStreamAddCallback is not supported in a capturing stream",
          STREAM_API("cuStreamAddCallback")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_NE(CUDA(cuStreamAddCallback)(
                stream_, [](CUstream, CUresult, void*) {}, nullptr, 0),
            CUDA_SUCCESS);
  End();
}

RULE_TEST(CaptureTest, AttachingMemoryCannotBeCaptured,
          "cuStreamAttachMemAsync is an error in a capturing stream",
          GRAPH_GUIDE("Prohibited and Unhandled Operations")) {
  CUdeviceptr managed = 0;
  CUDA_OK(cuMemAllocManaged, &managed, 4096, CU_MEM_ATTACH_GLOBAL);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_NE(CUDA(cuStreamAttachMemAsync)(stream_, managed, 0, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_NE(End(), CUDA_SUCCESS);
}

RULE_TEST(CaptureTest, MemoryOfACapturedGraphKeepsItsAddress,
          "cuMemAllocAsync in a capture gives the address that the graph's launches use",
          GUIDE("Graph Memory Nodes, Stream Capture")) {
  CUdeviceptr scratch = 0;
  Begin();
  CUDA_OK(cuMemAllocAsync, &scratch, 8, stream_);
  CUDA_OK(cuMemsetD32Async, scratch, 0, 2, stream_);
  ASSERT_EQ(Step(stream_, scratch, 0, 6, 1000), CUDA_SUCCESS);
  CUDA_OK(cuMemcpyDtoDAsync_v2, word_, scratch, 8, stream_);
  CUDA_OK(cuMemFreeAsync, scratch, stream_);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 6u);
}

RULE_TEST(CaptureTest, MemoryOfADestroyedGraphIsTrimmed,
          "memory of graphs stays reserved until cuDeviceGraphMemTrim",
          GUIDE("Graph Memory Nodes, Physical Memory Footprint")) {
  CUdeviceptr scratch = 0;
  Begin();
  CUDA_OK(cuMemAllocAsync, &scratch, 8, stream_);
  CUDA_OK(cuMemFreeAsync, scratch, stream_);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  Replay(graph_);
  uint64_t reserved = 0;
  CUDA_OK(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
  EXPECT_GT(reserved, 0u);
  CUDA_OK(cuGraphDestroy, graph_);
  CUDA_OK(cuDeviceGraphMemTrim, 0);
  CUDA_OK(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
  EXPECT_EQ(reserved, 0u);
}

RULE_TEST(CaptureTest, DestroyingTheOriginEndsItsCapture,
          "a capture does not outlive its origin stream: it prohibits nothing any more",
          STREAM_API("cuStreamDestroy")) {
  SIMULATED_ONLY("what a driver does then is not documented");
  Begin();
  CUDA_OK(cuStreamDestroy_v2, stream_);
  EXPECT_EQ(Unsafe(), CUDA_SUCCESS);
}

}  // namespace
}  // namespace prorata::conformance
