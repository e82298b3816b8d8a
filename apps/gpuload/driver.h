#pragma once

#include <string>

#include "apps/gpuload/options.h"
#include "base/result.h"
#include "generated/cuda_abi.h"

// The functions of the driver API that gpuload calls: exported symbol, and the name by which
// cuGetProcAddress knows it.
#define GPULOAD_DRIVER_FUNCTIONS(X)                               \
  X(cuInit, cuInit)                                               \
  X(cuGetErrorName, cuGetErrorName)                               \
  X(cuDriverGetVersion, cuDriverGetVersion)                       \
  X(cuDeviceGet, cuDeviceGet)                                     \
  X(cuDeviceGetCount, cuDeviceGetCount)                           \
  X(cuDeviceGetName, cuDeviceGetName)                             \
  X(cuDeviceGetUuid_v2, cuDeviceGetUuid)                          \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute)                   \
  X(cuDeviceTotalMem_v2, cuDeviceTotalMem)                        \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)           \
  X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease)      \
  X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool)         \
  X(cuCtxSetCurrent, cuCtxSetCurrent)                             \
  X(cuCtxSynchronize, cuCtxSynchronize)                           \
  X(cuModuleLoadData, cuModuleLoadData)                           \
  X(cuModuleGetFunction, cuModuleGetFunction)                     \
  X(cuLaunchKernel, cuLaunchKernel)                               \
  X(cuStreamCreateWithPriority, cuStreamCreateWithPriority)       \
  X(cuStreamSynchronize, cuStreamSynchronize)                     \
  X(cuStreamDestroy_v2, cuStreamDestroy)                          \
  X(cuEventCreate, cuEventCreate)                                 \
  X(cuEventRecord, cuEventRecord)                                 \
  X(cuEventQuery, cuEventQuery)                                   \
  X(cuEventSynchronize, cuEventSynchronize)                       \
  X(cuEventDestroy_v2, cuEventDestroy)                            \
  X(cuStreamBeginCapture_v2, cuStreamBeginCapture)                \
  X(cuStreamEndCapture, cuStreamEndCapture)                       \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags)     \
  X(cuGraphLaunch, cuGraphLaunch)                                 \
  X(cuGraphDestroy, cuGraphDestroy)                               \
  X(cuMemGetInfo_v2, cuMemGetInfo)                                \
  X(cuMemAlloc_v2, cuMemAlloc)                                    \
  X(cuMemFree_v2, cuMemFree)                                      \
  X(cuMemAllocPitch_v2, cuMemAllocPitch)                          \
  X(cuMemAllocManaged, cuMemAllocManaged)                         \
  X(cuMemAllocAsync, cuMemAllocAsync)                             \
  X(cuMemFreeAsync, cuMemFreeAsync)                               \
  X(cuMemPoolGetAttribute, cuMemPoolGetAttribute)                 \
  X(cuMemPoolTrimTo, cuMemPoolTrimTo)                             \
  X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity) \
  X(cuMemAddressReserve, cuMemAddressReserve)                     \
  X(cuMemAddressFree, cuMemAddressFree)                           \
  X(cuMemCreate, cuMemCreate)                                     \
  X(cuMemMap, cuMemMap)                                           \
  X(cuMemSetAccess, cuMemSetAccess)                               \
  X(cuMemUnmap, cuMemUnmap)                                       \
  X(cuMemRelease, cuMemRelease)                                   \
  X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle)     \
  X(cuArrayCreate_v2, cuArrayCreate)                              \
  X(cuArrayDestroy, cuArrayDestroy)                               \
  X(cuMemsetD32_v2, cuMemsetD32)                                  \
  X(cuMemcpyDtoH_v2, cuMemcpyDtoH)                                \
  X(cuMemHostAlloc, cuMemHostAlloc)                               \
  X(cuMemFreeHost, cuMemFreeHost)                                 \
  X(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync)                      \
  X(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync)                      \
  X(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync)

namespace prorata::gpuload {

// The driver, reached as Options::load says. A function that was not found is null, and calling it
// through GPULOAD_CALL is an error. Never unloaded.
struct Driver {
#define GPULOAD_MEMBER(symbol, base) decltype(&::symbol) symbol = nullptr;
  GPULOAD_DRIVER_FUNCTIONS(GPULOAD_MEMBER)
#undef GPULOAD_MEMBER
};

Result<Driver> LoadDriver(const Options& options);

// Success, or an error whose code is the driver's name of it ("CUDA_ERROR_OUT_OF_MEMORY").
Status Check(const Driver& driver, CUresult result, const std::string& what);

}  // namespace prorata::gpuload

// Calls a function of the driver and returns its error, or that the driver lacks it, to the caller.
#define GPULOAD_CALL(driver, function, ...)                                                 \
  do {                                                                                      \
    if ((driver).function == nullptr) {                                                     \
      return ::prorata::Fail("missing", "the driver has no " #function);                    \
    }                                                                                       \
    if (auto gpuload_status =                                                               \
            ::prorata::gpuload::Check((driver), (driver).function(__VA_ARGS__), #function); \
        !gpuload_status) {                                                                  \
      return std::unexpected(gpuload_status.error());                                       \
    }                                                                                       \
  } while (false)
