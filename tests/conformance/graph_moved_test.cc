// Graphs that are moved into a node of another: the only child graphs that may hold memory nodes.

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kOwnership[] =
    "CUDA Driver API 13.0, Data types used by CUDA driver, CUgraphChildGraphNodeOwnership";
constexpr char kParams[] =
    "CUDA Driver API 13.0, Data types used by CUDA driver, CUDA_CHILD_GRAPH_NODE_PARAMS";

class GraphMovedTest : public DriverTest {
 protected:
  static constexpr size_t kBytes = size_t{8} << 20;

  void SetUp() override {
    DriverTest::SetUp();
    if (HasFatalFailure()) return;
    CUDA_OK(cuDeviceGraphMemTrim, 0);
    out_ = NewWord(0);
  }

  static CUgraph NewGraph() {
    CUgraph graph = nullptr;
    EXPECT_EQ(CUDA(cuGraphCreate)(&graph, 0), CUDA_SUCCESS);
    return graph;
  }
  static CUgraphNode AddAlloc(CUgraph graph, CUdeviceptr* address) {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    params.bytesize = kBytes;
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &params), CUDA_SUCCESS);
    *address = params.dptr;
    return node;
  }
  // Allocates, writes `value` there, copies it to out_, frees.
  CUgraph Allocating(unsigned value) {
    CUgraph graph = NewGraph();
    CUdeviceptr address = 0;
    CUgraphNode node = AddAlloc(graph, &address);
    const CUDA_MEMSET_NODE_PARAMS fill = {address, 0, value, 4, 16, 1};
    CUgraphNode before = node;
    EXPECT_EQ(CUDA(cuGraphAddMemsetNode)(&node, graph, &before, 1, &fill, ctx_), CUDA_SUCCESS);
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = address;
    copy.dstDevice = out_;
    copy.WidthInBytes = 4;
    copy.Height = copy.Depth = 1;
    before = node;
    EXPECT_EQ(CUDA(cuGraphAddMemcpyNode)(&node, graph, &before, 1, &copy, ctx_), CUDA_SUCCESS);
    before = node;
    EXPECT_EQ(CUDA(cuGraphAddMemFreeNode)(&node, graph, &before, 1, address), CUDA_SUCCESS);
    return graph;
  }
  // A graph without memory nodes, which the rules of moving are about, too.
  CUgraph Filling(unsigned value) const {
    CUgraph graph = NewGraph();
    const CUDA_MEMSET_NODE_PARAMS fill = {out_, 0, value, 4, 1, 1};
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA(cuGraphAddMemsetNode)(&node, graph, nullptr, 0, &fill, ctx_), CUDA_SUCCESS);
    return graph;
  }
  static CUresult AddChild(CUgraph parent, CUgraph child, CUgraphChildGraphNodeOwnership ownership,
                           CUgraphNode* node) {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_GRAPH;
    params.graph.graph = child;
    params.graph.ownership = ownership;
    return CUDA(cuGraphAddNode_v2)(node, parent, nullptr, nullptr, 0, &params);
  }
  static CUresult Move(CUgraph parent, CUgraph child) {
    CUgraphNode node = nullptr;
    return AddChild(parent, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, &node);
  }
  static CUgraphExec Instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(CUDA(cuGraphInstantiateWithFlags)(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
  }
  static uint64_t Reserved() {
    uint64_t value = 0;
    EXPECT_EQ(CUDA(cuDeviceGetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value),
              CUDA_SUCCESS);
    return value;
  }

  CUdeviceptr out_ = 0;
};

RULE_TEST(GraphMovedTest, ACloneHoldsNoMemoryNodes,
          "a child graph that is cloned into its node must not hold memory nodes", kParams) {
  CUgraph parent = NewGraph();
  CUgraph child = Allocating(1);
  CUgraphNode node = nullptr;
  EXPECT_NE(AddChild(parent, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, &node), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuGraphAddChildGraphNode)(&node, parent, nullptr, 0, child), CUDA_SUCCESS);
  size_t count = 1;
  CUDA_OK(cuGraphGetNodes, parent, nullptr, &count);
  EXPECT_EQ(count, 0u);
  // It is still a graph by itself.
  CUDA_OK(cuGraphLaunch, Instantiate(child), nullptr);
  EXPECT_EQ(ReadWord(out_), 1u);
}

RULE_TEST(
    GraphMovedTest, AMovedGraphMayAllocate,
    "a child graph that is moved to its parent may hold memory nodes, which take their memory "
    "when the parent is launched",
    kParams) {
  CUgraph parent = NewGraph();
  ASSERT_EQ(Move(parent, Allocating(21)), CUDA_SUCCESS);
  CUgraphExec exec = Instantiate(parent);
  EXPECT_EQ(Reserved(), 0u);
  for (int i = 0; i < 2; ++i) {
    CUDA_OK(cuGraphLaunch, exec, nullptr);
    EXPECT_EQ(ReadWord(out_), 21u);
    EXPECT_GE(Reserved(), kBytes);
  }
}

RULE_TEST(GraphMovedTest, ItsHandleIsTheNodes,
          "the handle of a moved graph is from then on that of the node's graph", kOwnership) {
  CUgraph parent = NewGraph();
  CUgraph child = Filling(3);
  CUgraphNode node = nullptr;
  ASSERT_EQ(AddChild(parent, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, &node), CUDA_SUCCESS);
  CUgraph embedded = nullptr;
  CUDA_OK(cuGraphChildGraphNodeGetGraph, node, &embedded);
  EXPECT_EQ(embedded, child);
  // A later node of it is the parent's.
  CUgraphNode first = nullptr;
  size_t count = 1;
  CUDA_OK(cuGraphGetNodes, child, &first, &count);
  const CUDA_MEMSET_NODE_PARAMS fill = {out_, 0, 4, 4, 1, 1};
  CUDA_OK(cuGraphAddMemsetNode, &node, child, &first, 1, &fill, ctx_);
  CUDA_OK(cuGraphLaunch, Instantiate(parent), nullptr);
  EXPECT_EQ(ReadWord(out_), 4u);
}

RULE_TEST(GraphMovedTest, ItIsNoGraphByItself,
          "a moved graph can be neither instantiated nor destroyed by itself, nor update another",
          kOwnership) {
  CUgraph parent = NewGraph();
  CUgraph child = Filling(5);
  CUgraphExec like_it = Instantiate(Filling(6));
  ASSERT_EQ(Move(parent, child), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  EXPECT_NE(CUDA(cuGraphInstantiateWithFlags)(&exec, child, 0), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuGraphDestroy)(child), CUDA_SUCCESS);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_NE(CUDA(cuGraphExecUpdate_v2)(like_it, child, &info), CUDA_SUCCESS);
  EXPECT_NE(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  CUDA_OK(cuGraphLaunch, Instantiate(parent), nullptr);
  EXPECT_EQ(ReadWord(out_), 5u);
}

RULE_TEST(GraphMovedTest, ItHasOneParent, "a moved graph cannot be made the child of another graph",
          kOwnership) {
  CUgraph parent = NewGraph();
  CUgraph other = NewGraph();
  CUgraph child = Filling(7);
  ASSERT_EQ(Move(parent, child), CUDA_SUCCESS);
  CUgraphNode node = nullptr;
  EXPECT_NE(Move(other, child), CUDA_SUCCESS);
  EXPECT_NE(AddChild(other, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, &node), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuGraphAddChildGraphNode)(&node, other, nullptr, 0, child), CUDA_SUCCESS);
  // Its parent can be, and takes it along.
  ASSERT_EQ(Move(other, parent), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, Instantiate(other), nullptr);
  EXPECT_EQ(ReadWord(out_), 7u);
}

RULE_TEST(GraphMovedTest, ItGetsNoMoreMemoryNodes,
          "memory nodes cannot be added to a graph that has been moved", kOwnership) {
  CUgraph parent = NewGraph();
  CUgraph child = Filling(1);
  CUdeviceptr address = 0;
  CUgraph owner = NewGraph();
  AddAlloc(owner, &address);
  ASSERT_EQ(Move(parent, child), CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.bytesize = kBytes;
  CUgraphNode node = nullptr;
  EXPECT_NE(CUDA(cuGraphAddMemAllocNode)(&node, child, nullptr, 0, &params), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuGraphAddMemFreeNode)(&node, child, nullptr, 0, address), CUDA_SUCCESS);
}

RULE_TEST(GraphMovedTest, ItIsNotMovedIntoItself,
          "a graph is not moved into itself or into a graph of one of its nodes",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddNode: CUDA_ERROR_INVALID_VALUE") {
  SIMULATED_ONLY("not stated, as it could mean nothing");
  CUgraph parent = NewGraph();
  CUgraph child = Filling(9);
  EXPECT_EQ(Move(parent, parent), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(Move(parent, child), CUDA_SUCCESS);
  EXPECT_EQ(Move(child, parent), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuGraphLaunch, Instantiate(parent), nullptr);
  EXPECT_EQ(ReadWord(out_), 9u);
}

RULE_TEST(GraphMovedTest, ItsMemoryIsItsParents,
          "a graph with memory nodes in a moved child is itself one with memory nodes: it is not "
          "cloned, keeps its nodes, and has one instance at a time",
          "CUDA Driver API 13.0, Graph Management, cuGraphAddMemAllocNode") {
  CUgraph parent = NewGraph();
  CUgraphNode child = nullptr;
  ASSERT_EQ(AddChild(parent, Allocating(2), CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, &child),
            CUDA_SUCCESS);
  CUgraph copy = nullptr;
  CUgraphNode node = nullptr;
  EXPECT_NE(CUDA(cuGraphClone)(&copy, parent), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuGraphAddChildGraphNode)(&node, NewGraph(), nullptr, 0, parent), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuGraphDestroyNode)(child), CUDA_SUCCESS);
  CUgraphExec exec = Instantiate(parent);
  CUgraphExec second = nullptr;
  EXPECT_NE(CUDA(cuGraphInstantiateWithFlags)(&second, parent, 0), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  CUDA_OK(cuCtxSynchronize);
  // It goes with its parent, and its memory is kept until a trim.
  CUDA_OK(cuGraphExecDestroy, exec);
  CUDA_OK(cuGraphDestroy, parent);
  EXPECT_GE(Reserved(), kBytes);
  CUDA_OK(cuDeviceGraphMemTrim, 0);
  EXPECT_EQ(Reserved(), 0u);
}

RULE_TEST(GraphMovedTest, ParametersOfAChildAreSetByKind,
          "cuGraphExecNodeSetParams of a child graph node takes over the parameters of a graph of "
          "the same shape, as cuGraphExecChildGraphNodeSetParams does",
          "CUDA Driver API 13.0, Graph Management, cuGraphExecNodeSetParams") {
  CUgraph parent = NewGraph();
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddChildGraphNode, &node, parent, nullptr, 0, Filling(1));
  CUgraphExec exec = Instantiate(parent);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = Filling(8);
  CUDA_OK(cuGraphExecNodeSetParams, exec, node, &params);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  EXPECT_EQ(ReadWord(out_), 8u);
  params.graph.graph = NewGraph();
  EXPECT_NE(CUDA(cuGraphExecNodeSetParams)(exec, node, &params), CUDA_SUCCESS);
}

}  // namespace
}  // namespace prorata::conformance
