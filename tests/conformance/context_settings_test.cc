// What a context can be asked and told: flags, limits, ids, versions, priorities.

#include "conformance.h"

namespace prorata::conformance {
namespace {

using ContextSettingsTest = DriverTest;

RULE_TEST(ContextSettingsTest, FlagsAreThoseOfTheCreation,
          "cuCtxGetFlags gives the flags that the context was made with",
          "CUDA Driver API 13.0, Context Management, cuCtxGetFlags") {
  for (unsigned flags : {CU_CTX_SCHED_SPIN, CU_CTX_SCHED_YIELD, CU_CTX_SCHED_BLOCKING_SYNC}) {
    CUcontext ctx = nullptr;
    unsigned seen = 0;
    CUDA_OK(cuCtxCreate_v2, &ctx, flags, 0);
    CUDA_OK(cuCtxGetFlags, &seen);
    EXPECT_EQ(seen & CU_CTX_SCHED_MASK, flags);
    CUDA_OK(cuCtxDestroy_v2, ctx);
  }
}

RULE_TEST(ContextSettingsTest, FlagsCanBeSetLater,
          "cuCtxSetFlags overwrites the current context's flags, and refuses unknown ones",
          "CUDA Driver API 13.0, Context Management, cuCtxSetFlags") {
  unsigned seen = 0;
  CUDA_OK(cuCtxSetFlags, CU_CTX_SCHED_YIELD);
  CUDA_OK(cuCtxGetFlags, &seen);
  EXPECT_EQ(seen & CU_CTX_SCHED_MASK, unsigned{CU_CTX_SCHED_YIELD});
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuCtxSetFlags, 0x10000);
}

RULE_TEST(ContextSettingsTest, EveryContextHasItsOwnId,
          "cuCtxGetId is unique to a context, and NULL means the current one",
          "CUDA Driver API 13.0, Context Management, cuCtxGetId") {
  unsigned long long mine = 0;
  unsigned long long current = 0;
  unsigned long long other = 0;
  CUDA_OK(cuCtxGetId, ctx_, &mine);
  CUDA_OK(cuCtxGetId, nullptr, &current);
  EXPECT_EQ(mine, current);
  for (int i = 0; i < 3; ++i) {  // also of contexts that are gone
    CUcontext ctx = nullptr;
    unsigned long long id = 0;
    CUDA_OK(cuCtxCreate_v2, &ctx, 0, 0);
    CUDA_OK(cuCtxGetId, ctx, &id);
    EXPECT_NE(id, mine);
    EXPECT_NE(id, other);
    other = id;
    CUDA_OK(cuCtxDestroy_v2, ctx);
  }
}

RULE_TEST(ContextSettingsTest, TheApiVersionIsTheContexts,
          "cuCtxGetApiVersion gives the version of the ABI the context was made by, 3020 today",
          "CUDA Driver API 13.0, Context Management, cuCtxGetApiVersion") {
  unsigned version = 0;
  CUDA_OK(cuCtxGetApiVersion, ctx_, &version);
  EXPECT_GE(version, 3020u);
  unsigned current = 0;
  CUDA_OK(cuCtxGetApiVersion, nullptr, &current);
  EXPECT_EQ(current, version);
}

RULE_TEST(ContextSettingsTest, AContextKnowsItsDevice,
          "cuCtxGetDevice gives the current context's device",
          "CUDA Driver API 13.0, Context Management, cuCtxGetDevice") {
  CUdevice device = -1;
  CUDA_OK(cuCtxGetDevice, &device);
  EXPECT_EQ(device, 0);
  device = -1;
  CUDA_OK(cuCtxGetDevice_v2, &device, ctx_);
  EXPECT_EQ(device, 0);
  CUDA_OK(cuCtxSetCurrent, nullptr);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice, &device);
  CUDA_OK(cuCtxPushCurrent_v2, ctx_);
}

RULE_TEST(ContextSettingsTest, LimitsAreReadAndSet,
          "cuCtxSetLimit changes a limit that cuCtxGetLimit then tells, perhaps rounded",
          "CUDA Driver API 13.0, Context Management, cuCtxSetLimit and cuCtxGetLimit") {
  size_t value = 0;
  CUDA_OK(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 4096);
  CUDA_OK(cuCtxGetLimit, &value, CU_LIMIT_STACK_SIZE);
  EXPECT_GE(value, 4096u);
  CUDA_OK(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, 32 << 20);
  CUDA_OK(cuCtxGetLimit, &value, CU_LIMIT_MALLOC_HEAP_SIZE);
  EXPECT_GE(value, size_t{32} << 20);
}

RULE_TEST(
    ContextSettingsTest, LimitsHaveDefaults,
    "the device heap is 8 MiB unless it is set, and no stack is empty",
    "CUDA C++ Programming Guide 13.0, 10.36.1 Heap Memory Allocation: a default heap of eight "
    "megabytes") {
  size_t value = 0;
  CUDA_OK(cuCtxGetLimit, &value, CU_LIMIT_MALLOC_HEAP_SIZE);
  EXPECT_EQ(value, size_t{8} << 20);
  CUDA_OK(cuCtxGetLimit, &value, CU_LIMIT_STACK_SIZE);
  EXPECT_GT(value, 0u);
  CUDA_OK(cuCtxGetLimit, &value, CU_LIMIT_PRINTF_FIFO_SIZE);
  EXPECT_GT(value, 0u);
}

RULE_TEST(ContextSettingsTest, LimitsAreAContextsOwn, "a limit set in one context is not another's",
          "CUDA Driver API 13.0, Context Management, cuCtxSetLimit") {
  size_t before = 0;
  size_t after = 0;
  CUDA_OK(cuCtxGetLimit, &before, CU_LIMIT_STACK_SIZE);
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUDA_OK(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, before + 8192);
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxGetLimit, &after, CU_LIMIT_STACK_SIZE);
  EXPECT_EQ(after, before);
}

RULE_TEST(ContextSettingsTest, TheSyncDepthIsGoneSinceCapability9,
          "CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH is CUDA_ERROR_UNSUPPORTED_LIMIT on devices of compute "
          "capability 9.0 and above",
          "CUDA Driver API 13.0, Context Management, cuCtxSetLimit") {
  int major = 0;
  CUDA_OK(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
  if (major < 9) GTEST_SKIP() << "the limit is still there";
  CUDA_IS(CUDA_ERROR_UNSUPPORTED_LIMIT, cuCtxSetLimit, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 3);
}

RULE_TEST(ContextSettingsTest, UnknownLimitsAreRefused,
          "a limit outside the enumeration is an error",
          "CUDA Driver API 13.0, Context Management, cuCtxGetLimit (return values)") {
  size_t value = 0;
  EXPECT_NE(CUDA(cuCtxGetLimit)(&value, static_cast<CUlimit>(99)), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuCtxSetLimit)(static_cast<CUlimit>(99), 1), CUDA_SUCCESS);
}

RULE_TEST(ContextSettingsTest, CacheConfigurationsAreTaken,
          "a context takes each cache preference; it is a preference, and none is an error",
          "CUDA Driver API 13.0, Context Management, cuCtxSetCacheConfig") {
  for (CUfunc_cache config : {CU_FUNC_CACHE_PREFER_NONE, CU_FUNC_CACHE_PREFER_SHARED,
                              CU_FUNC_CACHE_PREFER_L1, CU_FUNC_CACHE_PREFER_EQUAL}) {
    CUfunc_cache seen = CU_FUNC_CACHE_PREFER_NONE;
    CUDA_OK(cuCtxSetCacheConfig, config);
    CUDA_OK(cuCtxGetCacheConfig, &seen);
  }
}

RULE_TEST(ContextSettingsTest, UnknownCacheConfigurationsAreRefused,
          "a cache preference outside the enumeration is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Context Management, cuCtxSetCacheConfig (return values)") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuCtxSetCacheConfig, static_cast<CUfunc_cache>(99));
}

RULE_TEST(ContextSettingsTest, LowerNumbersAreGreaterPriorities,
          "the greatest stream priority is numerically at most the least; both places are optional",
          "CUDA Driver API 13.0, Context Management, cuCtxGetStreamPriorityRange") {
  int least = -100;
  int greatest = 100;
  CUDA_OK(cuCtxGetStreamPriorityRange, &least, &greatest);
  EXPECT_LE(greatest, least);
  EXPECT_EQ(least, 0);
  CUDA_OK(cuCtxGetStreamPriorityRange, nullptr, &greatest);
  CUDA_OK(cuCtxGetStreamPriorityRange, &least, nullptr);
}

RULE_TEST(ContextSettingsTest, SynchronizingWaitsForAllStreams,
          "cuCtxSynchronize returns when everything submitted to the context is done",
          "CUDA Driver API 13.0, Context Management, cuCtxSynchronize") {
  CUstream a = NewStream();
  CUstream b = NewStream(CU_STREAM_DEFAULT);
  const CUdeviceptr words[] = {NewWord(0), NewWord(0), NewWord(0)};
  ASSERT_EQ(Step(a, words[0], 0, 1, 20'000'000), CUDA_SUCCESS);
  ASSERT_EQ(Step(b, words[1], 0, 1, 10'000'000), CUDA_SUCCESS);
  ASSERT_EQ(Step(nullptr, words[2], 0, 1, 10'000'000), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  CUDA_OK(cuStreamQuery, a);
  CUDA_OK(cuStreamQuery, b);
  CUDA_OK(cuStreamQuery, nullptr);
  for (CUdeviceptr word : words) EXPECT_EQ(ReadWord(word), 1u);
}

RULE_TEST(ContextSettingsTest, SynchronizingIsOneContextsAffair,
          "cuCtxSynchronize waits for the current context only",
          "CUDA Driver API 13.0, Context Management, cuCtxSynchronize") {
  CUstream held = NewStream();
  ASSERT_EQ(NewGate().Hold(held), CUDA_SUCCESS);
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUDA_OK(cuCtxSynchronize);
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, held);
}

RULE_TEST(ContextSettingsTest, ACurrentContextIsDetached,
          "cuCtxDetach destroys a context that is current and was not attached again",
          "CUDA Driver API 13.0, Context Management [DEPRECATED], cuCtxDetach") {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUDA_OK(cuCtxDetach, other);
  CUcontext current = nullptr;
  CUDA_OK(cuCtxGetCurrent, &current);
  EXPECT_EQ(current, ctx_);
}

RULE_TEST(ContextSettingsTest, OnlyACurrentContextIsDetached,
          "cuCtxDetach takes a context that is current to the calling thread only",
          "CUDA Driver API 13.0, Context Management [DEPRECATED], cuCtxDetach") {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUDA_OK(cuCtxPopCurrent_v2, nullptr);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach, other);
  CUDA_OK(cuCtxDestroy_v2, other);
}

}  // namespace
}  // namespace prorata::conformance
