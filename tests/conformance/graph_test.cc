// Graphs as data and as executables: edges, clones, instantiation, launches, updates.

#include <set>
#include <vector>

#include "conformance.h"
#include "step_graph.h"

namespace prorata::conformance {
namespace {

RULE_TEST(GraphTest, EdgesDecideTheOrder, "a node runs after the nodes it depends on",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddDependencies") {
  // Made in one order, to run in another: (1 + 3) * 2.
  const CUgraphNode twice = AddStep(2, 0);
  const CUgraphNode plus = AddStep(1, 3);
  CUDA_OK(cuGraphAddDependencies, graph_, &plus, &twice, 1);
  EXPECT_EQ(Run(Instantiate(graph_)), 8u);
}

RULE_TEST(GraphTest, AnEdgeIsAddedOnce, "an edge that is there already is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddDependencies") {
  const CUgraphNode a = AddStep(2, 0);
  const CUgraphNode b = AddStep(1, 3, {a});
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies, graph_, &a, &b, 1);
}

RULE_TEST(GraphTest, EdgesStayInTheirGraph,
          "both ends of an edge must be nodes of the graph it is added to",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddDependencies") {
  CUgraph other = nullptr;
  CUgraphNode foreign = nullptr;
  CUDA_OK(cuGraphCreate, &other, 0);
  CUDA_OK(cuGraphAddEmptyNode, &foreign, other, nullptr, 0);
  const CUgraphNode mine = AddStep(2, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies, graph_, &foreign, &mine, 1);
  CUgraphNode none = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode, &none, graph_, &foreign, 1);
  CUDA_OK(cuGraphDestroy, other);
}

RULE_TEST(GraphTest, ARemovedEdgeOrdersNothing,
          "cuGraphRemoveDependencies removes an edge; one that is not there is an error",
          "CUDA Driver API 13.0, Graph Management, cuGraphRemoveDependencies") {
  const CUgraphNode a = AddStep(2, 0);
  const CUgraphNode b = AddStep(1, 3, {a});
  CUDA_OK(cuGraphRemoveDependencies, graph_, &a, &b, 1);
  EXPECT_EQ(Edges().size(), 0u);
  EXPECT_EQ(Roots().size(), 2u);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies, graph_, &a, &b, 1);
}

RULE_TEST(GraphTest, EdgesAreListed, "cuGraphGetEdges lists each edge as from and to",
          "CUDA Driver API 13.0, Graph Management, cuGraphGetEdges") {
  const CUgraphNode a = AddStep(2, 0);
  const CUgraphNode b = AddStep(1, 3, {a});
  const CUgraphNode c = AddStep(1, 4, {a, b});
  using Edge = std::pair<CUgraphNode, CUgraphNode>;
  EXPECT_EQ(Edges(), (std::set<Edge>{{a, b}, {a, c}, {b, c}}));
}

RULE_TEST(GraphTest, ListsAreCountedFirst,
          "with a NULL array a list call gives the count; with a longer one, the rest is NULL and "
          "the count that of the entries",
          "CUDA Driver API 13.0, Graph Management, cuGraphGetNodes") {
  AddStep(2, 0);
  AddStep(1, 3);
  size_t count = 0;
  CUDA_OK(cuGraphGetNodes, graph_, nullptr, &count);
  EXPECT_EQ(count, 2u);
  CUgraphNode nodes[4] = {};
  nodes[3] = reinterpret_cast<CUgraphNode>(&count);
  count = 4;
  CUDA_OK(cuGraphGetNodes, graph_, nodes, &count);
  EXPECT_EQ(count, 2u);
  EXPECT_NE(nodes[1], nullptr);
  EXPECT_EQ(nodes[2], nullptr);
  EXPECT_EQ(nodes[3], nullptr);
}

RULE_TEST(GraphTest, RootsDependOnNothing,
          "cuGraphGetRootNodes lists the nodes without dependencies",
          "CUDA Driver API 13.0, Graph Management, cuGraphGetRootNodes") {
  const CUgraphNode a = AddStep(2, 0);
  const CUgraphNode b = AddStep(2, 0);
  AddStep(1, 3, {a});
  EXPECT_EQ(Roots(), (std::set<CUgraphNode>{a, b}));
}

RULE_TEST(GraphTest, NodesKnowTheirNeighbours,
          "cuGraphNodeGetDependencies and cuGraphNodeGetDependentNodes are each other's reverse",
          "CUDA Driver API 13.0, Graph Management, cuGraphNodeGetDependencies and "
          "cuGraphNodeGetDependentNodes") {
  const CUgraphNode a = AddStep(2, 0);
  const CUgraphNode b = AddStep(1, 3, {a});
  CUgraphNode node = nullptr;
  size_t count = 1;
  CUDA_OK(cuGraphNodeGetDependencies, b, &node, &count);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(node, a);
  node = nullptr;
  CUDA_OK(cuGraphNodeGetDependentNodes, a, &node, &count);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(node, b);
  CUDA_OK(cuGraphNodeGetDependencies, a, nullptr, &count);
  EXPECT_EQ(count, 0u);
}

RULE_TEST(GraphTest, ADestroyedNodeTakesItsEdgesAlong,
          "cuGraphDestroyNode removes the node and all edges to and from it",
          "CUDA Driver API 13.0, Graph Management, cuGraphDestroyNode") {
  const CUgraphNode a = AddStep(2, 0);
  const CUgraphNode b = AddStep(1, 3, {a});
  const CUgraphNode c = AddStep(10, 0, {b});
  CUDA_OK(cuGraphDestroyNode, b);
  EXPECT_EQ(Edges().size(), 0u);
  EXPECT_EQ(Roots(), (std::set<CUgraphNode>{a, c}));
  EXPECT_EQ(Run(Instantiate(graph_)), 20u);
}

RULE_TEST(GraphTest, AStaleNodeIsRefused, "a destroyed node, or graph, is no handle any more",
          "CUDA Driver API 13.0, Graph Management, cuGraphDestroyNode (return values)") {
  SIMULATED_ONLY("a stale handle is undefined behaviour on a GPU");
  const CUgraphNode a = AddStep(2, 0);
  CUDA_OK(cuGraphDestroyNode, a);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode, a);
  CUDA_OK(cuGraphDestroy, graph_);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy, graph_);
  graph_ = nullptr;
}

RULE_TEST(GraphTest, CreateFlagsMustBeZero, "cuGraphCreate's flags must be 0",
          "CUDA Driver API 13.0, Graph Management, cuGraphCreate") {
  CUgraph graph = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphCreate, &graph, 1);
}

RULE_TEST(GraphTest, ACloneIsAnotherGraph,
          "changes to a graph do not change its clone, nor the reverse",
          "CUDA Driver API 13.0, Graph Management, cuGraphClone") {
  const CUgraphNode a = AddStep(1, 3);
  CUgraph clone = nullptr;
  CUDA_OK(cuGraphClone, &clone, graph_);
  AddStep(10, 0, {a});
  const CUDA_KERNEL_NODE_PARAMS params = StepParams(1, 50);
  CUDA_OK(cuGraphKernelNodeSetParams_v2, a, &params);
  EXPECT_EQ(Run(Instantiate(clone)), 4u);
  CUDA_OK(cuGraphDestroy, clone);
}

RULE_TEST(GraphTest, NodesAreFoundInTheClone,
          "cuGraphNodeFindInClone gives the clone of a node, with its edges",
          "CUDA Driver API 13.0, Graph Management, cuGraphNodeFindInClone") {
  const CUgraphNode a = AddStep(1, 3);
  const CUgraphNode b = AddStep(1, 4, {a});
  CUgraph clone = nullptr;
  CUgraphNode found_a = nullptr;
  CUgraphNode found_b = nullptr;
  CUDA_OK(cuGraphClone, &clone, graph_);
  CUDA_OK(cuGraphNodeFindInClone, &found_a, a, clone);
  CUDA_OK(cuGraphNodeFindInClone, &found_b, b, clone);
  EXPECT_NE(found_a, a);
  CUgraphNode dependency = nullptr;
  size_t count = 1;
  CUDA_OK(cuGraphNodeGetDependencies, found_b, &dependency, &count);
  EXPECT_EQ(dependency, found_a);
  const CUgraphNode later = AddStep(1, 5);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone, &found_a, later, clone);
  CUDA_OK(cuGraphDestroy, clone);
}

RULE_TEST(GraphTest, ACircleIsNotInstantiated,
          "a graph with a circle of dependencies is invalid: it is not instantiated",
          "CUDA Driver API 13.0, Graph Management, cuGraphInstantiate (structural constraints)") {
  const CUgraphNode a = AddStep(2, 0);
  const CUgraphNode b = AddStep(1, 3, {a});
  if (CUDA(cuGraphAddDependencies)(graph_, &b, &a, 1) != CUDA_SUCCESS) return;  // refused earlier
  CUgraphExec exec = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags, &exec, graph_, 0);
}

RULE_TEST(GraphTest, AFailedInstantiationSaysWhere,
          "of an invalid structure, cuGraphInstantiateWithParams names the result and an offending "
          "node",
          "CUDA Driver API 13.0, Graph Management, cuGraphInstantiateWithParams") {
  const CUgraphNode a = AddStep(2, 0);
  const CUgraphNode b = AddStep(1, 3, {a});
  if (CUDA(cuGraphAddDependencies)(graph_, &b, &a, 1) != CUDA_SUCCESS) return;  // refused earlier
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  CUgraphExec exec = nullptr;
  EXPECT_NE(CUDA(cuGraphInstantiateWithParams)(&exec, graph_, &params), CUDA_SUCCESS);
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
  EXPECT_TRUE(params.hErrNode_out == a || params.hErrNode_out == b);
}

RULE_TEST(GraphTest, ASuccessfulInstantiationSaysSo,
          "cuGraphInstantiateWithParams sets result_out to SUCCESS and hErrNode_out to NULL",
          "CUDA Driver API 13.0, Graph Management, cuGraphInstantiateWithParams") {
  const CUgraphNode a = AddStep(2, 3);
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.hErrNode_out = a;
  params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  CUgraphExec exec = nullptr;
  CUDA_OK(cuGraphInstantiateWithParams, &exec, graph_, &params);
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
  EXPECT_EQ(params.hErrNode_out, nullptr);
  EXPECT_EQ(Run(exec), 5u);
}

RULE_TEST(GraphTest, InstantiationFlagsAreReported,
          "cuGraphExecGetFlags gives the flags of the instantiation; unknown ones are refused",
          "CUDA Driver API 13.0, Graph Management, cuGraphExecGetFlags and cuGraphInstantiate") {
  AddStep(1, 1);
  CUgraphExec exec = nullptr;
  cuuint64_t flags = 0;
  CUDA_OK(cuGraphInstantiateWithFlags, &exec, graph_,
          CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
  CUDA_OK(cuGraphExecGetFlags, exec, &flags);
  EXPECT_EQ(flags, cuuint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY});
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags, &exec, graph_, 0x1000);
}

RULE_TEST(GraphTest, AnExecutableIsACopy,
          "changing or destroying a graph does not change what was instantiated from it",
          "CUDA C++ Programming Guide 13.0, 6.2.8.7 CUDA Graphs (instantiation takes a snapshot)") {
  const CUgraphNode node = AddStep(1, 3);
  CUgraphExec exec = Instantiate(graph_);
  const CUDA_KERNEL_NODE_PARAMS params = StepParams(1, 100);
  CUDA_OK(cuGraphKernelNodeSetParams_v2, node, &params);
  EXPECT_EQ(Run(exec), 4u);
  CUDA_OK(cuGraphDestroy, graph_);
  graph_ = nullptr;
  EXPECT_EQ(Run(exec), 7u);
}

RULE_TEST(GraphTest, AnExecutableRunsAgainAndAgain,
          "an executable graph may be launched any number of times, in its stream's order",
          "CUDA Driver API 13.0, Graph Management, cuGraphLaunch") {
  AddStep(2, 1);
  CUgraphExec exec = Instantiate(graph_);
  CUstream stream = NewStream();
  for (int i = 0; i < 5; ++i) CUDA_OK(cuGraphLaunch, exec, stream);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(ReadWord(word_), 63u);
}

RULE_TEST(GraphTest, ALaunchFollowsItsStream,
          "a launched graph runs after the stream's earlier work and before its later work",
          "CUDA Driver API 13.0, Graph Management, cuGraphLaunch") {
  AddStep(2, 1);
  CUgraphExec exec = Instantiate(graph_);
  CUstream stream = NewStream();
  ASSERT_EQ(Step(stream, word_, 0, 10, 10'000'000), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, stream);
  ASSERT_EQ(Step(stream, word_, 100, 0, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(ReadWord(word_), 2100u);
}

RULE_TEST(GraphTest, LaunchesOfOneExecutableDoNotOverlap,
          "a launch runs after earlier launches of the same executable, in whatever streams",
          "CUDA Driver API 13.0, Graph Management, cuGraphLaunch: only one instance of hGraphExec "
          "may be executing at a time") {
  AddStep(2, 1);
  CUgraphExec exec = Instantiate(graph_);
  CUstream first = NewStream();
  CUstream second = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(first), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, first);
  CUDA_OK(cuGraphLaunch, exec, second);
  CUevent done = NewEvent();
  CUDA_OK(cuEventRecord, done, second);
  CUstream idle = NewStream();
  const CUdeviceptr other = NewWord(0);
  ASSERT_EQ(Step(idle, other, 1, 1, 5'000'000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, idle);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, done);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, second);
  EXPECT_EQ(ReadWord(word_), 7u);
}

RULE_TEST(GraphTest, AnUpdateTakesNewParameters,
          "cuGraphExecUpdate takes the parameters of a graph of the same topology",
          "CUDA Driver API 13.0, Graph Management, cuGraphExecUpdate") {
  const CUgraphNode node = AddStep(1, 3);
  CUgraphExec exec = Instantiate(graph_);
  const CUDA_KERNEL_NODE_PARAMS params = StepParams(1, 50);
  CUDA_OK(cuGraphKernelNodeSetParams_v2, node, &params);
  CUgraphExecUpdateResultInfo info{};
  CUDA_OK(cuGraphExecUpdate_v2, exec, graph_, &info);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  EXPECT_EQ(Run(exec), 51u);
}

RULE_TEST(GraphTest, AnUpdateNeedsTheSameNodes,
          "another count of nodes is TOPOLOGY_CHANGED, and nothing is updated",
          "CUDA Driver API 13.0, Graph Management, cuGraphExecUpdate") {
  const CUgraphNode first = AddStep(1, 3);
  CUgraphExec exec = Instantiate(graph_);
  AddStep(1, 1, {first});
  CUgraphExecUpdateResultInfo info{};
  CUDA_IS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2, exec, graph_, &info);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_EQ(info.errorNode, nullptr);
  EXPECT_EQ(Run(exec), 4u);
}

RULE_TEST(GraphTest, AnUpdateNeedsTheSameKinds,
          "a node of another type is NODE_TYPE_CHANGED, and errorNode is the node",
          "CUDA Driver API 13.0, Graph Management, cuGraphExecUpdate") {
  AddStep(1, 3);
  CUgraphExec exec = Instantiate(graph_);
  CUgraph other = nullptr;
  CUgraphNode empty = nullptr;
  CUDA_OK(cuGraphCreate, &other, 0);
  CUDA_OK(cuGraphAddEmptyNode, &empty, other, nullptr, 0);
  CUgraphExecUpdateResultInfo info{};
  CUDA_IS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2, exec, other, &info);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  EXPECT_EQ(info.errorNode, empty);
  CUDA_OK(cuGraphDestroy, other);
}

}  // namespace
}  // namespace prorata::conformance
