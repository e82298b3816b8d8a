// Executable graphs: what runs when.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "graph_fixture.h"

namespace prorata::conformance {
namespace {

// Where the time between two calls must not matter, a gate holds the streams until all is
// submitted.
constexpr char kGuide[] = "CUDA C++ Programming Guide, CUDA Graphs, Graph Structure";
constexpr char kLaunch[] = "CUDA Driver API, Graph Management, cuGraphLaunch";
constexpr char kSetParams[] = "CUDA Driver API, Graph Management, cuGraphExecKernelNodeSetParams";
constexpr char kEnabled[] = "CUDA Driver API, Graph Management, cuGraphNodeSetEnabled";
constexpr char kDestroy[] = "CUDA Driver API, Graph Management, cuGraphExecDestroy";

// One begins while the other runs, unless the thread that begins it is late by more than these.
constexpr uint64_t kLengthsNs[] = {2 * kMs, 50 * kMs, 500 * kMs};

class GraphExecTest : public StampGraphTest {
 protected:
  bool Overlap(CUdeviceptr first, CUdeviceptr second) {
    const Span a = Read(first), b = Read(second);
    return std::max(a.start, b.start) < std::min(a.end, b.end);
  }
};

RULE_TEST(GraphExecTest, BranchesOverlap,
          "nodes that do not depend on each other may run at the same time", kGuide) {
  const CUdeviceptr stamps[] = {NewStamp(), NewStamp()};
  bool overlap = false;
  for (const uint64_t ns : kLengthsNs) {
    CUgraph graph = nullptr;
    CUDA_OK(cuGraphCreate, &graph, 0);
    for (CUdeviceptr stamp : stamps) AddStamp(graph, {}, stamp, ns);
    CUDA_OK(cuGraphLaunch, Instantiate(graph), nullptr);
    Synchronize();
    CUDA_OK(cuGraphDestroy, graph);
    overlap = Overlap(stamps[0], stamps[1]);
    if (overlap) break;
  }
  EXPECT_TRUE(overlap);
}

RULE_TEST(GraphExecTest, ANodeRunsAfterAllThatItDependsOn,
          "an operation is scheduled once the nodes on which it depends are complete, also across "
          "branches",
          kGuide) {
  const CUdeviceptr first = NewStamp();
  const CUdeviceptr left = NewStamp();
  const CUdeviceptr right = NewStamp();
  const CUdeviceptr last = NewStamp();
  const CUgraphNode a = AddStamp(graph_, {}, first);
  const CUgraphNode b = AddStamp(graph_, {a}, left);
  const CUgraphNode c = AddStamp(graph_, {a}, right, 2 * kNs);
  AddStamp(graph_, {b, c}, last);
  CUDA_OK(cuGraphLaunch, Instantiate(graph_), nullptr);
  Synchronize();
  EXPECT_GE(Read(left).start, Read(first).end);
  EXPECT_GE(Read(right).start, Read(first).end);
  EXPECT_GE(Read(last).start, Read(left).end);
  EXPECT_GE(Read(last).start, Read(right).end);
}

RULE_TEST(GraphExecTest, AllOfItComesAfterWhatWasInTheStream,
          "a launch is ordered behind all previous work in the stream", kLaunch) {
  CUstream stream = NewStream();
  const CUdeviceptr before = NewStamp();
  const CUdeviceptr stamps[] = {NewStamp(), NewStamp(), NewStamp()};
  for (CUdeviceptr stamp : stamps) AddStamp(graph_, {}, stamp);
  CUgraphExec exec = Instantiate(graph_);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  ASSERT_EQ(LaunchStamp(stream, before), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, stream);
  gate.Open();
  Synchronize();
  for (CUdeviceptr stamp : stamps) EXPECT_GE(Read(stamp).start, Read(before).end);
}

RULE_TEST(GraphExecTest, WhatComesBehindWaitsForAllOfIt,
          "work behind a launch in the stream waits until the whole graph has run", kLaunch) {
  CUstream stream = NewStream();
  const CUdeviceptr behind = NewStamp();
  const CUdeviceptr stamps[] = {NewStamp(), NewStamp(), NewStamp()};
  uint64_t ns = kNs;
  for (CUdeviceptr stamp : stamps) AddStamp(graph_, {}, stamp, ns *= 2);
  CUgraphExec exec = Instantiate(graph_);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, stream);
  ASSERT_EQ(LaunchStamp(stream, behind), CUDA_SUCCESS);
  gate.Open();
  Synchronize();
  for (CUdeviceptr stamp : stamps) EXPECT_GE(Read(behind).start, Read(stamp).end);
}

RULE_TEST(GraphExecTest, TheLegacyStreamWaitsForAllBranches,
          "work in the legacy stream waits for a whole graph in a blocking stream",
          "CUDA Driver API, Stream synchronization behavior, Legacy default stream") {
  CUstream stream = NewStream(CU_STREAM_DEFAULT);
  const CUdeviceptr behind = NewStamp();
  const CUdeviceptr stamps[] = {NewStamp(), NewStamp()};
  uint64_t ns = kNs;
  for (CUdeviceptr stamp : stamps) AddStamp(graph_, {}, stamp, ns *= 2);
  CUgraphExec exec = Instantiate(graph_);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, stream);
  ASSERT_EQ(LaunchStamp(nullptr, behind), CUDA_SUCCESS);
  gate.Open();
  Synchronize();
  for (CUdeviceptr stamp : stamps) EXPECT_GE(Read(behind).start, Read(stamp).end);
}

RULE_TEST(GraphExecTest, LaunchesOfOneFollowEachOther,
          "launches of the same executable graph are ordered, whatever their streams", kLaunch) {
  const CUdeviceptr first = NewStamp();
  const CUdeviceptr second = NewStamp();
  const CUgraphNode node = AddStamp(graph_, {}, first);
  CUgraphExec exec = Instantiate(graph_);
  CUstream streams[] = {NewStream(), NewStream()};
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(streams[0]), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, streams[0]);
  CUDA_OK(cuGraphExecKernelNodeSetParams_v2, exec, node, StampParams(second, kNs));
  CUDA_OK(cuGraphLaunch, exec, streams[1]);
  gate.Open();
  Synchronize();
  EXPECT_GE(Read(second).start, Read(first).end);
}

RULE_TEST(GraphExecTest, TwoOfOneGraphOverlap,
          "executable graphs of one graph are independent of each other", kLaunch) {
  const CUdeviceptr first = NewStamp();
  const CUdeviceptr second = NewStamp();
  const CUgraphNode node = AddStamp(graph_, {}, first);
  CUgraphExec execs[] = {Instantiate(graph_), Instantiate(graph_)};
  bool overlap = false;
  for (const uint64_t ns : kLengthsNs) {
    CUDA_OK(cuGraphExecKernelNodeSetParams_v2, execs[0], node, StampParams(first, ns));
    CUDA_OK(cuGraphExecKernelNodeSetParams_v2, execs[1], node, StampParams(second, ns));
    Gate& gate = NewGate();
    for (CUgraphExec exec : execs) {
      CUstream stream = NewStream();
      ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
      CUDA_OK(cuGraphLaunch, exec, stream);
    }
    gate.Open();
    Synchronize();
    overlap = Overlap(first, second);
    if (overlap) break;
  }
  EXPECT_TRUE(overlap);
}

RULE_TEST(GraphExecTest, NewParametersAreForLaterLaunches,
          "a launch that is enqueued or running is not affected by new parameters", kSetParams) {
  const CUdeviceptr first = NewStamp();
  const CUdeviceptr second = NewStamp();
  const CUgraphNode node = AddStamp(graph_, {}, first);
  CUgraphExec exec = Instantiate(graph_);
  CUstream stream = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, stream);
  CUDA_OK(cuGraphExecKernelNodeSetParams_v2, exec, node, StampParams(second, kNs));
  gate.Open();
  Synchronize();
  EXPECT_GT(Read(first).end, 0u);
  uint64_t untouched = 1;
  CUDA_OK(cuMemcpyDtoH_v2, &untouched, second, sizeof(untouched));
  EXPECT_EQ(untouched, 0u);
}

RULE_TEST(GraphExecTest, ADisabledNodeStillOrders,
          "a disabled node is equivalent to an empty node: it does nothing, and orders", kEnabled) {
  const CUdeviceptr first = NewStamp();
  const CUdeviceptr disabled = NewStamp();
  const CUdeviceptr last = NewStamp();
  const CUgraphNode a = AddStamp(graph_, {}, first);
  const CUgraphNode b = AddStamp(graph_, {a}, disabled);
  AddStamp(graph_, {b}, last);
  CUgraphExec exec = Instantiate(graph_);
  CUDA_OK(cuGraphNodeSetEnabled, exec, b, 0);
  unsigned enabled = 1;
  CUDA_OK(cuGraphNodeGetEnabled, exec, b, &enabled);
  EXPECT_EQ(enabled, 0u);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  Synchronize();
  EXPECT_GE(Read(last).start, Read(first).end);
  uint64_t untouched = 1;
  CUDA_OK(cuMemcpyDtoH_v2, &untouched, disabled, sizeof(untouched));
  EXPECT_EQ(untouched, 0u);
}

RULE_TEST(GraphExecTest, AChildGraphIsOneNode,
          "all of a child graph runs after what its node depends on and before what depends on it",
          "CUDA C++ Programming Guide, CUDA Graphs, Node Types") {
  const CUdeviceptr first = NewStamp();
  const CUdeviceptr inner[] = {NewStamp(), NewStamp()};
  const CUdeviceptr last = NewStamp();
  CUgraph child = nullptr;
  CUDA_OK(cuGraphCreate, &child, 0);
  for (CUdeviceptr stamp : inner) AddStamp(child, {}, stamp);
  const CUgraphNode a = AddStamp(graph_, {}, first);
  CUgraphNode b = nullptr;
  CUDA_OK(cuGraphAddChildGraphNode, &b, graph_, &a, 1, child);
  AddStamp(graph_, {b}, last);
  CUDA_OK(cuGraphLaunch, Instantiate(graph_), nullptr);
  Synchronize();
  for (CUdeviceptr stamp : inner) {
    EXPECT_GE(Read(stamp).start, Read(first).end);
    EXPECT_GE(Read(last).start, Read(stamp).end);
  }
}

RULE_TEST(GraphExecTest, AChildGraphsParametersAreReplacedTogether,
          "the nodes of a child graph get the parameters of another graph of the same topology",
          "CUDA Driver API, Graph Management, cuGraphExecChildGraphNodeSetParams") {
  const CUdeviceptr first = NewStamp();
  const CUdeviceptr second = NewStamp();
  CUgraph children[3] = {};
  for (CUgraph& child : children) CUDA_OK(cuGraphCreate, &child, 0);
  AddStamp(children[0], {}, first);
  AddStamp(children[1], {}, second);
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddChildGraphNode, &node, graph_, nullptr, 0, children[0]);
  CUgraphExec exec = Instantiate(graph_);
  CUDA_OK(cuGraphExecChildGraphNodeSetParams, exec, node, children[1]);
  EXPECT_NE(CUDA(cuGraphExecChildGraphNodeSetParams)(exec, node, children[2]), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  Synchronize();
  EXPECT_GT(Read(second).end, 0u);
  uint64_t untouched = 1;
  CUDA_OK(cuMemcpyDtoH_v2, &untouched, first, sizeof(untouched));
  EXPECT_EQ(untouched, 0u);
}

RULE_TEST(GraphExecTest, AGraphCanBePrinted,
          "cuGraphDebugDotPrint writes a description of the graph in the DOT language",
          "CUDA Driver API, Graph Management, cuGraphDebugDotPrint") {
  const CUgraphNode a = AddStamp(graph_, {}, NewStamp());
  AddStamp(graph_, {a}, NewStamp());
  const std::string path = ::testing::TempDir() + "prorata-graph.dot";
  CUDA_OK(cuGraphDebugDotPrint, graph_, path.c_str(), 0);
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(text.starts_with("digraph")) << text;
  EXPECT_NE(text.find("->"), std::string::npos) << text;
  std::remove(path.c_str());
}

RULE_TEST(GraphExecTest, AnEmptyChildGraphStillOrders,
          "a child graph without nodes does nothing, and orders",
          "CUDA C++ Programming Guide, CUDA Graphs, Node Types") {
  const CUdeviceptr stamps[] = {NewStamp(), NewStamp(), NewStamp()};
  CUgraph child = nullptr;
  CUDA_OK(cuGraphCreate, &child, 0);
  const Nodes before = {AddStamp(graph_, {}, stamps[0]), AddStamp(graph_, {}, stamps[1])};
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddChildGraphNode, &node, graph_, before.data(), before.size(), child);
  AddStamp(graph_, {node}, stamps[2]);
  CUDA_OK(cuGraphLaunch, Instantiate(graph_), nullptr);
  Synchronize();
  EXPECT_GE(Read(stamps[2]).start, std::max(Read(stamps[0]).end, Read(stamps[1]).end));
}

RULE_TEST(
    GraphExecTest, AnEventOfOneBranchIsWaitedForAlone,
    "an event record node marks its own place in the graph; others wait for that, not for the "
    "whole launch",
    "CUDA Driver API, Graph Management, cuGraphAddEventRecordNode") {
  CUevent event = NewEvent();
  const CUdeviceptr brief = NewStamp();
  const CUdeviceptr lengthy = NewStamp();
  const CUdeviceptr outside = NewStamp();
  const CUgraphNode a = AddStamp(graph_, {}, brief);
  AddStamp(graph_, {}, lengthy, 5 * kNs);
  CUgraphNode record = nullptr;
  CUDA_OK(cuGraphAddEventRecordNode, &record, graph_, &a, 1, event);
  CUgraphExec exec = Instantiate(graph_);
  CUstream streams[] = {NewStream(), NewStream()};
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(streams[0]), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, streams[0]);
  CUDA_OK(cuStreamWaitEvent, streams[1], event, 0);
  ASSERT_EQ(LaunchStamp(streams[1], outside), CUDA_SUCCESS);
  gate.Open();
  Synchronize();
  EXPECT_GE(Read(outside).start, Read(brief).end);
  EXPECT_LT(Read(outside).start, Read(lengthy).end);
}

RULE_TEST(GraphExecTest, AnEventWaitNodeHoldsItsBranchOnly,
          "an event wait node makes what depends on it wait for the event's work",
          "CUDA Driver API, Graph Management, cuGraphAddEventWaitNode") {
  CUevent event = NewEvent();
  const CUdeviceptr outside = NewStamp();
  const CUdeviceptr held = NewStamp();
  const CUdeviceptr other = NewStamp();
  CUgraphNode wait = nullptr;
  CUDA_OK(cuGraphAddEventWaitNode, &wait, graph_, nullptr, 0, event);
  AddStamp(graph_, {wait}, held);
  AddStamp(graph_, {}, other);
  CUgraphExec exec = Instantiate(graph_);
  CUstream streams[] = {NewStream(), NewStream()};
  Gate& gate = NewGate();
  for (CUstream stream : streams) ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  ASSERT_EQ(LaunchStamp(streams[0], outside, 5 * kNs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, streams[0]);
  CUDA_OK(cuGraphLaunch, exec, streams[1]);
  gate.Open();
  Synchronize();
  EXPECT_GE(Read(held).start, Read(outside).end);
  EXPECT_LT(Read(other).start, Read(outside).end);
}

RULE_TEST(GraphExecTest, LaunchedWhileCapturingItBecomesAChildGraph,
          "a graph that is launched into a capturing stream is captured as a child graph node",
          "CUDA C++ Programming Guide, CUDA Graphs, Creating a Graph Using Stream Capture") {
  const CUdeviceptr stamp = NewStamp();
  AddStamp(graph_, {}, stamp);
  CUgraphExec exec = Instantiate(graph_);
  CUstream stream = NewStream();
  CUDA_OK(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuGraphLaunch, exec, stream);
  CUgraph captured = nullptr;
  CUDA_OK(cuStreamEndCapture, stream, &captured);
  CUgraphNode node = nullptr;
  size_t count = 1;
  CUDA_OK(cuGraphGetNodes, captured, &node, &count);
  ASSERT_EQ(count, 1u);
  CUgraphNodeType type;
  CUDA_OK(cuGraphNodeGetType, node, &type);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_GRAPH);
  CUDA_OK(cuGraphLaunch, Instantiate(captured), stream);
  Synchronize();
  EXPECT_GT(Read(stamp).end, 0u);
}

RULE_TEST(GraphExecTest, DestroyedInFlightItStillRuns,
          "an executable graph that is in flight when it is destroyed is not terminated",
          kDestroy) {
  const CUdeviceptr stamps[] = {NewStamp(), NewStamp()};
  for (CUdeviceptr stamp : stamps) AddStamp(graph_, {}, stamp, 5 * kNs);
  CUgraphExec exec = Instantiate(graph_);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  CUDA_OK(cuGraphExecDestroy, exec);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphExecDestroy, exec);
  Synchronize();
  for (CUdeviceptr stamp : stamps) EXPECT_GT(Read(stamp).end, 0u);
}

RULE_TEST(GraphExecTest, AWideGraphRunsWhole,
          "all nodes of a graph run before what is behind it, however many branches it has",
          kLaunch) {
  constexpr int kBranches = 200;
  const CUdeviceptr word = NewWord(0);
  CUgraphNode root = nullptr;
  CUDA_OK(cuGraphAddEmptyNode, &root, graph_, nullptr, 0);
  std::atomic<int> calls = 0;
  CUDA_HOST_NODE_PARAMS host = {[](void* data) { ++*static_cast<std::atomic<int>*>(data); },
                                &calls};
  for (int i = 0; i < kBranches; ++i) {
    CUgraphNode node = nullptr;
    CUDA_OK(cuGraphAddHostNode, &node, graph_, &root, 1, &host);
  }
  CUDA_OK(cuGraphLaunch, Instantiate(graph_), nullptr);
  ASSERT_EQ(Step(nullptr, word, 1, 7, 1000), CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(word), 7u);
  EXPECT_EQ(calls, kBranches);
}

RULE_TEST(GraphExecTest, AGraphLongerThanAQueueRuns,
          "a launch that the device's queues cannot hold at once still runs all nodes in order",
          kLaunch) {
  // Two branches of 3000 nodes each, which swap a word's value at every step.
  constexpr int kNodes = 3000;
  CUdeviceptr words[] = {NewWord(0), NewWord(0)};
  for (CUdeviceptr& word : words) {
    uint64_t factor = 1, term = 1, ns = 100;
    void* arguments[] = {&word, &factor, &term, &ns};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = Kernel("step");
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    CUgraphNode last = nullptr;
    for (int i = 0; i < kNodes; ++i) {
      CUDA_OK(cuGraphAddKernelNode_v2, &last, graph_, &last, last ? 1 : 0, &params);
    }
  }
  CUDA_OK(cuGraphLaunch, Instantiate(graph_), nullptr);
  Synchronize();
  for (CUdeviceptr word : words) EXPECT_EQ(ReadWord(word), uint64_t{kNodes});
}

}  // namespace
}  // namespace prorata::conformance
