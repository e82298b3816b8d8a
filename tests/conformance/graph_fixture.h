#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {

// Graphs of kernels that write down when they ran.
class StampGraphTest : public DriverTest {
 protected:
  using Nodes = std::vector<CUgraphNode>;

  // When a kernel ran, on the device's clock.
  struct Span {
    uint64_t start = 0;
    uint64_t end = 0;
  };

  void SetUp() override {
    DriverTest::SetUp();
    if (HasFatalFailure()) return;
    CUDA_OK(cuGraphCreate, &graph_, 0);
    Kernel("stamp");  // loaded now: loading waits for the device
  }

  static CUdeviceptr NewStamp() {
    CUdeviceptr stamp = 0;
    const Span none;  // copied, as a fill would not wait for the device
    EXPECT_EQ(CUDA(cuMemAlloc_v2)(&stamp, sizeof(none)), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemcpyHtoD_v2)(stamp, &none, sizeof(none)), CUDA_SUCCESS);
    return stamp;
  }
  static Span Read(CUdeviceptr stamp) {
    Span span;
    EXPECT_EQ(CUDA(cuMemcpyDtoH_v2)(&span, stamp, sizeof(span)), CUDA_SUCCESS);
    EXPECT_GT(span.end, span.start);
    return span;
  }

  // A node's parameters; valid until the next call.
  const CUDA_KERNEL_NODE_PARAMS* StampParams(CUdeviceptr stamp, uint64_t ns) {
    stamp_ = stamp;
    ns_ = ns;
    arguments_ = {&stamp_, &ns_};
    params_ = {};
    params_.func = Kernel("stamp");
    params_.gridDimX = params_.gridDimY = params_.gridDimZ = 1;
    params_.blockDimX = params_.blockDimY = params_.blockDimZ = 1;
    params_.kernelParams = arguments_.data();
    return &params_;
  }
  CUgraphNode AddStamp(CUgraph graph, const Nodes& after, CUdeviceptr stamp, uint64_t ns = kNs) {
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA(cuGraphAddKernelNode_v2)(&node, graph, after.data(), after.size(),
                                            StampParams(stamp, ns)),
              CUDA_SUCCESS);
    return node;
  }
  CUresult LaunchStamp(CUstream stream, CUdeviceptr stamp, uint64_t ns = kNs) {
    void* arguments[] = {&stamp, &ns};
    return CUDA(cuLaunchKernel)(Kernel("stamp"), 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
  }
  static CUgraphExec Instantiate(CUgraph graph, uint64_t flags = 0) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(CUDA(cuGraphInstantiateWithFlags)(&exec, graph, flags), CUDA_SUCCESS);
    return exec;
  }
  static void Synchronize() { EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS); }

  static constexpr uint64_t kNs = 2'000'000;

  CUgraph graph_ = nullptr;

 private:
  CUdeviceptr stamp_ = 0;
  uint64_t ns_ = 0;
  std::array<void*, 2> arguments_{};
  CUDA_KERNEL_NODE_PARAMS params_{};
};

}  // namespace prorata::conformance
