// Contexts: made, stacked, destroyed, and what goes with them.

#include <thread>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kCreateContext[] = "CUDA Driver API 13.0, Context Management, cuCtxCreate";
constexpr char kDestroyContext[] = "CUDA Driver API 13.0, Context Management, cuCtxDestroy";
constexpr char kStack[] =
    "CUDA Driver API 13.0, Context Management, cuCtxPushCurrent and cuCtxPopCurrent";
constexpr char kSet[] = "CUDA Driver API 13.0, Context Management, cuCtxSetCurrent";

class ContextTest : public ::testing::Test {
 protected:
  void SetUp() override { CUDA_OK(cuInit, 0); }
  void TearDown() override {
    while (Current()) CUDA_OK(cuCtxPopCurrent_v2, nullptr);
    for (CUcontext each : made_) CUDA_OK(cuCtxDestroy_v2, each);
  }
  // Destroyed with the test.
  CUcontext New() {
    CUcontext ctx = nullptr;
    EXPECT_EQ(CUDA(cuCtxCreate_v2)(&ctx, 0, 0), CUDA_SUCCESS);
    made_.push_back(ctx);
    return ctx;
  }
  static CUcontext Current() {
    CUcontext ctx = nullptr;
    EXPECT_EQ(CUDA(cuCtxGetCurrent)(&ctx), CUDA_SUCCESS);
    return ctx;
  }

  std::vector<CUcontext> made_;
};

RULE_TEST(ContextTest, CallsWithoutAContextSaySo,
          "without a current context, calls that need one are CUDA_ERROR_INVALID_CONTEXT",
          "CUDA Driver API 13.0, Data types, CUresult, CUDA_ERROR_INVALID_CONTEXT") {
  CUdeviceptr address;
  CUstream stream;
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2, &address, 1);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuStreamCreate, &stream, 0);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize);
}

RULE_TEST(ContextTest, ANewContextIsCurrent,
          "cuCtxCreate makes the new context current to the calling thread", kCreateContext) {
  EXPECT_EQ(Current(), nullptr);
  CUcontext ctx = New();
  EXPECT_EQ(Current(), ctx);
}

RULE_TEST(ContextTest, ANewContextCoversTheOldOne,
          "the context that was current is restored by cuCtxPopCurrent", kCreateContext) {
  CUcontext a = New();
  CUcontext b = New();
  CUcontext popped = nullptr;
  CUDA_OK(cuCtxPopCurrent_v2, &popped);
  EXPECT_EQ(popped, b);
  EXPECT_EQ(Current(), a);
}

RULE_TEST(ContextTest, AnUnknownFlagIsRefused,
          "cuCtxCreate refuses flags outside CU_CTX_FLAGS_MASK", kCreateContext) {
  CUcontext ctx = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuCtxCreate_v2, &ctx, 0x10000, 0);
}

RULE_TEST(ContextTest, OneSchedulingFlagAtMost,
          "only one of the scheduling flags can be set when creating a context", kCreateContext) {
  CUcontext ctx = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuCtxCreate_v2, &ctx, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD,
          0);
}

RULE_TEST(ContextTest, TheDeviceMustExist,
          "a context on a device that does not exist is CUDA_ERROR_INVALID_DEVICE",
          kCreateContext) {
  CUcontext ctx = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate_v2, &ctx, 0, 99);
}

RULE_TEST(ContextTest, TheNewestCreateMakesPlainContexts,
          "cuCtxCreate_v4 without parameters makes an ordinary context",
          "CUDA Driver API 13.0, Context Management, cuCtxCreate (cuCtxCreate_v4)") {
  CUcontext ctx = nullptr;
  CUDA_OK(cuCtxCreate_v4, &ctx, nullptr, CU_CTX_SCHED_SPIN, 0);
  made_.push_back(ctx);
  EXPECT_EQ(Current(), ctx);
  unsigned flags = 0;
  CUDA_OK(cuCtxGetFlags, &flags);
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, unsigned{CU_CTX_SCHED_SPIN});
}

RULE_TEST(ContextTest, ContextsCostMemory,
          "a context takes device memory, and its destruction gives it back", kDestroyContext) {
  New();
  size_t total = 0;
  size_t before = 0;
  size_t during = 0;
  size_t after = 0;
  CUDA_OK(cuMemGetInfo_v2, &before, &total);
  CUcontext second = nullptr;
  CUDA_OK(cuCtxCreate_v2, &second, 0, 0);
  CUDA_OK(cuMemGetInfo_v2, &during, &total);
  EXPECT_LT(during, before);
  CUDA_OK(cuCtxDestroy_v2, second);
  CUDA_OK(cuMemGetInfo_v2, &after, &total);
  EXPECT_EQ(after, before);
}

RULE_TEST(ContextTest, ContextsEndWithTheMemory,
          "contexts can be made until memory is short, then creation is "
          "CUDA_ERROR_OUT_OF_MEMORY",
          "CUDA Driver API 13.0, Context Management, cuCtxCreate (return values)") {
  SIMULATED_ONLY("a real device holds hundreds");
  std::vector<CUcontext> all;
  CUcontext ctx;
  CUresult result;
  while ((result = CUDA(cuCtxCreate_v2)(&ctx, 0, 0)) == CUDA_SUCCESS) all.push_back(ctx);
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(all.size(), 32u);  // 16 GiB at 512 MiB each
  while (!all.empty()) {
    CUDA_OK(cuCtxDestroy_v2, all.back());
    all.pop_back();
  }
  New();
}

RULE_TEST(ContextTest, EachThreadHasItsOwnStack,
          "a context made current in one thread is not current in another",
          "CUDA C++ Programming Guide 13.0, 21.1 Context") {
  New();
  std::thread([] { EXPECT_EQ(Current(), nullptr); }).join();
}

RULE_TEST(ContextTest, AContextCanBeCurrentToSeveralThreads,
          "one context may be current to any number of threads at once",
          "CUDA Driver API 13.0, Context Management, cuCtxSetCurrent") {
  CUcontext ctx = New();
  std::thread([ctx] {
    CUDA_OK(cuCtxSetCurrent, ctx);
    CUdeviceptr address = 0;
    CUDA_OK(cuMemAlloc_v2, &address, 100);
    CUDA_OK(cuMemFree_v2, address);
  }).join();
  EXPECT_EQ(Current(), ctx);
}

RULE_TEST(ContextTest, PushingStacks,
          "cuCtxPushCurrent puts a context on top, cuCtxPopCurrent takes it off", kStack) {
  CUcontext a = New();
  CUcontext b = New();
  CUDA_OK(cuCtxPushCurrent_v2, a);
  EXPECT_EQ(Current(), a);
  CUcontext popped = nullptr;
  CUDA_OK(cuCtxPopCurrent_v2, &popped);
  EXPECT_EQ(popped, a);
  EXPECT_EQ(Current(), b);
}

RULE_TEST(ContextTest, PoppingAnEmptyStackIsAnError,
          "cuCtxPopCurrent without a current context is CUDA_ERROR_INVALID_CONTEXT", kStack) {
  CUcontext popped = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2, &popped);
}

RULE_TEST(ContextTest, SettingReplacesTheTop, "cuCtxSetCurrent replaces the top of the stack",
          kSet) {
  CUcontext a = New();
  CUcontext b = New();
  CUDA_OK(cuCtxSetCurrent, a);
  EXPECT_EQ(Current(), a);
  CUDA_OK(cuCtxPopCurrent_v2, nullptr);
  EXPECT_EQ(Current(), a);  // what lay below
  (void)b;
}

RULE_TEST(ContextTest, SettingNothingPops,
          "cuCtxSetCurrent(NULL) pops the top, or does nothing on an empty stack", kSet) {
  CUDA_OK(cuCtxSetCurrent, nullptr);
  CUcontext a = New();
  New();
  CUDA_OK(cuCtxSetCurrent, nullptr);
  EXPECT_EQ(Current(), a);
  CUDA_OK(cuCtxSetCurrent, nullptr);
  EXPECT_EQ(Current(), nullptr);
}

RULE_TEST(ContextTest, DestroyingTheCurrentContextPopsIt,
          "a context that is current to the calling thread is popped as it is destroyed",
          kDestroyContext) {
  CUcontext a = New();
  CUcontext b = nullptr;
  CUDA_OK(cuCtxCreate_v2, &b, 0, 0);
  CUDA_OK(cuCtxDestroy_v2, b);
  EXPECT_EQ(Current(), a);
}

RULE_TEST(ContextTest, AContextDestroyedElsewhereIsFoundDead,
          "a context destroyed by another thread stays current here, and calls find it "
          "CUDA_ERROR_CONTEXT_IS_DESTROYED",
          kDestroyContext) {
  CUcontext ctx = nullptr;
  CUDA_OK(cuCtxCreate_v2, &ctx, 0, 0);
  std::thread([&] { CUDA_OK(cuCtxDestroy_v2, ctx); }).join();
  CUdeviceptr address;
  CUDA_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2, &address, 1);
  CUcontext popped = nullptr;
  CUDA_OK(cuCtxPopCurrent_v2, &popped);
  EXPECT_EQ(popped, ctx);
}

RULE_TEST(ContextTest, ADestroyedContextTakesItsMemoryAlong,
          "cuMemAlloc's memory is freed with its context", kDestroyContext) {
  New();
  size_t total = 0;
  size_t before = 0;
  size_t after = 0;
  CUDA_OK(cuMemGetInfo_v2, &before, &total);
  CUcontext second = nullptr;
  CUdeviceptr address = 0;
  CUDA_OK(cuCtxCreate_v2, &second, 0, 0);
  CUDA_OK(cuMemAlloc_v2, &address, 100 * kMiB);
  CUDA_OK(cuCtxDestroy_v2, second);
  CUDA_OK(cuMemGetInfo_v2, &after, &total);
  EXPECT_EQ(after, before);
}

RULE_TEST(ContextTest, PhysicalMemoryOutlivesItsContext,
          "memory of cuMemCreate is not destroyed with any context", kDestroyContext) {
  New();
  CUcontext second = nullptr;
  CUDA_OK(cuCtxCreate_v2, &second, 0, 0);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  size_t unit = 0;
  CUDA_OK(cuMemGetAllocationGranularity, &unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  CUmemGenericAllocationHandle handle = 0;
  CUDA_OK(cuMemCreate, &handle, unit, &prop, 0);
  CUdeviceptr range = 0;
  CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  uint64_t value = 7;
  CUDA_OK(cuMemAddressReserve, &range, unit, 0, 0, 0);
  CUDA_OK(cuMemMap, range, unit, 0, handle, 0);
  CUDA_OK(cuMemSetAccess, range, unit, &access, 1);
  CUDA_OK(cuMemcpyHtoD_v2, range, &value, 8);
  CUDA_OK(cuCtxDestroy_v2, second);
  value = 0;
  CUDA_OK(cuMemcpyDtoH_v2, &value, range, 8);
  EXPECT_EQ(value, 7u);
  CUDA_OK(cuMemUnmap, range, unit);
  CUDA_OK(cuMemAddressFree, range, unit);
  CUDA_OK(cuMemRelease, handle);
}

RULE_TEST(ContextTest, PoolMemoryOutlivesItsContext,
          "memory of cuMemAllocAsync is not destroyed with any context", kDestroyContext) {
  New();
  CUcontext second = nullptr;
  CUDA_OK(cuCtxCreate_v2, &second, 0, 0);
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAllocAsync, &address, 8, nullptr);
  uint64_t value = 5;
  CUDA_OK(cuMemcpyHtoD_v2, address, &value, 8);
  CUDA_OK(cuCtxDestroy_v2, second);
  value = 0;
  CUDA_OK(cuMemcpyDtoH_v2, &value, address, 8);
  EXPECT_EQ(value, 5u);
  CUDA_OK(cuMemFreeAsync, address, nullptr);
  CUDA_OK(cuStreamSynchronize, nullptr);
}

RULE_TEST(ContextTest, AStaleContextIsRefused,
          "a destroyed or invented context is not made current", kSet) {
  SIMULATED_ONLY("a stale handle is undefined behaviour on a GPU");
  CUcontext ctx = nullptr;
  CUDA_OK(cuCtxCreate_v2, &ctx, 0, 0);
  CUDA_OK(cuCtxDestroy_v2, ctx);
  CUDA_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSetCurrent, ctx);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent, reinterpret_cast<CUcontext>(0x1000));
}

RULE_TEST(ContextTest, DestroyingNothingIsAnError, "cuCtxDestroy(NULL) fails",
          "CUDA Driver API 13.0, Context Management, cuCtxDestroy "
          "(return values)") {
  EXPECT_NE(CUDA(cuCtxDestroy_v2)(nullptr), CUDA_SUCCESS);
}

}  // namespace
}  // namespace prorata::conformance
