// Graphs that the program builds itself.

#include <atomic>
#include <vector>

#include "driver.h"

namespace prorata::simgpu {
namespace {

class GraphTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    word_ = NewWord(1);
    CUDA_OK(cuGraphCreate, &graph_, 0);
  }

  CUDA_KERNEL_NODE_PARAMS StepParams(uint64_t factor, uint64_t term) {
    factor_ = factor;
    term_ = term;
    params_[0] = &word_;
    params_[1] = &factor_;
    params_[2] = &term_;
    params_[3] = &ns_;
    CUDA_KERNEL_NODE_PARAMS out{};
    out.func = Kernel("step");
    out.gridDimX = out.gridDimY = out.gridDimZ = 1;
    out.blockDimX = out.blockDimY = out.blockDimZ = 1;
    out.kernelParams = params_;
    return out;
  }
  CUgraphNode AddStep(uint64_t factor, uint64_t term, const std::vector<CUgraphNode>& after = {}) {
    const CUDA_KERNEL_NODE_PARAMS params = StepParams(factor, term);
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA(cuGraphAddKernelNode_v2)(&node, graph_, after.data(), after.size(), &params),
              CUDA_SUCCESS);
    return node;
  }
  CUgraphExec Instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(CUDA(cuGraphInstantiate_v2)(&exec, graph, nullptr, nullptr, 0), CUDA_SUCCESS);
    return exec;
  }
  uint64_t Run(CUgraphExec exec) {
    EXPECT_EQ(CUDA(cuGraphLaunch)(exec, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
    return ReadWord(word_);
  }

  CUdeviceptr word_ = 0;
  CUgraph graph_ = nullptr;
  uint64_t factor_ = 0;
  uint64_t term_ = 0;
  uint64_t ns_ = 1000;
  void* params_[4];
};

TEST_F(GraphTest, EdgesDecideTheOrder) {
  // Made in one order, to run in another: (1 + 3) * 2.
  const CUgraphNode twice = AddStep(2, 0);
  const CUgraphNode plus = AddStep(1, 3);
  CUDA_OK(cuGraphAddDependencies, graph_, &plus, &twice, 1);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies, graph_, &plus, &twice, 1);
  CUgraphExec exec = Instantiate(graph_);
  EXPECT_EQ(Run(exec), 8u);
  size_t count = 0;
  CUDA_OK(cuGraphGetEdges, graph_, nullptr, nullptr, &count);
  EXPECT_EQ(count, 1u);
  CUgraphNode root = nullptr;
  count = 1;
  CUDA_OK(cuGraphGetRootNodes, graph_, &root, &count);
  EXPECT_EQ(root, plus);
}

TEST_F(GraphTest, ACircleIsRefused) {
  const CUgraphNode a = AddStep(2, 0);
  const CUgraphNode b = AddStep(1, 3, {a});
  CUDA_OK(cuGraphAddDependencies, graph_, &b, &a, 1);
  CUgraphExec exec;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags, &exec, graph_, 0);
}

TEST_F(GraphTest, AnInstantiatedGraphIsACopy) {
  const CUgraphNode node = AddStep(1, 3);
  CUgraphExec exec = Instantiate(graph_);
  CUDA_KERNEL_NODE_PARAMS params = StepParams(1, 100);
  CUDA_OK(cuGraphKernelNodeSetParams_v2, node, &params);
  EXPECT_EQ(Run(exec), 4u);
  CUDA_OK(cuGraphExecKernelNodeSetParams_v2, exec, node, &params);
  EXPECT_EQ(Run(exec), 104u);
  CUDA_OK(cuGraphDestroy, graph_);
  EXPECT_EQ(Run(exec), 204u);
}

TEST_F(GraphTest, ParametersReadBack) {
  const CUgraphNode node = AddStep(7, 9);
  CUDA_KERNEL_NODE_PARAMS params;
  CUDA_OK(cuGraphKernelNodeGetParams_v2, node, &params);
  EXPECT_EQ(params.func, Kernel("step"));
  ASSERT_NE(params.kernelParams, nullptr);
  EXPECT_EQ(*static_cast<uint64_t*>(params.kernelParams[1]), 7u);
  EXPECT_EQ(*static_cast<uint64_t*>(params.kernelParams[2]), 9u);
  CUgraphNodeType type;
  CUDA_OK(cuGraphNodeGetType, node, &type);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
  CUDA_MEMSET_NODE_PARAMS wrong;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphMemsetNodeGetParams, node, &wrong);
}

TEST_F(GraphTest, UpdatesNeedTheSameShape) {
  const CUgraphNode first = AddStep(1, 3);
  CUgraphExec exec = Instantiate(graph_);
  CUgraphExecUpdateResultInfo info;
  CUDA_KERNEL_NODE_PARAMS params = StepParams(1, 50);
  CUDA_OK(cuGraphKernelNodeSetParams_v2, first, &params);
  CUDA_OK(cuGraphExecUpdate_v2, exec, graph_, &info);
  EXPECT_EQ(Run(exec), 51u);
  AddStep(1, 1, {first});
  CUDA_IS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2, exec, graph_, &info);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_EQ(Run(exec), 101u);
}

void Count(void* data) { ++*static_cast<std::atomic<int>*>(data); }

TEST_F(GraphTest, NodesOfAllSimpleKinds) {
  std::atomic<int> calls = 0;
  CUDA_HOST_NODE_PARAMS host = {Count, &calls};
  CUDA_MEMSET_NODE_PARAMS fill = {word_, 0, 5, 4, 1, 1};
  uint64_t out = 0;
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = word_;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = &out;
  copy.WidthInBytes = 8;
  copy.Height = copy.Depth = 1;
  CUgraphNode nodes[5];
  CUgraph child;
  CUDA_OK(cuGraphCreate, &child, 0);
  CUDA_OK(cuGraphAddHostNode, &nodes[0], child, nullptr, 0, &host);
  CUDA_OK(cuGraphAddEmptyNode, &nodes[0], graph_, nullptr, 0);
  CUDA_OK(cuGraphAddMemsetNode, &nodes[1], graph_, &nodes[0], 1, &fill, ctx_);
  CUDA_OK(cuGraphAddHostNode, &nodes[2], graph_, &nodes[1], 1, &host);
  CUDA_OK(cuGraphAddChildGraphNode, &nodes[3], graph_, &nodes[2], 1, child);
  CUDA_OK(cuGraphAddMemcpyNode, &nodes[4], graph_, &nodes[3], 1, &copy, ctx_);
  CUDA_OK(cuGraphDestroy, child);  // it was cloned
  CUgraphExec exec = Instantiate(graph_);
  EXPECT_EQ(Run(exec), 5u);
  EXPECT_EQ(out, 5u);
  EXPECT_EQ(calls, 2);
  CUDA_OK(cuGraphDestroyNode, nodes[4]);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode, nodes[4]);
}

TEST_F(GraphTest, ADisabledNodeDoesNothing) {
  const CUgraphNode node = AddStep(1, 3);
  CUgraphExec exec = Instantiate(graph_);
  CUDA_OK(cuGraphNodeSetEnabled, exec, node, 0);
  EXPECT_EQ(Run(exec), 1u);
  CUDA_OK(cuGraphNodeSetEnabled, exec, node, 1);
  EXPECT_EQ(Run(exec), 4u);
}

}  // namespace
}  // namespace prorata::simgpu
