// The primary context of a device: counted by retain and release, shared by everything in the
// process that uses the runtime.

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"

namespace prorata::simgpu::driver {

CUresult RetainPrimary(int ordinal) {
  Device& device = D().device(ordinal);
  Context& ctx = device.primary;
  if (!ctx.alive) {
    ctx.flags = device.primary_flags;
    if (CUresult result = OpenContext(&ctx)) return result;
  }
  ++ctx.retain_count;
  return CUDA_SUCCESS;
}

void ReleasePrimary(int ordinal, Lock* lock) {
  Context& ctx = D().device(ordinal).primary;
  if (ctx.retain_count == 0) return;
  // Not alive: it was reset, which releases nothing.
  --ctx.retain_count;
  const bool last = ctx.retain_count == 0 || Broken(Rule::kPrimaryIsCounted);
  if (last && ctx.alive) CloseContext(&ctx, lock);
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  if (CUresult result = RetainPrimary(dev)) return result;
  *pctx = HandleOf(&D().device(dev).primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  Lock lock(D().mutex);
  Context& ctx = D().device(dev).primary;
  if (ctx.retain_count == 0) return CUDA_ERROR_INVALID_CONTEXT;
  ReleasePrimary(dev, &lock);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  Lock lock(D().mutex);
  Context& ctx = D().device(dev).primary;
  if (ctx.alive) CloseContext(&ctx, &lock);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!ContextFlagsAreValid(flags)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Device& device = D().device(dev);
  device.primary_flags = flags;
  if (device.primary.alive) device.primary.flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  const Device& device = D().device(dev);
  *flags = device.primary_flags;
  *active = device.primary.alive ? 1 : 0;
  return CUDA_SUCCESS;
}
