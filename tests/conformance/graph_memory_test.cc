// Memory that graphs allocate.

#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kAlloc[] = "CUDA Driver API, Graph Management, cuGraphAddMemAllocNode";
constexpr char kFree[] = "CUDA Driver API, Graph Management, cuGraphAddMemFreeNode";
constexpr char kMemoryGuide[] =
    "CUDA C++ Programming Guide, Graph Memory Nodes, Physical Memory Footprint";
constexpr char kTrim[] = "CUDA Driver API, Graph Management, cuDeviceGraphMemTrim";

class GraphMemoryTest : public DriverTest {
 protected:
  static constexpr size_t kBytes = size_t{8} << 20;

  void SetUp() override {
    DriverTest::SetUp();
    if (HasFatalFailure()) return;
    CUDA_OK(cuGraphCreate, &graph_, 0);
    CUDA_OK(cuDeviceGraphMemTrim, 0);
  }

  CUgraphNode AddAlloc(CUgraph graph, CUdeviceptr* address) {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    params.bytesize = kBytes;
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &params), CUDA_SUCCESS);
    *address = params.dptr;
    EXPECT_NE(params.dptr, 0u);
    return node;
  }
  CUgraphNode AddFill(CUgraph graph, CUgraphNode after, CUdeviceptr address, unsigned value) {
    const CUDA_MEMSET_NODE_PARAMS params = {address, 0, value, 4, 16, 1};
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA(cuGraphAddMemsetNode)(&node, graph, &after, 1, &params, ctx_), CUDA_SUCCESS);
    return node;
  }
  static CUresult AddFree(CUgraph graph, CUgraphNode after, CUdeviceptr address) {
    CUgraphNode node = nullptr;
    return CUDA(cuGraphAddMemFreeNode)(&node, graph, &after, after ? 1 : 0, address);
  }
  static CUgraphExec Instantiate(CUgraph graph, uint64_t flags = 0) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(CUDA(cuGraphInstantiateWithFlags)(&exec, graph, flags), CUDA_SUCCESS);
    return exec;
  }
  static uint64_t Attribute(CUgraphMem_attribute attribute) {
    uint64_t value = 0;
    EXPECT_EQ(CUDA(cuDeviceGetGraphMemAttribute)(0, attribute, &value), CUDA_SUCCESS);
    return value;
  }
  static uint64_t Used() { return Attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT); }
  static uint64_t Reserved() { return Attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT); }

  CUgraph graph_ = nullptr;
};

RULE_TEST(GraphMemoryTest, ThereIsNoMemoryBeforeTheFirstLaunch,
          "an allocation node has its address at once, and memory behind it from the launch on",
          kMemoryGuide) {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  ASSERT_EQ(AddFree(graph_, alloc, address), CUDA_SUCCESS);
  CUgraphExec exec = Instantiate(graph_);
  EXPECT_EQ(Used(), 0u);
  EXPECT_EQ(Reserved(), 0u);
  const uint64_t free_bytes = FreeBytes();
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_GE(Used(), kBytes);
  EXPECT_GE(Reserved(), Used());
  EXPECT_LE(FreeBytes(), free_bytes - kBytes);
}

RULE_TEST(GraphMemoryTest, AnUploadTakesTheMemory,
          "an upload does what the first launch would do for the memory of a graph",
          "CUDA C++ Programming Guide, Graph Memory Nodes, First Launch / cudaGraphUpload") {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  ASSERT_EQ(AddFree(graph_, alloc, address), CUDA_SUCCESS);
  CUgraphExec exec = Instantiate(graph_);
  CUDA_OK(cuGraphUpload, exec, nullptr);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_GE(Reserved(), kBytes);
}

RULE_TEST(GraphMemoryTest, WhatIsNotFreedIsForTheStreamToUse,
          "an allocation that its graph does not free can be used by what is behind the launch",
          kAlloc) {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  AddFill(graph_, alloc, address, 0x01020304);
  CUstream stream = NewStream();
  CUDA_OK(cuGraphLaunch, Instantiate(graph_), stream);
  uint32_t word = 0;
  CUDA_OK(cuMemcpyDtoHAsync_v2, &word, address, sizeof(word), stream);
  CUDA_OK(cuMemFreeAsync, address, stream);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(word, 0x01020304u);
}

RULE_TEST(GraphMemoryTest, WhatIsNotFreedCannotBeAllocatedAgain,
          "a graph is not launched again while an allocation of it is not freed",
          "CUDA C++ Programming Guide, Graph Memory Nodes, Accessing and Freeing Graph Memory "
          "Nodes Outside of the Allocating Graph") {
  CUdeviceptr address = 0;
  AddAlloc(graph_, &address);
  CUgraphExec exec = Instantiate(graph_);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch, exec, nullptr);
  CUDA_OK(cuMemFreeAsync, address, nullptr);
  EXPECT_NE(CUDA(cuMemFreeAsync)(address, nullptr), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  CUDA_OK(cuCtxSynchronize);
}

RULE_TEST(GraphMemoryTest, AutoFreeOnLaunchFreesWhatIsLeft,
          "with AUTO_FREE_ON_LAUNCH a launch frees what the last one left allocated",
          "CUDA Driver API, Graph Management, cuGraphInstantiate") {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  AddFill(graph_, alloc, address, 9);
  CUgraphExec exec = Instantiate(graph_, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  for (int i = 0; i < 3; ++i) CUDA_OK(cuGraphLaunch, exec, nullptr);
  uint32_t word = 0;
  CUDA_OK(cuMemcpyDtoH_v2, &word, address, sizeof(word));
  EXPECT_EQ(word, 9u);
}

RULE_TEST(GraphMemoryTest, AnotherGraphMayFreeIt,
          "an allocation that is left can be freed by launching a graph with a free node for it",
          kFree) {
  CUdeviceptr address = 0;
  AddAlloc(graph_, &address);
  CUgraph other = nullptr;
  CUDA_OK(cuGraphCreate, &other, 0);
  ASSERT_EQ(AddFree(other, nullptr, address), CUDA_SUCCESS);
  CUgraphExec execs[] = {Instantiate(graph_), Instantiate(other)};
  EXPECT_NE(CUDA(cuGraphLaunch)(execs[1], nullptr), CUDA_SUCCESS);  // nothing to free yet
  for (int i = 0; i < 3; ++i) {
    for (CUgraphExec exec : execs) CUDA_OK(cuGraphLaunch, exec, nullptr);
  }
  EXPECT_NE(CUDA(cuMemFreeAsync)(address, nullptr), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
}

RULE_TEST(GraphMemoryTest, OneGraphFreesIt,
          "an allocation is freed once in its own graph, or in others, and not in both", kFree) {
  CUdeviceptr own = 0;
  CUdeviceptr others = 0;
  const CUgraphNode first = AddAlloc(graph_, &own);
  const CUgraphNode second = AddAlloc(graph_, &others);
  CUgraph other = nullptr;
  CUDA_OK(cuGraphCreate, &other, 0);
  ASSERT_EQ(AddFree(graph_, first, own), CUDA_SUCCESS);
  EXPECT_EQ(AddFree(graph_, first, own), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(AddFree(other, nullptr, own), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(AddFree(other, nullptr, others), CUDA_SUCCESS);
  EXPECT_EQ(AddFree(graph_, second, others), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(AddFree(graph_, second, NewWord(0)), CUDA_ERROR_INVALID_VALUE);  // of no graph
}

RULE_TEST(GraphMemoryTest, ItsGraphKeepsItsShape,
          "a graph with memory nodes cannot lose nodes or edges, be cloned, or be a child",
          kAlloc) {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  const CUgraphNode fill = AddFill(graph_, alloc, address, 1);
  EXPECT_NE(CUDA(cuGraphDestroyNode)(fill), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuGraphRemoveDependencies)(graph_, &alloc, &fill, 1), CUDA_SUCCESS);
  CUgraph other = nullptr;
  EXPECT_NE(CUDA(cuGraphClone)(&other, graph_), CUDA_SUCCESS);
  CUDA_OK(cuGraphCreate, &other, 0);
  CUgraphNode child = nullptr;
  EXPECT_NE(CUDA(cuGraphAddChildGraphNode)(&child, other, nullptr, 0, graph_), CUDA_SUCCESS);
}

RULE_TEST(GraphMemoryTest, ThereIsOneInstanceAtATime,
          "only one instantiation of a graph with memory nodes may exist at any time", kAlloc) {
  CUdeviceptr address = 0;
  AddAlloc(graph_, &address);
  CUgraphExec exec = Instantiate(graph_);
  CUgraphExec second = nullptr;
  EXPECT_NE(CUDA(cuGraphInstantiateWithFlags)(&second, graph_, 0), CUDA_SUCCESS);
  CUDA_OK(cuGraphExecDestroy, exec);
  CUDA_OK(cuGraphExecDestroy, Instantiate(graph_));
}

RULE_TEST(GraphMemoryTest, ADestroyedGraphsMemoryIsKeptUntilATrim,
          "destroying a graph does not return its memory to the device; a trim does",
          kMemoryGuide) {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  ASSERT_EQ(AddFree(graph_, alloc, address), CUDA_SUCCESS);
  const uint64_t free_bytes = FreeBytes();
  CUgraphExec exec = Instantiate(graph_);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  CUDA_OK(cuCtxSynchronize);
  CUDA_OK(cuGraphExecDestroy, exec);
  CUDA_OK(cuGraphDestroy, graph_);
  EXPECT_LE(FreeBytes(), free_bytes - kBytes);
  EXPECT_GE(Reserved(), kBytes);
  CUDA_OK(cuDeviceGraphMemTrim, 0);
  EXPECT_EQ(Reserved(), 0u);
  EXPECT_EQ(FreeBytes(), free_bytes);
}

RULE_TEST(
    GraphMemoryTest, ATrimLeavesWhatIsInUse,
    "allocations that were not freed are in use, also when their graph is gone; a trim leaves "
    "them alone",
    kTrim) {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  AddFill(graph_, alloc, address, 77);
  CUgraphExec exec = Instantiate(graph_);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  CUDA_OK(cuGraphExecDestroy, exec);
  CUDA_OK(cuGraphDestroy, graph_);
  CUDA_OK(cuDeviceGraphMemTrim, 0);
  uint32_t word = 0;
  CUDA_OK(cuMemcpyDtoH_v2, &word, address, sizeof(word));
  EXPECT_EQ(word, 77u);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_OK(cuDeviceGraphMemTrim, 0);
  EXPECT_EQ(Reserved(), 0u);
}

RULE_TEST(GraphMemoryTest, TrimmedItTakesMemoryAgain,
          "the memory of a trimmed graph is taken anew when it is launched next", kTrim) {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  const CUgraphNode fill = AddFill(graph_, alloc, address, 5);
  const CUdeviceptr out = NewWord(0);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = address;
  copy.dstDevice = out;
  copy.WidthInBytes = 4;
  copy.Height = copy.Depth = 1;
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddMemcpyNode, &node, graph_, &fill, 1, &copy, ctx_);
  ASSERT_EQ(AddFree(graph_, node, address), CUDA_SUCCESS);
  CUgraphExec exec = Instantiate(graph_);
  for (int i = 0; i < 2; ++i) {
    CUDA_OK(cuGraphLaunch, exec, nullptr);
    EXPECT_EQ(ReadWord(out), 5u);
    CUDA_OK(cuDeviceGraphMemTrim, 0);
    EXPECT_EQ(Reserved(), 0u);
  }
}

RULE_TEST(GraphMemoryTest, HighMarksCanBeResetOnly,
          "the high marks of graph memory can be set to zero, and nothing else",
          "CUDA Driver API, Graph Management, cuDeviceSetGraphMemAttribute") {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  ASSERT_EQ(AddFree(graph_, alloc, address), CUDA_SUCCESS);
  CUDA_OK(cuGraphLaunch, Instantiate(graph_), nullptr);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_GE(Attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), kBytes);
  CUDA_OK(cuDeviceGraphMemTrim, 0);
  uint64_t value = 0;
  CUDA_OK(cuDeviceSetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &value);
  EXPECT_EQ(Attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 0u);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceSetGraphMemAttribute, 0,
          CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value);
  value = 1;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceSetGraphMemAttribute, 0,
          CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value);
}

RULE_TEST(GraphMemoryTest, ANodesParametersReadBack,
          "the parameters of an allocation node include the address it returned",
          "CUDA Driver API, Graph Management, cuGraphMemAllocNodeGetParams") {
  CUdeviceptr address = 0;
  const CUgraphNode alloc = AddAlloc(graph_, &address);
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  CUDA_OK(cuGraphMemAllocNodeGetParams, alloc, &params);
  EXPECT_EQ(params.dptr, address);
  EXPECT_EQ(params.bytesize, kBytes);
}

}  // namespace
}  // namespace prorata::conformance
