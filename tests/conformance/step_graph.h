#pragma once

// A graph of `step` kernels over one word of device memory, which starts at 1: the order in which
// its nodes run shows in the word.

#include <set>
#include <utility>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {

class GraphTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    step_ = Kernel("step");
    word_ = NewWord(1);
    CUDA_OK(cuGraphCreate, &graph_, 0);
  }
  void TearDown() override {
    for (CUgraphExec exec : execs_) CUDA_OK(cuGraphExecDestroy, exec);
    if (graph_) {
      CUDA_OK(cuGraphDestroy, graph_);
    }
    DriverTest::TearDown();
  }

  // Valid until the next call.
  CUDA_KERNEL_NODE_PARAMS StepParams(uint64_t factor, uint64_t term) {
    factor_ = factor;
    term_ = term;
    params_[0] = &word_;
    params_[1] = &factor_;
    params_[2] = &term_;
    params_[3] = &ns_;
    CUDA_KERNEL_NODE_PARAMS out{};
    out.func = step_;
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
  // Destroyed with the test.
  CUgraphExec Instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(CUDA(cuGraphInstantiateWithFlags)(&exec, graph, 0), CUDA_SUCCESS);
    execs_.push_back(exec);
    return exec;
  }
  // Launches, waits, and reads the word.
  uint64_t Run(CUgraphExec exec) {
    EXPECT_EQ(CUDA(cuGraphLaunch)(exec, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
    return ReadWord(word_);
  }
  std::set<std::pair<CUgraphNode, CUgraphNode>> Edges() {
    CUgraphNode from[16];
    CUgraphNode to[16];
    size_t count = 16;
    EXPECT_EQ(CUDA(cuGraphGetEdges)(graph_, from, to, &count), CUDA_SUCCESS);
    std::set<std::pair<CUgraphNode, CUgraphNode>> edges;
    for (size_t i = 0; i < count; ++i) edges.insert({from[i], to[i]});
    return edges;
  }
  std::set<CUgraphNode> Roots() {
    CUgraphNode nodes[16];
    size_t count = 16;
    EXPECT_EQ(CUDA(cuGraphGetRootNodes)(graph_, nodes, &count), CUDA_SUCCESS);
    return {nodes, nodes + count};
  }

  CUfunction step_ = nullptr;
  CUdeviceptr word_ = 0;
  CUgraph graph_ = nullptr;

 private:
  std::vector<CUgraphExec> execs_;
  uint64_t factor_ = 0;
  uint64_t term_ = 0;
  uint64_t ns_ = 1000;
  void* params_[4];
};

}  // namespace prorata::conformance
