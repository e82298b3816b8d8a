// Contexts: what the device reserves for one is charged before it is made, and settled after.

#include "limits.h"

namespace prorata::limits {
namespace {

class ContextLimits : public LimitTest {
 protected:
  // What one more context is charged.
  uint64_t ContextBytes() {
    const uint64_t before = Free();
    CUcontext other = nullptr;
    EXPECT_EQ(CUDA(cuCtxCreate_v2)(&other, 0, device_), CUDA_SUCCESS);
    const uint64_t bytes = before - Free();
    EXPECT_EQ(CUDA(cuCtxDestroy_v2)(other), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuCtxSetCurrent)(ctx_), CUDA_SUCCESS);
    EXPECT_TRUE(FreeBecomes(before));
    EXPECT_GT(bytes, 0U);
    return bytes;
  }
  using Maker = CUresult (*)(CUcontext*, CUdevice);
  static constexpr Maker kMakers[] = {
      [](CUcontext* ctx, CUdevice device) { return CUDA(cuCtxCreate)(ctx, 0, device); },
      [](CUcontext* ctx, CUdevice device) { return CUDA(cuCtxCreate_v2)(ctx, 0, device); },
      [](CUcontext* ctx, CUdevice device) {
        return CUDA(cuCtxCreate_v3)(ctx, nullptr, 0, 0, device);
      },
      [](CUcontext* ctx, CUdevice device) {
        CUctxCreateParams params = {};
        return CUDA(cuCtxCreate_v4)(ctx, &params, 0, device);
      },
  };
};

TEST_F(ContextLimits, CtxCreateRefused) {
  const uint64_t bytes = ContextBytes();
  LeaveRoom(bytes / 2);
  for (Maker make : kMakers) {
    CUcontext other = nullptr;
    Refused([&] { return make(&other, device_); });
  }
}

TEST_F(ContextLimits, CtxCreateGivenBack) {
  const uint64_t bytes = ContextBytes();
  LeaveRoom(bytes + kSlab);
  const uint64_t before = Free();
  for (Maker make : kMakers) {
    CUcontext other = nullptr;
    ASSERT_EQ(make(&other, device_), CUDA_SUCCESS);
    EXPECT_TRUE(FreeBecomes(before - bytes)) << Free() << " " << before << " " << bytes;
    CUDA_OK(cuCtxDestroy_v2, other);
    CUDA_OK(cuCtxSetCurrent, ctx_);
    EXPECT_TRUE(FreeBecomes(before));
  }
}

}  // namespace
}  // namespace prorata::limits
