// What a capture says of itself, and how a program changes it while it is open.

#include <vector>

#include "capture_fixture.h"

namespace prorata::conformance {
namespace {

class CaptureInfoTest : public CaptureFixture {
 protected:
  struct Info {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = nullptr;
    const CUgraphNode* dependencies = nullptr;
    size_t count = 0;
  };
  Info Look(CUstream stream) {
    Info info;
    EXPECT_EQ(CUDA(cuStreamGetCaptureInfo_v2)(stream, &info.status, &info.id, &info.graph,
                                              &info.dependencies, &info.count),
              CUDA_SUCCESS);
    return info;
  }
  CUresult Launch(uint64_t factor, uint64_t term) {
    return Step(stream_, word_, factor, term, 1000);
  }
};

RULE_TEST(CaptureInfoTest, AStreamSaysWhetherItCaptures,
          "cuStreamIsCapturing tells NONE, and ACTIVE between begin and end",
          STREAM_API("cuStreamIsCapturing")) {
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
  Begin();
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  End();
  EXPECT_EQ(Status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
}

RULE_TEST(CaptureInfoTest, AskingTheLegacyStreamIsImplicit,
          "cuStreamIsCapturing of the legacy stream beside a blocking capture is "
          "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
          STREAM_API("cuStreamIsCapturing")) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  CUDA_OK(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus status;
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing, nullptr, &status);
  End(blocking);
}

RULE_TEST(
    CaptureInfoTest, AskingTheLegacyStreamInvalidatesNothing,
    "cuStreamIsCapturing of the legacy stream does not invalidate a blocking stream's capture",
    STREAM_API("cuStreamIsCapturing")) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  CUDA_OK(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus status;
  EXPECT_NE(CUDA(cuStreamIsCapturing)(nullptr, &status), CUDA_SUCCESS);
  EXPECT_EQ(Status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(End(blocking), CUDA_SUCCESS);
}

RULE_TEST(CaptureInfoTest, InfoOfTheLegacyStreamIsImplicit,
          "cuStreamGetCaptureInfo of the legacy stream beside a blocking capture is "
          "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
          STREAM_API("cuStreamGetCaptureInfo")) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  CUDA_OK(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus status;
  CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamGetCaptureInfo_v2, nullptr, &status, nullptr,
          nullptr, nullptr, nullptr);
  End(blocking);
}

RULE_TEST(CaptureInfoTest, EveryCaptureHasAnIdOfItsOwn,
          "the id of a capture is unique over the lifetime of the process",
          STREAM_API("cuStreamGetCaptureInfo")) {
  Begin();
  const cuuint64_t first = Look(stream_).id;
  End();
  Begin();
  const cuuint64_t second = Look(stream_).id;
  End();
  EXPECT_NE(first, second);
}

RULE_TEST(CaptureInfoTest, JoinedStreamsShareTheId,
          "streams that are captured to one graph tell the same capture sequence",
          STREAM_API("cuStreamGetCaptureInfo")) {
  const CUstream other = NewStream();
  Begin();
  Join(other);
  const Info mine = Look(stream_);
  const Info theirs = Look(other);
  EXPECT_EQ(mine.id, theirs.id);
  EXPECT_EQ(mine.graph, theirs.graph);
  JoinBack(other);
  End();
}

RULE_TEST(CaptureInfoTest, TheGraphIsTheOneThatEndReturns,
          "cuStreamGetCaptureInfo tells the graph being captured into",
          STREAM_API("cuStreamGetCaptureInfo")) {
  Begin();
  const CUgraph graph = Look(stream_).graph;
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(graph, graph_);
}

RULE_TEST(CaptureInfoTest, TheDependenciesAreWhatTheNextNodeDependsOn,
          "the dependencies of a capturing stream are the nodes its next node will depend on",
          STREAM_API("cuStreamGetCaptureInfo")) {
  Begin();
  EXPECT_EQ(Look(stream_).count, 0u);
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  EXPECT_EQ(Look(stream_).count, 1u);
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  EXPECT_EQ(Look(stream_).count, 1u);
  End();
}

RULE_TEST(CaptureInfoTest, AWaitAddsDependencies,
          "a wait for a captured event adds its nodes to the stream's dependencies",
          GRAPH_GUIDE("Cross-stream Dependencies and Events")) {
  const CUstream other = NewStream();
  Begin();
  Join(other);
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  ASSERT_EQ(Step(other, word_, 1, 1, 1000), CUDA_SUCCESS);
  JoinBack(other);
  EXPECT_EQ(Look(stream_).count, 2u);
  End();
}

RULE_TEST(CaptureInfoTest, OnlyTheStatusIsRequired,
          "of cuStreamGetCaptureInfo's locations only that of the status is required",
          STREAM_API("cuStreamGetCaptureInfo")) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  Begin();
  CUDA_OK(cuStreamGetCaptureInfo_v2, stream_, &status, nullptr, nullptr, nullptr, nullptr);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUDA_OK(cuStreamGetCaptureInfo_v3, stream_, &status, nullptr, nullptr, nullptr, nullptr, nullptr);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUDA_OK(cuStreamGetCaptureInfo, stream_, &status, nullptr);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  End();
}

RULE_TEST(CaptureInfoTest, DependenciesCanBeReplaced,
          "CU_STREAM_SET_CAPTURE_DEPENDENCIES replaces the dependency set of a capturing stream",
          STREAM_API("cuStreamUpdateCaptureDependencies")) {
  Begin();
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  CUgraphNode first = Look(stream_).dependencies[0];
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  CUDA_OK(cuStreamUpdateCaptureDependencies, stream_, &first, 1,
          CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  const Info info = Look(stream_);
  ASSERT_EQ(info.count, 1u);
  EXPECT_EQ(info.dependencies[0], first);
  End();
}

RULE_TEST(CaptureInfoTest, DependenciesCanBeAdded,
          "CU_STREAM_ADD_CAPTURE_DEPENDENCIES adds to the dependency set of a capturing stream",
          STREAM_API("cuStreamUpdateCaptureDependencies")) {
  Begin();
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  CUgraphNode first = Look(stream_).dependencies[0];
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  CUDA_OK(cuStreamUpdateCaptureDependencies, stream_, &first, 1,
          CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
  EXPECT_EQ(Look(stream_).count, 2u);
  End();
}

RULE_TEST(CaptureInfoTest, RemovedDependenciesAreNotUnjoined,
          "nodes removed from the dependency set do not make the capture unjoined",
          STREAM_API("cuStreamUpdateCaptureDependencies")) {
  Begin();
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  CUDA_OK(cuStreamUpdateCaptureDependencies, stream_, nullptr, 0,
          CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(NodeCount(graph_), 2u);
}

RULE_TEST(CaptureInfoTest, OnlyACapturingStreamHasDependencies,
          "cuStreamUpdateCaptureDependencies is CUDA_ERROR_ILLEGAL_STATE outside of a capture",
          STREAM_API("cuStreamUpdateCaptureDependencies")) {
  CUDA_IS(CUDA_ERROR_ILLEGAL_STATE, cuStreamUpdateCaptureDependencies, stream_, nullptr, 0,
          CU_STREAM_SET_CAPTURE_DEPENDENCIES);
}

RULE_TEST(CaptureInfoTest, NodesMayBeAddedToTheGraphMeanwhile,
          "a program may add nodes to the graph that is being captured and depend on them",
          STREAM_API("cuStreamGetCaptureInfo")) {
  Begin();
  ASSERT_EQ(Launch(1, 1), CUDA_SUCCESS);
  const Info info = Look(stream_);
  CUgraphNode empty = nullptr;
  CUDA_OK(cuGraphAddEmptyNode, &empty, info.graph, info.dependencies, info.count);
  CUDA_OK(cuStreamUpdateCaptureDependencies, stream_, &empty, 1,
          CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  ASSERT_EQ(Launch(10, 0), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(NodeCount(graph_), 3u);
  Replay(graph_);
  EXPECT_EQ(ReadWord(word_), 20u);
}

RULE_TEST(CaptureInfoTest, ACaptureMayAddToAGraph,
          "cuStreamBeginCaptureToGraph places new nodes into an existing graph",
          STREAM_API("cuStreamBeginCaptureToGraph")) {
  CUgraph graph = nullptr;
  CUgraphNode root = nullptr;
  CUDA_OK(cuGraphCreate, &graph, 0);
  CUDA_OK(cuGraphAddEmptyNode, &root, graph, nullptr, 0);
  CUDA_OK(cuStreamBeginCaptureToGraph, stream_, graph, &root, nullptr, 1,
          CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(Launch(0, 3), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(graph_, graph);
  EXPECT_EQ(NodeCount(graph), 2u);
}

RULE_TEST(CaptureInfoTest, ItsFirstNodeHasTheDependenciesGiven,
          "the first node captured by cuStreamBeginCaptureToGraph has the dependencies given there",
          STREAM_API("cuStreamBeginCaptureToGraph")) {
  CUgraph graph = nullptr;
  CUgraphNode root = nullptr;
  CUDA_OK(cuGraphCreate, &graph, 0);
  CUDA_OK(cuGraphAddEmptyNode, &root, graph, nullptr, 0);
  CUDA_OK(cuStreamBeginCaptureToGraph, stream_, graph, &root, nullptr, 1,
          CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(Launch(0, 3), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  size_t edges = 0;
  CUDA_OK(cuGraphGetEdges, graph, nullptr, nullptr, &edges);
  EXPECT_EQ(edges, 1u);
}

}  // namespace
}  // namespace prorata::conformance
