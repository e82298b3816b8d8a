// Contexts made by the program, and the current one of each thread.

#include <algorithm>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/context/green.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/pool.h"
#include "sim/cuda/stream/call_time.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult Create(CUcontext* pctx, unsigned flags, CUdevice dev, unsigned api_version) {
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = EnterDevice(dev)) return result;
  if (!ContextFlagsAreValid(flags)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(D().mutex);
  auto* ctx = new Context;
  ctx->device = dev;
  ctx->flags = flags;
  ctx->api_version = api_version;
  ctx->id = D().next_id++;
  if (CUresult result = OpenContext(ctx)) {
    delete ctx;
    return result;
  }
  D().contexts.insert(ctx);
  if (!Broken(Rule::kNewContextIsCurrent)) Self().stack.push_back(ctx);
  *pctx = HandleOf(ctx);
  return CUDA_SUCCESS;
}

CUresult Destroy(CUcontext handle) {
  if (CUresult result = EnterCall()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(D().mutex);
  Context* ctx;
  if (CUresult result = NamedContext(handle, &ctx)) return result;
  if (ctx->primary || ctx->green) return CUDA_ERROR_INVALID_CONTEXT;
  CloseContext(ctx, &lock);
  // Popped from the calling thread if it is on top; other threads find it destroyed.
  auto& stack = Self().stack;
  const bool pops = !Broken(Rule::kDestroyPops);
  if (pops && !stack.empty() && stack.back() == ctx) stack.pop_back();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return Create(pctx, flags, dev, 3020);
}

CUresult cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return Create(pctx, flags, dev, 3010);
}

CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                        unsigned int flags, CUdevice dev) {
  if (numParams < 0 || (numParams > 0 && !paramsArray)) return CUDA_ERROR_INVALID_VALUE;
  if (numParams > 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;  // needs MPS
  return Create(pctx, flags, dev, 3020);
}

CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                        CUdevice dev) {
  if (ctxCreateParams && ctxCreateParams->numExecAffinityParams > 0) {
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  }
  if (ctxCreateParams && ctxCreateParams->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
  return Create(pctx, flags, dev, 3020);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) { return Destroy(ctx); }
CUresult cuCtxDestroy(CUcontext ctx) { return Destroy(ctx); }
CUresult cuCtxDetach(CUcontext ctx) {
  if (CUresult result = EnterCall()) return result;
  const auto& stack = Self().stack;
  if (!ctx || stack.empty() || HandleOf(stack.back()) != ctx) return CUDA_ERROR_INVALID_CONTEXT;
  return Destroy(ctx);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  const CallTime call_time;
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Context* found;
  if (CUresult result = ContextForStack(ctx, &found)) return result;
  Self().stack.push_back(found);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx) { return cuCtxPushCurrent_v2(ctx); }

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) {
  const CallTime call_time;
  if (CUresult result = EnterCall()) return result;
  auto& stack = Self().stack;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx) *pctx = HandleOf(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* pctx) { return cuCtxPopCurrent_v2(pctx); }

CUresult cuCtxSetCurrent(CUcontext ctx) {
  if (CUresult result = EnterCall()) return result;
  auto& stack = Self().stack;
  if (!ctx) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  std::lock_guard lock(D().mutex);
  Context* found;
  if (CUresult result = ContextForStack(ctx, &found)) return result;
  if (stack.empty()) {
    stack.push_back(found);
  } else {
    stack.back() = found;
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
  if (CUresult result = EnterCall()) return result;
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  auto& stack = Self().stack;
  *pctx = stack.empty() ? nullptr : HandleOf(stack.back());
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
  if (CUresult result = EnterCall()) return result;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Context* found;
  if (CUresult result = LiveContext(ctx, &found)) return result;
  *device = found->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) { return cuCtxGetDevice_v2(device, nullptr); }

CUresult cuCtxGetFlags(unsigned int* flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = ctx->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!ContextFlagsAreValid(flags)) return CUDA_ERROR_INVALID_VALUE;
  ctx->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
  if (CUresult result = EnterCall()) return result;
  if (!ctxId) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Context* found;
  if (CUresult result = NamedContext(ctx, &found)) return result;
  *ctxId = found->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  if (CUresult result = EnterCall()) return result;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Context* found;
  if (CUresult result = LiveContext(ctx, &found)) return result;
  *version = found->api_version;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  if (CUresult result = EnterCall()) return result;
  Handle handle;
  Context* found;
  std::vector<StreamRef> of_green;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = NamedContext(ctx, &found)) return result;
    const Green* const green = found->green;
    if (green) found = green->primary;
    if (CUresult result = ErrorOf(*found)) return result;
    if (CUresult result = CheckContextNotCapturing(found, green)) return result;
    handle = found->handle;
    if (green && !Broken(Rule::kGreenWaitsForItself)) {
      of_green = StreamsOf(*green);
      of_green.push_back(green->collector);  // for what was in streams that are gone
    }
  }
  if (CUresult result = CheckCaptureSafe()) return result;
  if (Broken(Rule::kContextSynchronizeWaits)) return CUDA_SUCCESS;
  for (const StreamRef& stream : of_green) {
    const Code code = D().machine->WaitStream(stream->handle);
    if (code == Code::kInvalidHandle) continue;  // destroyed meanwhile
    if (CUresult result = FromCode(code)) return result;
  }
  if (of_green.empty()) {
    if (CUresult result = FromCode(D().machine->WaitContext(handle))) return result;
  }
  if (CUresult result = ErrorOf(*found)) return result;
  AfterSynchronize(found);
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() { return cuCtxSynchronize_v2(nullptr); }

CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (leastPriority) *leastPriority = kLowestPriority;
  if (greatestPriority) *greatestPriority = kHighestPriority;
  return CUDA_SUCCESS;
}
