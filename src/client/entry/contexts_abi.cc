// Making and ending contexts; see contexts.h.

#include "client/entry/contexts.h"
#include "client/memory/in_flight.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

template <typename Call>
CUresult Create(CUcontext* context, CUdevice ordinal, Call&& call) {
  if (!Governed() || context == nullptr) return call();
  const uint32_t device = IndexOf(ordinal);
  if (device == kNoDevice && Live() == kGoverned) return call();  // not a device
  const InFlightEpoch moving;
  uint64_t reserved_bytes;
  CUresult result = ReserveContext(device, &reserved_bytes);
  if (result != CUDA_SUCCESS) return result;
  result = call();
  if (result == CUDA_SUCCESS) {
    ContextMade(*context, device, reserved_bytes);
  } else {
    ContextFailed(device, reserved_bytes);
  }
  return result;
}

template <typename Call>
CUresult DestroyContext(CUcontext context, Call&& call) {
  if (!Governed() || context == nullptr) return call();
  const InFlightEpoch moving;
  const ContextEnd end = ContextEnding(context);
  const CUresult result = call();
  ContextEnded(end, result == CUDA_SUCCESS);
  return result;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return Create(pctx, dev, [&] { return PRORATA_REAL(cuCtxCreate)(pctx, flags, dev); });
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return Create(pctx, dev, [&] { return PRORATA_REAL(cuCtxCreate_v2)(pctx, flags, dev); });
}

CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                        unsigned int flags, CUdevice dev) {
  return Create(pctx, dev, [&] {
    return PRORATA_REAL(cuCtxCreate_v3)(pctx, paramsArray, numParams, flags, dev);
  });
}

CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                        CUdevice dev) {
  return Create(pctx, dev,
                [&] { return PRORATA_REAL(cuCtxCreate_v4)(pctx, ctxCreateParams, flags, dev); });
}

CUresult cuCtxDestroy(CUcontext ctx) {
  return DestroyContext(ctx, [&] { return PRORATA_REAL(cuCtxDestroy)(ctx); });
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return DestroyContext(ctx, [&] { return PRORATA_REAL(cuCtxDestroy_v2)(ctx); });
}

CUresult cuCtxAttach(CUcontext* pctx, unsigned int flags) {
  const CUresult result = PRORATA_REAL(cuCtxAttach)(pctx, flags);
  if (result == CUDA_SUCCESS && Governed() && pctx != nullptr) ContextAttached(*pctx);
  return result;
}

CUresult cuCtxDetach(CUcontext ctx) {
  const auto call = [&] { return PRORATA_REAL(cuCtxDetach)(ctx); };
  if (Governed() && !LastDetach(ctx)) return call();
  return DestroyContext(ctx, call);
}

CUresult cuGLCtxCreate(CUcontext* pCtx, unsigned int Flags, CUdevice device) {
  return Create(pCtx, device, [&] { return PRORATA_REAL(cuGLCtxCreate)(pCtx, Flags, device); });
}

CUresult cuGLCtxCreate_v2(CUcontext* pCtx, unsigned int Flags, CUdevice device) {
  return Create(pCtx, device, [&] { return PRORATA_REAL(cuGLCtxCreate_v2)(pCtx, Flags, device); });
}

CUresult cuVDPAUCtxCreate(CUcontext* pCtx, unsigned int flags, CUdevice device, VdpDevice vdpDevice,
                          VdpGetProcAddress* vdpGetProcAddress) {
  return Create(pCtx, device, [&] {
    return PRORATA_REAL(cuVDPAUCtxCreate)(pCtx, flags, device, vdpDevice, vdpGetProcAddress);
  });
}

CUresult cuVDPAUCtxCreate_v2(CUcontext* pCtx, unsigned int flags, CUdevice device,
                             VdpDevice vdpDevice, VdpGetProcAddress* vdpGetProcAddress) {
  return Create(pCtx, device, [&] {
    return PRORATA_REAL(cuVDPAUCtxCreate_v2)(pCtx, flags, device, vdpDevice, vdpGetProcAddress);
  });
}

CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags) {
  auto call = [&] { return PRORATA_REAL(cuGreenCtxCreate)(phCtx, desc, dev, flags); };
  if (!Governed()) return call();
  return CreateGreen(
      phCtx, dev, [](void* data) { return (*static_cast<decltype(call)*>(data))(); }, &call);
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
  if (Governed()) return DestroyGreen(hCtx);
  return PRORATA_REAL(cuGreenCtxDestroy)(hCtx);
}

CUresult cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) {
  const CUresult result = PRORATA_REAL(cuCtxFromGreenCtx)(pContext, hCtx);
  if (result == CUDA_SUCCESS && Governed()) ContextFromGreen(*pContext, hCtx);
  return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  if (Governed()) return RetainPrimary(pctx, dev);
  return PRORATA_REAL(cuDevicePrimaryCtxRetain)(pctx, dev);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  const auto real = PRORATA_REAL(cuDevicePrimaryCtxRelease);
  return Governed() ? EndPrimary(dev, real) : real(dev);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  const auto real = PRORATA_REAL(cuDevicePrimaryCtxRelease_v2);
  return Governed() ? EndPrimary(dev, real) : real(dev);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
  const auto real = PRORATA_REAL(cuDevicePrimaryCtxReset);
  return Governed() ? EndPrimary(dev, real) : real(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  const auto real = PRORATA_REAL(cuDevicePrimaryCtxReset_v2);
  return Governed() ? EndPrimary(dev, real) : real(dev);
}
