#pragma once

// The functions of the driver API that the stream programs call, from the libcuda.so.1 that the
// loader finds: the client library under `prorata run`, the bare driver without.

#include "generated/cuda_abi.h"

// Those that have a variant for per-thread default streams.
#define STREAM_FUZZ_STREAM_FUNCTIONS(X) \
  X(cuLaunchKernel)                     \
  X(cuLaunchHostFunc)                   \
  X(cuEventRecord)                      \
  X(cuStreamWaitEvent)                  \
  X(cuStreamWriteValue32_v2)            \
  X(cuStreamSynchronize)                \
  X(cuStreamQuery)                      \
  X(cuMemcpyDtoDAsync_v2)               \
  X(cuMemcpyHtoDAsync_v2)               \
  X(cuMemcpyDtoHAsync_v2)               \
  X(cuMemsetD8Async)                    \
  X(cuMemAllocAsync)                    \
  X(cuMemFreeAsync)

#define STREAM_FUZZ_FUNCTIONS(X) \
  X(cuInit)                      \
  X(cuDeviceGet)                 \
  X(cuDevicePrimaryCtxRetain)    \
  X(cuCtxSetCurrent)             \
  X(cuCtxSynchronize)            \
  X(cuModuleLoad)                \
  X(cuModuleGetFunction)         \
  X(cuMemAlloc_v2)               \
  X(cuMemFree_v2)                \
  X(cuMemcpyDtoH_v2)             \
  X(cuMemHostAlloc)              \
  X(cuMemFreeHost)               \
  X(cuMemsetD8_v2)               \
  X(cuStreamCreate)              \
  X(cuStreamDestroy_v2)          \
  X(cuStreamWaitValue32_v2)      \
  X(cuEventCreate)               \
  X(cuEventDestroy_v2)           \
  X(cuEventQuery)                \
  X(cuEventSynchronize)          \
  X(cuStreamBeginCapture_v2)     \
  X(cuStreamEndCapture)          \
  X(cuGraphInstantiateWithFlags) \
  X(cuGraphLaunch)               \
  X(cuGraphDestroy)              \
  X(cuGraphExecDestroy)

namespace prorata::stream_fuzz {

struct Driver {
#define STREAM_FUZZ_MEMBER(name) decltype(&::name) name = nullptr;
#define STREAM_FUZZ_MEMBERS(name)   \
  decltype(&::name) name = nullptr; \
  decltype(&::name) name##_ptsz = nullptr;
  STREAM_FUZZ_FUNCTIONS(STREAM_FUZZ_MEMBER)
  STREAM_FUZZ_STREAM_FUNCTIONS(STREAM_FUZZ_MEMBERS)
#undef STREAM_FUZZ_MEMBER
#undef STREAM_FUZZ_MEMBERS
};

// Null, with *missing set: there is no such library, or it lacks this function. Never unloaded.
const Driver* LoadDriver(const char** missing);

}  // namespace prorata::stream_fuzz
