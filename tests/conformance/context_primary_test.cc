// The primary context of a device: counted, shared, reset.

#include "conformance.h"

namespace prorata::conformance {
namespace {

class PrimaryContextTest : public ::testing::Test {
 protected:
  void SetUp() override { CUDA_OK(cuInit, 0); }
  void TearDown() override {
    CUDA_OK(cuCtxSetCurrent, nullptr);
    while (retained_-- > 0) CUDA(cuDevicePrimaryCtxRelease_v2)(0);
    CUDA_OK(cuDevicePrimaryCtxSetFlags_v2, 0, 0);
  }
  CUcontext Retain() {
    CUcontext ctx = nullptr;
    EXPECT_EQ(CUDA(cuDevicePrimaryCtxRetain)(&ctx, 0), CUDA_SUCCESS);
    ++retained_;
    return ctx;
  }
  void Release() {
    EXPECT_EQ(CUDA(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
    --retained_;
  }
  static CUcontext Current() {
    CUcontext ctx = nullptr;
    EXPECT_EQ(CUDA(cuCtxGetCurrent)(&ctx), CUDA_SUCCESS);
    return ctx;
  }
  static int Active() {
    unsigned flags = 0;
    int active = -1;
    EXPECT_EQ(CUDA(cuDevicePrimaryCtxGetState)(0, &flags, &active), CUDA_SUCCESS);
    return active;
  }
  int retained_ = 0;
};

constexpr char kRetain[] =
    "CUDA Driver API 13.0, Primary Context Management, "
    "cuDevicePrimaryCtxRetain";
constexpr char kReleased[] =
    "CUDA Driver API 13.0, Primary Context Management, "
    "cuDevicePrimaryCtxRelease";

RULE_TEST(PrimaryContextTest, ItIsMadeWhenItIsRetained,
          "the primary context is inactive until it is retained, and active from then on",
          kRetain) {
  EXPECT_EQ(Active(), 0);
  Retain();
  EXPECT_EQ(Active(), 1);
}

RULE_TEST(PrimaryContextTest, ThereIsOne, "retaining again gives the same context", kRetain) {
  EXPECT_EQ(Retain(), Retain());
}

RULE_TEST(PrimaryContextTest, RetainingDoesNotMakeItCurrent,
          "unlike cuCtxCreate, retaining pushes nothing", kRetain) {
  Retain();
  EXPECT_EQ(Current(), nullptr);
}

RULE_TEST(PrimaryContextTest, ItLivesUntilTheLastRelease,
          "the context is reset when its last reference is released", kReleased) {
  Retain();
  Retain();
  Release();
  EXPECT_EQ(Active(), 1);
  Release();
  EXPECT_EQ(Active(), 0);
}

RULE_TEST(PrimaryContextTest, ReleasingWhatNobodyRetainedIsAnError,
          "releasing a primary context that is not retained is CUDA_ERROR_INVALID_CONTEXT",
          kReleased) {
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2, 0);
}

RULE_TEST(PrimaryContextTest, ReleasingDoesNotPop,
          "releasing does not pop the context from any stack", kReleased) {
  CUcontext ctx = Retain();
  CUDA_OK(cuCtxSetCurrent, ctx);
  Release();
  EXPECT_EQ(Current(), ctx);
  CUdeviceptr address = 0;
  EXPECT_NE(CUDA(cuMemAlloc_v2)(&address, 100), CUDA_SUCCESS);
}

RULE_TEST(PrimaryContextTest, ItCannotBeDestroyed,
          "cuCtxDestroy refuses the primary context: it is released or reset",
          "CUDA Driver API 13.0, Primary Context Management (as observed)") {
  CUcontext ctx = Retain();
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2, ctx);
  EXPECT_EQ(Active(), 1);
}

RULE_TEST(PrimaryContextTest, ResettingFreesWhatIsInIt,
          "cuDevicePrimaryCtxReset destroys all allocations of the primary context",
          "CUDA Driver API 13.0, Primary Context Management, cuDevicePrimaryCtxReset") {
  CUcontext ctx = Retain();
  CUDA_OK(cuCtxSetCurrent, ctx);
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  CUDA_OK(cuMemGetInfo_v2, &before, &total);
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAlloc_v2, &address, 100 * kMiB);
  CUDA_OK(cuDevicePrimaryCtxReset_v2, 0);
  EXPECT_EQ(Active(), 0);
  Retain();
  CUDA_OK(cuMemGetInfo_v2, &after, &total);
  EXPECT_EQ(after, before);
}

RULE_TEST(PrimaryContextTest, ResettingDoesNotRelease,
          "after a reset the references are still there: releasing them is safe",
          "CUDA Driver API 13.0, Primary Context Management, cuDevicePrimaryCtxReset") {
  Retain();
  CUDA_OK(cuDevicePrimaryCtxReset_v2, 0);
  Release();
}

RULE_TEST(PrimaryContextTest, FlagsAreSetAndReported,
          "cuDevicePrimaryCtxSetFlags sets the flags that cuDevicePrimaryCtxGetState tells",
          "CUDA Driver API 13.0, Primary Context Management, cuDevicePrimaryCtxSetFlags") {
  CUDA_OK(cuDevicePrimaryCtxSetFlags_v2, 0, CU_CTX_SCHED_BLOCKING_SYNC);
  unsigned flags = 0;
  int active = 1;
  CUDA_OK(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, unsigned{CU_CTX_SCHED_BLOCKING_SYNC});
  CUDA_OK(cuCtxSetCurrent, Retain());
  CUDA_OK(cuCtxGetFlags, &flags);
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, unsigned{CU_CTX_SCHED_BLOCKING_SYNC});
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxSetFlags_v2, 0, 0x10000);
}

}  // namespace
}  // namespace prorata::conformance
