// The memory of graphs: reserved when a graph is uploaded or first launched, kept until trimmed.

#include "limits.h"

namespace prorata::limits {
namespace {

constexpr uint64_t kGraphBytes = 64 * kMib;

class GraphLimits : public LimitTest {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    if (HasFatalFailure()) return;
    SKIP_UNLESS(Has(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), "memory pools");
    CUDA_OK(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      CUDA_OK(cuStreamSynchronize, stream_);
      CUDA_OK(cuStreamDestroy_v2, stream_);
      CUDA_OK(cuDeviceGraphMemTrim, device_);
    }
    LimitTest::TearDown();
  }

  using Maker = CUresult (*)(CUgraphNode*, CUgraph, uint64_t bytes, CUdeviceptr*);
  static CUmemPoolProps Props() {
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return props;
  }
  static CUresult AddMemAllocNode(CUgraphNode* node, CUgraph graph, uint64_t bytes,
                                  CUdeviceptr* address) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {};
    params.poolProps = Props();
    params.bytesize = bytes;
    const CUresult result = CUDA(cuGraphAddMemAllocNode)(node, graph, nullptr, 0, &params);
    *address = params.dptr;
    return result;
  }
  static CUgraphNodeParams NodeParams(uint64_t bytes) {
    CUgraphNodeParams params = {};
    params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    params.alloc.poolProps = Props();
    params.alloc.bytesize = bytes;
    return params;
  }
  static CUresult AddNode(CUgraphNode* node, CUgraph graph, uint64_t bytes, CUdeviceptr* address) {
    CUgraphNodeParams params = NodeParams(bytes);
    const CUresult result = CUDA(cuGraphAddNode)(node, graph, nullptr, 0, &params);
    *address = params.alloc.dptr;
    return result;
  }
  static CUresult AddNodeV2(CUgraphNode* node, CUgraph graph, uint64_t bytes,
                            CUdeviceptr* address) {
    CUgraphNodeParams params = NodeParams(bytes);
    const CUresult result = CUDA(cuGraphAddNode_v2)(node, graph, nullptr, nullptr, 0, &params);
    *address = params.alloc.dptr;
    return result;
  }

  // A graph that allocates `bytes` by a node and frees them again.
  CUgraph Graph(Maker make, uint64_t bytes) {
    CUgraph graph = nullptr;
    CUgraphNode alloc = nullptr, free = nullptr;
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuGraphCreate)(&graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(make(&alloc, graph, bytes, &address), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuGraphAddMemFreeNode)(&free, graph, &alloc, 1, address), CUDA_SUCCESS);
    return graph;
  }
  // One with that graph as a child: moved, for a clone cannot allocate.
  CUgraph Parent(CUgraph child) {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    CUgraphNodeParams params = {};
    params.type = CU_GRAPH_NODE_TYPE_GRAPH;
    params.graph.graph = child;
    params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    EXPECT_EQ(CUDA(cuGraphCreate)(&graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuGraphAddNode_v2)(&node, graph, nullptr, nullptr, 0, &params), CUDA_SUCCESS);
    return graph;
  }
  // The same by capturing a stream.
  CUgraph Captured(uint64_t bytes) {
    CUgraph graph = nullptr;
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuStreamBeginCapture_v2)(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemAllocAsync)(&address, bytes, stream_), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemFreeAsync)(address, stream_), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuStreamEndCapture)(stream_, &graph), CUDA_SUCCESS);
    return graph;
  }
  static bool MovesGraphs() {
    int version = 0;
    return CUDA(cuDriverGetVersion)(&version) == CUDA_SUCCESS && version >= 13000;
  }
  static CUgraphExec Instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(CUDA(cuGraphInstantiateWithFlags)(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
  }
  CUresult InstantiateUploaded(CUgraph graph, CUgraphExec* exec) {
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {};
    params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    params.hUploadStream = stream_;
    return CUDA(cuGraphInstantiateWithParams)(exec, graph, &params);
  }
  static uint64_t Reserved() {
    uint64_t value = 0;
    EXPECT_EQ(CUDA(cuDeviceGetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value),
              CUDA_SUCCESS);
    return value;
  }
  void Destroy(CUgraphExec exec, CUgraph graph) {
    CUDA_OK(cuStreamSynchronize, stream_);
    CUDA_OK(cuGraphExecDestroy, exec);
    CUDA_OK(cuGraphDestroy, graph);
  }

  // What the driver takes for a graph of kGraphBytes.
  uint64_t Cost() {
    CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
    CUgraphExec exec = Instantiate(graph);
    EXPECT_EQ(CUDA(cuGraphUpload)(exec, stream_), CUDA_SUCCESS);
    const uint64_t bytes = Reserved();
    Destroy(exec, graph);
    EXPECT_EQ(CUDA(cuDeviceGraphMemTrim)(device_), CUDA_SUCCESS);
    EXPECT_TRUE(Charged(0));
    EXPECT_GE(bytes, kGraphBytes);
    return bytes;
  }

  void LaunchIsRefused(CUgraph graph) {
    CUgraphExec exec = Instantiate(graph);
    LeaveRoom(kGraphBytes / 2);
    Refused([&] { return CUDA(cuGraphLaunch)(exec, stream_); });
    EXPECT_EQ(Reserved(), 0U);
    // As soon as there is room it runs.
    GiveRoomBack();
    EXPECT_EQ(CUDA(cuGraphLaunch)(exec, stream_), CUDA_SUCCESS);
    Destroy(exec, graph);
    CUDA_OK(cuDeviceGraphMemTrim, device_);
  }
  void LaunchIsCharged(CUgraph graph) {
    CUgraphExec exec = Instantiate(graph);
    EXPECT_TRUE(Charged(0)) << "a graph that was not launched";
    for (int i = 0; i < 3; ++i) {
      CUDA_OK(cuGraphLaunch, exec, stream_);
      EXPECT_TRUE(Charged(Reserved())) << "launch " << i;
    }
    EXPECT_GE(Reserved(), kGraphBytes);
    Destroy(exec, graph);
    CUDA_OK(cuDeviceGraphMemTrim, device_);
    EXPECT_TRUE(Charged(0));
  }

  CUstream stream_ = nullptr;
};

TEST_F(GraphLimits, GraphAddMemAllocNodeRefused) {
  LaunchIsRefused(Graph(AddMemAllocNode, kGraphBytes));
}
TEST_F(GraphLimits, GraphAddMemAllocNodeCharged) {
  LaunchIsCharged(Graph(AddMemAllocNode, kGraphBytes));
}

TEST_F(GraphLimits, GraphMovedChildRefused) {
  SKIP_UNLESS(MovesGraphs(), "child graphs that are moved (CUDA 13.0)");
  LaunchIsRefused(Parent(Graph(AddMemAllocNode, kGraphBytes)));
  LaunchIsRefused(Parent(Parent(Captured(kGraphBytes))));
  // A child for each half: together they do not fit.
  CUgraph both = Parent(Graph(AddNodeV2, kGraphBytes / 2));
  CUgraphNodeParams params = {};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = Graph(AddNodeV2, kGraphBytes / 2);
  params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddNode, &node, both, nullptr, 0, &params);
  LaunchIsRefused(both);
}
TEST_F(GraphLimits, GraphMovedChildCharged) {
  SKIP_UNLESS(MovesGraphs(), "child graphs that are moved (CUDA 13.0)");
  LaunchIsCharged(Parent(Graph(AddMemAllocNode, kGraphBytes)));
  LaunchIsCharged(Parent(Parent(Captured(kGraphBytes))));
}

// However deep a child graph lies, its allocations are found.
// At 200 an H100's driver (580.159.04) runs out of its stack.
std::vector<int> Depths() { return OnRealGpu() ? std::vector{20} : std::vector{20, 200}; }

TEST_F(GraphLimits, DeepChildRefused) {
  SKIP_UNLESS(MovesGraphs(), "child graphs that are moved (CUDA 13.0)");
  for (const int depth : Depths()) {
    CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
    for (int i = 0; i < depth; ++i) graph = Parent(graph);
    LaunchIsRefused(graph);
  }
}
TEST_F(GraphLimits, DeepChildCharged) {
  SKIP_UNLESS(MovesGraphs(), "child graphs that are moved (CUDA 13.0)");
  for (const int depth : Depths()) {
    CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
    for (int i = 0; i < depth; ++i) graph = Parent(graph);
    LaunchIsCharged(graph);
  }
}

TEST_F(GraphLimits, GraphAddNodeRefused) {
  LaunchIsRefused(Graph(AddNode, kGraphBytes));
  LaunchIsRefused(Graph(AddNodeV2, kGraphBytes));
}
TEST_F(GraphLimits, GraphAddNodeCharged) {
  LaunchIsCharged(Graph(AddNode, kGraphBytes));
  LaunchIsCharged(Graph(AddNodeV2, kGraphBytes));
}

TEST_F(GraphLimits, CapturedAllocationRefused) { LaunchIsRefused(Captured(kGraphBytes)); }
TEST_F(GraphLimits, CapturedAllocationCharged) { LaunchIsCharged(Captured(kGraphBytes)); }

TEST_F(GraphLimits, GraphUploadRefused) {
  CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
  CUgraphExec exec = Instantiate(graph);
  LeaveRoom(kGraphBytes / 2);
  Refused([&] { return CUDA(cuGraphUpload)(exec, stream_); });
  Destroy(exec, graph);
}
TEST_F(GraphLimits, GraphUploadCharged) {
  CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
  CUgraphExec exec = Instantiate(graph);
  CUDA_OK(cuGraphUpload, exec, stream_);
  EXPECT_TRUE(Charged(Reserved()));
  CUDA_OK(cuGraphLaunch, exec, stream_);
  EXPECT_TRUE(Charged(Reserved()));
  Destroy(exec, graph);
}

TEST_F(GraphLimits, GraphInstantiateWithParamsRefused) {
  CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
  CUgraphExec exec = nullptr;
  LeaveRoom(kGraphBytes / 2);
  Refused([&] { return InstantiateUploaded(graph, &exec); });
  GiveRoomBack();
  ASSERT_EQ(InstantiateUploaded(graph, &exec), CUDA_SUCCESS);
  Destroy(exec, graph);
}
TEST_F(GraphLimits, GraphInstantiateWithParamsCharged) {
  CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(InstantiateUploaded(graph, &exec), CUDA_SUCCESS);
  EXPECT_GE(Reserved(), kGraphBytes);
  EXPECT_TRUE(Charged(Reserved()));
  Destroy(exec, graph);
}

TEST_F(GraphLimits, GraphLaunchRefused) {
  // Two that fit one by one, and not together.
  const uint64_t cost = Cost();
  CUgraph graphs[2];
  CUgraphExec execs[2];
  for (int i = 0; i < 2; ++i) {
    graphs[i] = Graph(AddMemAllocNode, kGraphBytes);
    execs[i] = Instantiate(graphs[i]);
  }
  LeaveRoom(cost + kGraphBytes / 2);
  const uint64_t before = Free();
  CUDA_OK(cuGraphLaunch, execs[0], stream_);
  // A driver may let the second use the first one's memory; if not, the first one's is trimmed.
  CUDA_OK(cuStreamSynchronize, stream_);
  CUDA_OK(cuGraphLaunch, execs[1], stream_);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_LE(Reserved(), cost + kGraphBytes / 2 + 2 * kSlab);
  EXPECT_TRUE(FreeBecomes(before - Reserved()));
  GiveRoomBack();
  // Full to the brim, but that graph has its memory.
  LeaveRoom(0);
  CUDA_OK(cuGraphLaunch, execs[1], stream_);
  for (int i = 0; i < 2; ++i) Destroy(execs[i], graphs[i]);
}
TEST_F(GraphLimits, GraphLaunchCharged) {
  const uint64_t cost = Cost();
  CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
  CUgraphExec exec = Instantiate(graph);
  LeaveRoom(cost + kSlab);
  for (int i = 0; i < 4; ++i) {  // exactly its cost is enough, however often it is launched
    CUDA_OK(cuGraphLaunch, exec, stream_);
    EXPECT_TRUE(Charged(Reserved()));
  }
  Destroy(exec, graph);
}

TEST_F(GraphLimits, DeviceGraphMemTrimMakesRoom) {
  // What graphs keep unused is trimmed before anything is refused.
  CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
  CUgraphExec exec = Instantiate(graph);
  CUDA_OK(cuGraphLaunch, exec, stream_);
  Destroy(exec, graph);
  EXPECT_GE(Reserved(), kGraphBytes);
  LeaveRoom(kSlab);
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAlloc_v2, &address, kGraphBytes);
  EXPECT_EQ(Reserved(), 0U);
  CUDA_OK(cuMemFree_v2, address);
}
TEST_F(GraphLimits, DeviceGraphMemTrimGivesBack) {
  CUgraph graph = Graph(AddMemAllocNode, kGraphBytes);
  CUgraphExec exec = Instantiate(graph);
  CUDA_OK(cuGraphLaunch, exec, stream_);
  CUDA_OK(cuStreamSynchronize, stream_);
  CUDA_OK(cuDeviceGraphMemTrim, device_);
  EXPECT_TRUE(Charged(Reserved()));
  // Launched again it takes its memory again, and is charged for it again.
  const uint64_t before = Free();
  CUDA_OK(cuGraphLaunch, exec, stream_);
  EXPECT_TRUE(Charged(Reserved()));
  EXPECT_LT(Free(), before);
  Destroy(exec, graph);
  CUDA_OK(cuDeviceGraphMemTrim, device_);
  EXPECT_TRUE(Charged(0));
}

}  // namespace
}  // namespace prorata::limits
