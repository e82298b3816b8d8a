#pragma once

// The functions of the driver API that the stress calls, from the libcuda.so.1 that the loader
// finds: the client library under `prorata run`, the bare driver without.

#include "generated/cuda_abi.h"

#define STRESS_DRIVER_FUNCTIONS(X)  \
  X(cuInit)                         \
  X(cuGetErrorName)                 \
  X(cuDeviceGet)                    \
  X(cuDevicePrimaryCtxRetain)       \
  X(cuDevicePrimaryCtxRelease_v2)   \
  X(cuCtxCreate_v2)                 \
  X(cuCtxDestroy_v2)                \
  X(cuCtxPopCurrent_v2)             \
  X(cuCtxSetCurrent)                \
  X(cuStreamCreate)                 \
  X(cuStreamDestroy_v2)             \
  X(cuStreamSynchronize)            \
  X(cuMemGetInfo_v2)                \
  X(cuMemAlloc_v2)                  \
  X(cuMemFree_v2)                   \
  X(cuMemAllocPitch_v2)             \
  X(cuMemAllocManaged)              \
  X(cuArrayCreate_v2)               \
  X(cuArray3DCreate_v2)             \
  X(cuArrayDestroy)                 \
  X(cuMipmappedArrayCreate)         \
  X(cuMipmappedArrayDestroy)        \
  X(cuMemAllocAsync)                \
  X(cuMemFreeAsync)                 \
  X(cuDeviceGetDefaultMemPool)      \
  X(cuMemAllocFromPoolAsync)        \
  X(cuMemPoolCreate)                \
  X(cuMemPoolDestroy)               \
  X(cuMemPoolTrimTo)                \
  X(cuMemPoolSetAttribute)          \
  X(cuMemCreate)                    \
  X(cuMemRelease)                   \
  X(cuMemMap)                       \
  X(cuMemUnmap)                     \
  X(cuMemSetAccess)                 \
  X(cuMemAddressReserve)            \
  X(cuMemAddressFree)               \
  X(cuMemExportToShareableHandle)   \
  X(cuMemImportFromShareableHandle) \
  X(cuIpcGetMemHandle)              \
  X(cuIpcOpenMemHandle_v2)          \
  X(cuIpcCloseMemHandle)            \
  X(cuModuleLoadData)               \
  X(cuModuleUnload)                 \
  X(cuModuleGetGlobal_v2)           \
  X(cuGraphCreate)                  \
  X(cuGraphDestroy)                 \
  X(cuGraphAddMemAllocNode)         \
  X(cuGraphAddMemFreeNode)          \
  X(cuGraphInstantiateWithFlags)    \
  X(cuGraphExecDestroy)             \
  X(cuGraphLaunch)                  \
  X(cuDeviceGraphMemTrim)           \
  X(cuDeviceGetDevResource)         \
  X(cuDevResourceGenerateDesc)      \
  X(cuGreenCtxCreate)               \
  X(cuGreenCtxDestroy)              \
  X(cuCtxFromGreenCtx)              \
  X(cuCtxPushCurrent_v2)

namespace prorata::stress {

struct Driver {
#define STRESS_MEMBER(name) decltype(&::name) name = nullptr;
  STRESS_DRIVER_FUNCTIONS(STRESS_MEMBER)
#undef STRESS_MEMBER
};

// Null with *missing set: there is no such library, or it lacks this function. Never unloaded.
const Driver* LoadDriver(const char** missing);

}  // namespace prorata::stress
