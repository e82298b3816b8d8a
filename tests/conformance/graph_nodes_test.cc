// The kinds of graph nodes: what each does, and what its parameters are.

#include <atomic>

#include "conformance.h"
#include "step_graph.h"

namespace prorata::conformance {
namespace {

using GraphNodeTest = GraphTest;

void Count(void* data) { ++*static_cast<std::atomic<int>*>(data); }

RULE_TEST(GraphNodeTest, NodesSayTheirKind, "cuGraphNodeGetType gives the kind a node was added as",
          "CUDA Driver API 13.0, Graph Management, cuGraphNodeGetType") {
  CUgraphNode empty = nullptr;
  CUDA_OK(cuGraphAddEmptyNode, &empty, graph_, nullptr, 0);
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_GRAPH;
  CUDA_OK(cuGraphNodeGetType, empty, &type);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EMPTY);
  CUDA_OK(cuGraphNodeGetType, AddStep(1, 1), &type);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
}

RULE_TEST(GraphNodeTest, KernelParametersReadBack,
          "cuGraphKernelNodeGetParams gives the node's function, sizes and parameters",
          "CUDA Driver API 13.0, Graph Management, cuGraphKernelNodeGetParams") {
  const CUgraphNode node = AddStep(7, 9);
  CUDA_KERNEL_NODE_PARAMS params{};
  CUDA_OK(cuGraphKernelNodeGetParams_v2, node, &params);
  EXPECT_EQ(params.func, step_);
  EXPECT_EQ(params.gridDimX, 1u);
  ASSERT_NE(params.kernelParams, nullptr);
  EXPECT_EQ(*static_cast<uint64_t*>(params.kernelParams[1]), 7u);
  EXPECT_EQ(*static_cast<uint64_t*>(params.kernelParams[2]), 9u);
}

RULE_TEST(GraphNodeTest, KernelParametersAreCopiedWhenTheyAreGiven,
          "a kernel node copies its parameters when it is added: changing them later changes "
          "nothing",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddKernelNode") {
  AddStep(2, 5);
  StepParams(100, 100);  // overwrites what the node's parameters came from
  EXPECT_EQ(Run(Instantiate(graph_)), 7u);
}

RULE_TEST(GraphNodeTest, ABadKernelIsNotAdded, "a kernel node with a grid of 0 is refused",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddKernelNode (return values)") {
  CUDA_KERNEL_NODE_PARAMS params = StepParams(1, 1);
  params.gridDimX = 0;
  CUgraphNode node = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode_v2, &node, graph_, nullptr, 0, &params);
}

RULE_TEST(GraphNodeTest, ANodeOfAnotherKindHasNoSuchParameters,
          "asking a node for the parameters of another kind is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Graph Management, cuGraphMemsetNodeGetParams (return values)") {
  const CUgraphNode node = AddStep(7, 9);
  CUDA_MEMSET_NODE_PARAMS wrong;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphMemsetNodeGetParams, node, &wrong);
}

RULE_TEST(GraphNodeTest, AMemsetNodeFills,
          "a memset node sets its memory, and tells its parameters",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddMemsetNode") {
  CUDA_MEMSET_NODE_PARAMS fill = {word_, 0, 5, 4, 1, 1};
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddMemsetNode, &node, graph_, nullptr, 0, &fill, ctx_);
  EXPECT_EQ(Run(Instantiate(graph_)), 5u);
  CUDA_MEMSET_NODE_PARAMS seen{};
  CUDA_OK(cuGraphMemsetNodeGetParams, node, &seen);
  EXPECT_EQ(seen.dst, word_);
  EXPECT_EQ(seen.value, 5u);
  EXPECT_EQ(seen.elementSize, 4u);
  EXPECT_EQ(seen.width, 1u);
}

RULE_TEST(GraphNodeTest, MemsetElementsAre1Or2Or4Bytes,
          "a memset node's element size must be 1, 2 or 4",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddMemsetNode; "
          "CUDA_MEMSET_NODE_PARAMS") {
  CUgraphNode node = nullptr;
  for (unsigned bytes : {0u, 3u, 8u}) {
    CUDA_MEMSET_NODE_PARAMS fill = {word_, 0, 5, bytes, 1, 1};
    CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemsetNode, &node, graph_, nullptr, 0, &fill, ctx_);
  }
}

RULE_TEST(GraphNodeTest, AMemcpyNodeCopies, "a memcpy node copies when its turn comes",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddMemcpyNode") {
  volatile uint64_t* out = HostWord(0);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = word_;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = const_cast<uint64_t*>(out);
  copy.WidthInBytes = 8;
  copy.Height = copy.Depth = 1;
  const CUgraphNode first = AddStep(2, 5);
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddMemcpyNode, &node, graph_, &first, 1, &copy, ctx_);
  AddStep(0, 0, {node});
  EXPECT_EQ(Run(Instantiate(graph_)), 0u);
  EXPECT_EQ(*out, 7u);
  CUDA_MEMCPY3D seen{};
  CUDA_OK(cuGraphMemcpyNodeGetParams, node, &seen);
  EXPECT_EQ(seen.srcDevice, word_);
  EXPECT_EQ(seen.WidthInBytes, 8u);
}

RULE_TEST(GraphNodeTest, AHostNodeCallsTheProgram,
          "a host node calls its function once at each launch, in its place",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddHostNode") {
  std::atomic<int> calls = 0;
  CUDA_HOST_NODE_PARAMS host = {Count, &calls};
  CUgraphNode node = nullptr;
  const CUgraphNode before = AddStep(2, 0);
  CUDA_OK(cuGraphAddHostNode, &node, graph_, &before, 1, &host);
  CUgraphExec exec = Instantiate(graph_);
  EXPECT_EQ(calls, 0);
  Run(exec);
  EXPECT_EQ(calls, 1);
  Run(exec);
  EXPECT_EQ(calls, 2);
  CUDA_HOST_NODE_PARAMS seen{};
  CUDA_OK(cuGraphHostNodeGetParams, node, &seen);
  EXPECT_EQ(seen.fn, Count);
  EXPECT_EQ(seen.userData, &calls);
}

RULE_TEST(GraphNodeTest, AnEmptyNodeOrdersOthers,
          "an empty node does nothing, and what depends on it comes after what it depends on",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddEmptyNode") {
  const CUgraphNode twice = AddStep(2, 0);
  const CUgraphNode plus = AddStep(1, 3);
  CUgraphNode empty = nullptr;
  CUDA_OK(cuGraphAddEmptyNode, &empty, graph_, &plus, 1);
  CUDA_OK(cuGraphAddDependencies, graph_, &empty, &twice, 1);
  EXPECT_EQ(Run(Instantiate(graph_)), 8u);
}

RULE_TEST(GraphNodeTest, AChildGraphIsCloned,
          "a child graph node holds a clone: the graph it came from may be changed and destroyed",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddChildGraphNode") {
  CUgraph parent = nullptr;
  CUgraphNode node = nullptr;
  AddStep(2, 5);
  CUDA_OK(cuGraphCreate, &parent, 0);
  CUDA_OK(cuGraphAddChildGraphNode, &node, parent, nullptr, 0, graph_);
  AddStep(100, 0);
  CUDA_OK(cuGraphDestroy, graph_);
  graph_ = parent;
  EXPECT_EQ(Run(Instantiate(parent)), 7u);
}

RULE_TEST(GraphNodeTest, AChildGraphBelongsToItsNode,
          "cuGraphChildGraphNodeGetGraph gives the node's own graph: changes to it are the node's",
          "CUDA Driver API 13.0, Graph Management, cuGraphChildGraphNodeGetGraph") {
  CUgraph child = nullptr;
  CUgraph embedded = nullptr;
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphCreate, &child, 0);
  CUDA_OK(cuGraphAddChildGraphNode, &node, graph_, nullptr, 0, child);
  CUDA_OK(cuGraphDestroy, child);
  CUDA_OK(cuGraphChildGraphNodeGetGraph, node, &embedded);
  const CUDA_KERNEL_NODE_PARAMS params = StepParams(2, 5);
  CUgraphNode inside = nullptr;
  CUDA_OK(cuGraphAddKernelNode_v2, &inside, embedded, nullptr, 0, &params);
  EXPECT_EQ(Run(Instantiate(graph_)), 7u);
}

RULE_TEST(GraphNodeTest, EventNodesRecordAndWait,
          "an event record node records its event at each launch, in its place",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddEventRecordNode") {
  CUevent event = NewEvent();
  CUgraphNode record = nullptr;
  CUDA_OK(cuGraphAddEventRecordNode, &record, graph_, nullptr, 0, event);
  CUgraphExec exec = Instantiate(graph_);
  CUstream held = NewStream();
  CUstream waiter = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(held), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, held);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, event);
  CUDA_OK(cuStreamWaitEvent, waiter, event, 0);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, waiter);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, waiter);
  CUevent seen = nullptr;
  CUDA_OK(cuGraphEventRecordNodeGetEvent, record, &seen);
  EXPECT_EQ(seen, event);
}

RULE_TEST(GraphNodeTest, AnEventWaitNodeHoldsItsGraph,
          "an event wait node waits for its event's last record, and its dependents with it",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddEventWaitNode") {
  CUevent event = NewEvent();
  CUgraphNode wait = nullptr;
  CUDA_OK(cuGraphAddEventWaitNode, &wait, graph_, nullptr, 0, event);
  AddStep(2, 5, {wait});
  CUgraphExec exec = Instantiate(graph_);
  CUstream held = NewStream();
  CUstream stream = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(held), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, held);
  CUDA_OK(cuGraphLaunch, exec, stream);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(ReadWord(word_), 7u);
}

RULE_TEST(GraphNodeTest, OneCallAddsEveryKind,
          "cuGraphAddNode adds the kind that its parameters name",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddNode") {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset.dst = word_;
  params.memset.value = 9;
  params.memset.elementSize = 4;
  params.memset.width = 1;
  params.memset.height = 1;
  params.memset.ctx = ctx_;
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddNode_v2, &node, graph_, nullptr, nullptr, 0, &params);
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUDA_OK(cuGraphNodeGetType, node, &type);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEMSET);
  EXPECT_EQ(Run(Instantiate(graph_)), 9u);
}

RULE_TEST(GraphNodeTest, AnExecutablesNodeTakesNewParameters,
          "cuGraphExecKernelNodeSetParams changes later launches, and not the graph",
          "CUDA Driver API 13.0, Graph Management, cuGraphExecKernelNodeSetParams") {
  const CUgraphNode node = AddStep(1, 3);
  CUgraphExec exec = Instantiate(graph_);
  const CUDA_KERNEL_NODE_PARAMS params = StepParams(1, 100);
  CUDA_OK(cuGraphExecKernelNodeSetParams_v2, exec, node, &params);
  EXPECT_EQ(Run(exec), 101u);
  EXPECT_EQ(Run(Instantiate(graph_)), 104u);
}

RULE_TEST(GraphNodeTest, ADisabledNodeDoesNothing,
          "a disabled node is as good as empty until it is enabled again",
          "CUDA Driver API 13.0, Graph Management, cuGraphNodeSetEnabled") {
  const CUgraphNode node = AddStep(1, 3);
  CUgraphExec exec = Instantiate(graph_);
  unsigned enabled = 0;
  CUDA_OK(cuGraphNodeGetEnabled, exec, node, &enabled);
  EXPECT_EQ(enabled, 1u);
  CUDA_OK(cuGraphNodeSetEnabled, exec, node, 0);
  EXPECT_EQ(Run(exec), 1u);
  CUDA_OK(cuGraphNodeSetEnabled, exec, node, 1);
  EXPECT_EQ(Run(exec), 4u);
}

RULE_TEST(GraphNodeTest, OnlySomeKindsAreDisabled,
          "kernel, memset and memcpy nodes can be disabled, and no others",
          "CUDA Driver API 13.0, Graph Management, cuGraphNodeSetEnabled") {
  CUgraphNode empty = nullptr;
  CUDA_OK(cuGraphAddEmptyNode, &empty, graph_, nullptr, 0);
  CUgraphExec exec = Instantiate(graph_);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetEnabled, exec, empty, 0);
}

}  // namespace
}  // namespace prorata::conformance
