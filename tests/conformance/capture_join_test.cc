// Captures of several streams: how events carry a capture over, and what must not meet.

#include "capture_fixture.h"

namespace prorata::conformance {
namespace {

class CaptureJoinTest : public CaptureFixture {
 protected:
  void SetUp() override {
    CaptureFixture::SetUp();
    other_ = NewStream();
  }
  CUstream other_ = nullptr;
};

#define ACROSS GRAPH_GUIDE("Cross-stream Dependencies and Events")
#define PROHIBITED GRAPH_GUIDE("Prohibited and Unhandled Operations")

RULE_TEST(CaptureJoinTest, AWaitForACapturedEventCapturesTheStream,
          "a stream that waits for a captured event is placed in capture mode", ACROSS) {
  Begin();
  Join(other_);
  EXPECT_EQ(Status(other_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  JoinBack(other_);
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

RULE_TEST(CaptureJoinTest, WorkOfAJoinedStreamIsCaptured,
          "what a joined stream is given is captured to the same graph and not executed", ACROSS) {
  Begin();
  Join(other_);
  ASSERT_EQ(Step(other_, word_, 10, 0, 1000), CUDA_SUCCESS);
  JoinBack(other_);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(NodeCount(graph_), 1u);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(ReadWord(word_), 1u);
}

RULE_TEST(CaptureJoinTest, JoinedStreamsKeepTheirOrderInTheGraph,
          "the next item of a stream that waited depends on the nodes of the captured event",
          ACROSS) {
  Begin();
  ASSERT_EQ(Step(stream_, word_, 1, 1, 5'000'000), CUDA_SUCCESS);
  Join(other_);
  ASSERT_EQ(Step(other_, word_, 10, 0, 5'000'000), CUDA_SUCCESS);
  JoinBack(other_);
  ASSERT_EQ(Step(stream_, word_, 1, 3, 1000), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 23u);
}

RULE_TEST(CaptureJoinTest, BranchesDoNotDependOnEachOther,
          "a captured event stands for the nodes before it: later work of its stream is not waited "
          "for",
          ACROSS) {
  const CUdeviceptr spare = NewWord(0);
  Begin();
  CUDA_OK(cuEventRecord, event_, stream_);
  ASSERT_EQ(Step(stream_, word_, 1, 1, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamWaitEvent, other_, event_, 0);
  ASSERT_EQ(Step(other_, spare, 1, 1, 1000), CUDA_SUCCESS);
  JoinBack(other_);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  size_t edges = 0;
  CUDA_OK(cuGraphGetEdges, graph_, nullptr, nullptr, &edges);
  EXPECT_EQ(edges, 0u);
}

RULE_TEST(CaptureJoinTest, AJoinedStreamMustBeJoinedBack,
          "a stream that joined a capture and was not joined back to its origin fails the capture",
          ACROSS) {
  Begin();
  Join(other_);
  ASSERT_EQ(Step(other_, word_, 10, 0, 1000), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph_, nullptr);
}

RULE_TEST(CaptureJoinTest, WorkAfterTheJoinMustBeJoinedToo,
          "work that a stream gets after it was joined back is unjoined", ACROSS) {
  Begin();
  Join(other_);
  ASSERT_EQ(Step(other_, word_, 10, 0, 1000), CUDA_SUCCESS);
  JoinBack(other_);
  ASSERT_EQ(Step(other_, word_, 10, 0, 1000), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

RULE_TEST(CaptureJoinTest, AJoinMayLeadThroughAThirdStream,
          "a stream is joined when its work is reached from the origin, by whatever way", ACROSS) {
  const CUstream third = NewStream();
  const CUevent between = NewEvent();
  Begin();
  Join(other_);
  ASSERT_EQ(Step(other_, word_, 10, 0, 1000), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, between, other_);
  CUDA_OK(cuStreamWaitEvent, third, between, 0);
  ASSERT_EQ(Step(third, word_, 1, 2, 1000), CUDA_SUCCESS);
  JoinBack(third);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 12u);
}

RULE_TEST(CaptureJoinTest, EndingFreesJoinedStreams,
          "the end of a capture takes the joined streams out of capture mode", ACROSS) {
  Begin();
  Join(other_);
  JoinBack(other_);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(Status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
}

RULE_TEST(CaptureJoinTest, AFailedEndFreesJoinedStreams,
          "the end of a capture takes the joined streams out of capture mode when it fails, too",
          GRAPH_GUIDE("Invalidation")) {
  Begin();
  Join(other_);
  ASSERT_EQ(Step(other_, word_, 10, 0, 1000), CUDA_SUCCESS);
  EXPECT_NE(End(), CUDA_SUCCESS);
  EXPECT_EQ(Status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
}

RULE_TEST(CaptureJoinTest, OnlyTheOriginEndsACapture,
          "a capture must be ended on the stream in which it was initiated",
          STREAM_API("cuStreamBeginCapture")) {
  Begin();
  Join(other_);
  EXPECT_EQ(End(other_), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  End();
}

RULE_TEST(CaptureJoinTest, AnInvalidCaptureSpoilsItsEvents,
          "a captured event of an invalidated capture cannot be waited for",
          GRAPH_GUIDE("Invalidation")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuEventRecord, event_, stream_);
  EXPECT_NE(CUDA(cuStreamQuery)(stream_), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuStreamWaitEvent)(other_, event_, 0), CUDA_SUCCESS);
  EXPECT_EQ(Status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
  End();
}

RULE_TEST(CaptureJoinTest, TwoCapturesCannotMerge,
          "a stream that is being captured cannot wait for a captured event of another capture",
          PROHIBITED) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuStreamBeginCapture_v2, other_, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuEventRecord, event_, stream_);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent, other_, event_, 0);
  End();
  End(other_);
}

RULE_TEST(CaptureJoinTest, AMergeInvalidatesBoth,
          "an attempt to merge two captures invalidates both", GRAPH_GUIDE("Invalidation")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuStreamBeginCapture_v2, other_, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuEventRecord, event_, stream_);
  EXPECT_NE(CUDA(cuStreamWaitEvent)(other_, event_, 0), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(End(other_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE_TEST(CaptureJoinTest, ACaptureCannotWaitForWorkOutside,
          "a stream that is being captured cannot wait for an event that was not captured",
          PROHIBITED) {
  const CUevent outside = NewEvent();
  CUDA_OK(cuEventRecord, outside, other_);
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent, stream_, outside, 0);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE_TEST(
    CaptureJoinTest, ACapturedEventCannotBeWaitedForByTheHost,
    "it is invalid to synchronize a captured event, which stands for nothing that is executed",
    PROHIBITED) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuEventRecord, event_, stream_);
  CUDA_IS(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize, event_);
  End();
}

RULE_TEST(CaptureJoinTest, ACapturedEventCannotBeQueried,
          "it is invalid to query a captured event, in a relaxed thread as well", MODES) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuEventRecord, event_, stream_);
  CUDA_IS(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery, event_);
  End();
}

RULE_TEST(CaptureJoinTest, QueryingACapturedEventInvalidatesTheCapture,
          "an invalid operation on a captured event invalidates its capture",
          GRAPH_GUIDE("Invalidation")) {
  Begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuEventRecord, event_, stream_);
  EXPECT_NE(CUDA(cuEventQuery)(event_), CUDA_SUCCESS);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE_TEST(CaptureJoinTest, AnEventRecordedAnewIsCapturedNoMore,
          "an event that is recorded outside after a capture can be waited for again",
          EVENT_API("cuEventRecord")) {
  Begin();
  CUDA_OK(cuEventRecord, event_, stream_);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event_, stream_);
  CUDA_OK(cuEventSynchronize, event_);
}

RULE_TEST(CaptureJoinTest, ACapturedRecordIsNoNode,
          "cuEventRecord in a capture marks nodes and adds none", ACROSS) {
  Begin();
  CUDA_OK(cuEventRecord, event_, stream_);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(NodeCount(graph_), 0u);
}

RULE_TEST(CaptureJoinTest, AnExternalRecordIsANode,
          "CU_EVENT_RECORD_EXTERNAL captures the record as a node of the graph",
          EVENT_API("cuEventRecordWithFlags")) {
  Begin();
  CUDA_OK(cuEventRecordWithFlags, event_, stream_, CU_EVENT_RECORD_EXTERNAL);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  ASSERT_EQ(NodeCount(graph_), 1u);
  CUgraphNode node;
  size_t count = 1;
  CUgraphNodeType type;
  CUDA_OK(cuGraphGetNodes, graph_, &node, &count);
  CUDA_OK(cuGraphNodeGetType, node, &type);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

RULE_TEST(CaptureJoinTest, AnExternalWaitIsANode,
          "CU_EVENT_WAIT_EXTERNAL captures the wait for an event outside as a node of the graph",
          STREAM_API("cuStreamWaitEvent")) {
  CUDA_OK(cuEventRecord, event_, other_);
  Begin();
  CUDA_OK(cuStreamWaitEvent, stream_, event_, CU_EVENT_WAIT_EXTERNAL);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  ASSERT_EQ(NodeCount(graph_), 1u);
  CUgraphNode node;
  size_t count = 1;
  CUgraphNodeType type;
  CUDA_OK(cuGraphGetNodes, graph_, &node, &count);
  CUDA_OK(cuGraphNodeGetType, node, &type);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

}  // namespace
}  // namespace prorata::conformance
