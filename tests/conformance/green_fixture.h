#pragma once

#include <utility>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {

#define GREEN_API(function) DRIVER_API("Green Contexts, " function)

// The primary context is current, as green contexts go with it, and tests end it themselves.
class GreenTest : public DriverTest {
 protected:
  void SetUp() override {
    CUDA_OK(cuInit, 0);
    CUDA_OK(cuDevicePrimaryCtxRetain, &ctx_, 0);
    CUDA_OK(cuCtxSetCurrent, ctx_);
    if (CUDA(cuDeviceGetDevResource)(0, &all_, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) {
      GTEST_SKIP() << "this device has no green contexts";
    }
  }
  void TearDown() override {
    CUDA_OK(cuCtxSetCurrent, ctx_);
    const bool retained = std::exchange(ctx_, nullptr) != nullptr;
    DriverTest::TearDown();  // opens the gates
    for (CUgreenCtx green : greens_) {
      CUDA_OK(cuGreenCtxDestroy, green);
    }
    CUDA_OK(cuCtxSetCurrent, nullptr);
    if (retained) {
      CUDA_OK(cuDevicePrimaryCtxRelease_v2, 0);
    }
  }

  // So many groups of at least so many SMs: all of one size.
  std::vector<CUdevResource> Split(unsigned groups, unsigned min_count,
                                   CUdevResource* rest = nullptr) {
    std::vector<CUdevResource> out(groups);
    EXPECT_EQ(CUDA(cuDevSmResourceSplitByCount)(out.data(), &groups, &all_, rest, 0, min_count),
              CUDA_SUCCESS);
    EXPECT_EQ(groups, out.size());
    return out;
  }
  CUdevResourceDesc Describe(std::vector<CUdevResource> resources) {
    CUdevResourceDesc desc = nullptr;
    EXPECT_EQ(CUDA(cuDevResourceGenerateDesc)(&desc, resources.data(),
                                              static_cast<unsigned>(resources.size())),
              CUDA_SUCCESS);
    return desc;
  }
  CUgreenCtx NewGreen(const std::vector<CUdevResource>& resources) {
    CUgreenCtx green = nullptr;
    EXPECT_EQ(CUDA(cuGreenCtxCreate)(&green, Describe(resources), 0, CU_GREEN_CTX_DEFAULT_STREAM),
              CUDA_SUCCESS);
    if (green) greens_.push_back(green);
    return green;
  }
  // Of the smallest part there can be.
  CUgreenCtx NewGreen() { return NewGreen(Split(1, all_.sm.minSmPartitionSize)); }
  void Destroy(CUgreenCtx green) {
    std::erase(greens_, green);
    EXPECT_EQ(CUDA(cuGreenCtxDestroy)(green), CUDA_SUCCESS);
  }
  static CUcontext ContextOf(CUgreenCtx green) {
    CUcontext ctx = nullptr;
    EXPECT_EQ(CUDA(cuCtxFromGreenCtx)(&ctx, green), CUDA_SUCCESS);
    return ctx;
  }
  static CUstream StreamOf(CUgreenCtx green) {
    CUstream stream = nullptr;
    EXPECT_EQ(CUDA(cuGreenCtxStreamCreate)(&stream, green, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
    return stream;
  }
  static unsigned SmsOf(CUgreenCtx green) {
    CUdevResource resource = {};
    EXPECT_EQ(CUDA(cuGreenCtxGetDevResource)(green, &resource, CU_DEV_RESOURCE_TYPE_SM),
              CUDA_SUCCESS);
    return resource.sm.smCount;
  }

  CUdevResource all_ = {};

 private:
  std::vector<CUgreenCtx> greens_;
};

}  // namespace prorata::conformance
