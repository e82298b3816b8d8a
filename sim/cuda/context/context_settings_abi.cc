// What a program can set on a context and read back. None of it changes the model, except that
// values out of range are refused as on a device, and larger heaps, stacks and counts of pending
// launches take device memory.

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/context/green.h"
#include "sim/cuda/module/code_memory.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// A context's limits before the program sets any. From the CUDA programming guide where it says,
// otherwise plausible for the architecture.
size_t DefaultLimit(CUlimit limit) {
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      return kDefaultStackBytes;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return kDefaultPrintfBytes;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      return kDefaultHeapBytes;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      return 2;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
      return kDefaultPendingLaunches;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      return 64;
    default:
      return 0;
  }
}

}  // namespace

CUresult cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!pvalue || limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  auto set = ctx->limits.find(limit);
  *pvalue = set != ctx->limits.end() ? set->second : DefaultLimit(limit);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (limit == CU_LIMIT_STACK_SIZE && value > (size_t{512} << 10)) return CUDA_ERROR_INVALID_VALUE;
  if (limit >= CU_LIMIT_SHMEM_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH && D().config(ctx->device).compute_major >= 9) {
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
  std::lock_guard lock(D().mutex);
  if (limit == CU_LIMIT_STACK_SIZE) {
    if (CUresult result = SizeStacks(ctx, value)) return result;
  }
  if (limit == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT) {
    if (CUresult result = SizePendingLaunches(ctx, value)) return result;
  }
  if (!Broken(Rule::kLimitsStay)) ctx->limits[limit] = value;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!pconfig) return CUDA_ERROR_INVALID_VALUE;
  *pconfig = ctx->cache_config;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ctx->cache_config = config;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!pConfig) return CUDA_ERROR_INVALID_VALUE;
  *pConfig = ctx->shared_config;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  ctx->shared_config = config;
  return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache() {
  Context* ctx;
  return EnterContext(&ctx);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam* pExecAffinity, CUexecAffinityType type) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!pExecAffinity) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  pExecAffinity->type = type;
  pExecAffinity->param.smCount.val = D().config(ctx->device).sm_count;
  return CUDA_SUCCESS;
}
