// Nodes that write words and wait for them.

#include <vector>

#include "graph_fixture.h"

namespace prorata::conformance {
namespace {

constexpr char kAdd[] = "CUDA Driver API, Graph Management, cuGraphAddBatchMemOpNode";

class GraphBatchTest : public StampGraphTest {
 protected:
  static CUstreamBatchMemOpParams Write(CUdeviceptr address, uint64_t value) {
    CUstreamBatchMemOpParams op{};
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    op.writeValue.address = address;
    op.writeValue.value64 = value;
    return op;
  }
  static CUstreamBatchMemOpParams WaitFor(CUdeviceptr address, uint64_t value) {
    CUstreamBatchMemOpParams op{};
    op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    op.waitValue.address = address;
    op.waitValue.value64 = value;
    op.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    return op;
  }
  CUDA_BATCH_MEM_OP_NODE_PARAMS Params(std::vector<CUstreamBatchMemOpParams>* ops) {
    return {ctx_, static_cast<unsigned>(ops->size()), ops->data(), 0};
  }
};

RULE_TEST(GraphBatchTest, AWaitHoldsItsBranchUntilTheWordIsThere,
          "a batch node's wait holds up what depends on it until memory has the value, and nothing "
          "else",
          kAdd) {
  const CUdeviceptr word = NewWord(0);
  const CUdeviceptr first = NewStamp();
  const CUdeviceptr held = NewStamp();
  std::vector<CUstreamBatchMemOpParams> waits = {WaitFor(word, 3)};
  std::vector<CUstreamBatchMemOpParams> writes = {Write(word, 2), Write(word, 3)};
  const CUDA_BATCH_MEM_OP_NODE_PARAMS wait = Params(&waits);
  const CUDA_BATCH_MEM_OP_NODE_PARAMS write = Params(&writes);
  CUgraphNode waiting = nullptr;
  CUgraphNode writing = nullptr;
  CUDA_OK(cuGraphAddBatchMemOpNode, &waiting, graph_, nullptr, 0, &wait);
  AddStamp(graph_, {waiting}, held);
  const CUgraphNode before = AddStamp(graph_, {}, first);
  CUDA_OK(cuGraphAddBatchMemOpNode, &writing, graph_, &before, 1, &write);
  CUDA_OK(cuGraphLaunch, Instantiate(graph_), nullptr);
  Synchronize();
  EXPECT_GE(Read(held).start, Read(first).end);
  EXPECT_EQ(ReadWord(word), 3u);
}

RULE_TEST(GraphBatchTest, ParametersReadBackAndCanBeReplaced,
          "the parameters of a batch node can be read, and replaced in an executable graph",
          "CUDA Driver API, Graph Management, cuGraphExecBatchMemOpNodeSetParams") {
  const CUdeviceptr word = NewWord(0);
  std::vector<CUstreamBatchMemOpParams> ops = {Write(word, 5)};
  CUDA_BATCH_MEM_OP_NODE_PARAMS params = Params(&ops);
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddBatchMemOpNode, &node, graph_, nullptr, 0, &params);
  CUDA_BATCH_MEM_OP_NODE_PARAMS back{};
  CUDA_OK(cuGraphBatchMemOpNodeGetParams, node, &back);
  ASSERT_EQ(back.count, 1u);
  EXPECT_EQ(back.paramArray[0].writeValue.value64, 5u);
  CUgraphExec exec = Instantiate(graph_);
  ops[0] = Write(word, 6);
  CUDA_OK(cuGraphExecBatchMemOpNodeSetParams, exec, node, &params);
  CUDA_OK(cuGraphLaunch, exec, nullptr);
  Synchronize();
  EXPECT_EQ(ReadWord(word), 6u);
}

RULE_TEST(GraphBatchTest, ABatchInAStreamIsCapturedAsOneNode,
          "cuStreamBatchMemOp into a capturing stream makes one batch node",
          "CUDA Driver API, Stream memory operations, cuStreamBatchMemOp") {
  const CUdeviceptr word = NewWord(0);
  std::vector<CUstreamBatchMemOpParams> ops = {Write(word, 1), WaitFor(word, 1), Write(word, 9)};
  CUstream stream = NewStream();
  CUDA_OK(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUDA_OK(cuStreamBatchMemOp_v2, stream, static_cast<unsigned>(ops.size()), ops.data(), 0);
  CUgraph captured = nullptr;
  CUDA_OK(cuStreamEndCapture, stream, &captured);
  CUgraphNode node = nullptr;
  size_t count = 1;
  CUDA_OK(cuGraphGetNodes, captured, &node, &count);
  ASSERT_EQ(count, 1u);
  CUgraphNodeType type;
  CUDA_OK(cuGraphNodeGetType, node, &type);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  CUDA_OK(cuGraphLaunch, Instantiate(captured), stream);
  Synchronize();
  EXPECT_EQ(ReadWord(word), 9u);
}

}  // namespace
}  // namespace prorata::conformance
