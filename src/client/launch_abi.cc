// Kernel and graph launches.

#include "client/graphs.h"
#include "client/launch.h"

namespace prorata::client {
namespace {

// Every device's gate is passed before the call, so that all parts start together. Between the
// gates and the call a lease may close: then its device is late by this one launch.
template <typename Call>
CUresult LaunchOnSeveral(const CUDA_LAUNCH_PARAMS* parts, uint32_t count, Call&& call) {
  StreamRecord* records[protocol::kMaxDevices] = {};
  count = Min(count, protocol::kMaxDevices);
  for (uint32_t i = 0; i < count; ++i) {
    records[i] = FindStream(parts[i].hStream, false);
    if (records[i] == nullptr) continue;
    AwaitLaunch(records[i]->device);
    const InContextOf here(records[i]);
    Fences().BeginBatch(records[i]);
  }
  const CUresult result = Within(call);
  for (uint32_t i = 0; result == CUDA_SUCCESS && i < count; ++i) {
    if (records[i] == nullptr) continue;
    const CUDA_LAUNCH_PARAMS& part = parts[i];
    const uint64_t key = LaunchKey(part.function, part.gridDimX, part.gridDimY, part.gridDimZ);
    const uint32_t estimate_ns = g_estimates.Lookup(key);
    if (AddLaunch(records[i], &t_streams, key, estimate_ns)) EndBatch(records[i], estimate_ns == 0);
  }
  return result;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void** kernelParams, void** extra) {
  return Launch(LaunchKey(f, gridDimX, gridDimY, gridDimZ), hStream, false, [&] {
    return PRORATA_REAL(cuLaunchKernel)(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                        blockDimZ, sharedMemBytes, hStream, kernelParams, extra);
  });
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                             unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                             unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                             void** kernelParams, void** extra) {
  return Launch(LaunchKey(f, gridDimX, gridDimY, gridDimZ), hStream, true, [&] {
    return PRORATA_REAL(cuLaunchKernel_ptsz)(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                             blockDimZ, sharedMemBytes, hStream, kernelParams,
                                             extra);
  });
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                          void** extra) {
  const auto call = [&] { return PRORATA_REAL(cuLaunchKernelEx)(config, f, kernelParams, extra); };
  if (config == nullptr) return Within(call);
  return Launch(LaunchKey(f, config->gridDimX, config->gridDimY, config->gridDimZ), config->hStream,
                false, call);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                               void** extra) {
  const auto call = [&] {
    return PRORATA_REAL(cuLaunchKernelEx_ptsz)(config, f, kernelParams, extra);
  };
  if (config == nullptr) return Within(call);
  return Launch(LaunchKey(f, config->gridDimX, config->gridDimY, config->gridDimZ), config->hStream,
                true, call);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams) {
  return Launch(LaunchKey(f, gridDimX, gridDimY, gridDimZ), hStream, false, [&] {
    return PRORATA_REAL(cuLaunchCooperativeKernel)(f, gridDimX, gridDimY, gridDimZ, blockDimX,
                                                   blockDimY, blockDimZ, sharedMemBytes, hStream,
                                                   kernelParams);
  });
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX,
                                        unsigned int blockDimY, unsigned int blockDimZ,
                                        unsigned int sharedMemBytes, CUstream hStream,
                                        void** kernelParams) {
  return Launch(LaunchKey(f, gridDimX, gridDimY, gridDimZ), hStream, true, [&] {
    return PRORATA_REAL(cuLaunchCooperativeKernel_ptsz)(f, gridDimX, gridDimY, gridDimZ, blockDimX,
                                                        blockDimY, blockDimZ, sharedMemBytes,
                                                        hStream, kernelParams);
  });
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream) {
  return WithGraphMemory(hGraph, hStream, false, [&] {
    return Launch(LaunchKey(hGraph, 0, 0, 0), hStream, false,
                  [&] { return PRORATA_REAL(cuGraphLaunch)(hGraph, hStream); });
  });
}

CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return WithGraphMemory(hGraphExec, hStream, true, [&] {
    return Launch(LaunchKey(hGraphExec, 0, 0, 0), hStream, true,
                  [&] { return PRORATA_REAL(cuGraphLaunch_ptsz)(hGraphExec, hStream); });
  });
}

// The launches before cuLaunchKernel; the shape was set on the function.
CUresult cuLaunch(CUfunction f) {
  return Launch(LaunchKey(f, 1, 1, 1), nullptr, false, [&] { return PRORATA_REAL(cuLaunch)(f); });
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
  const auto key =
      LaunchKey(f, static_cast<uint64_t>(grid_width), static_cast<uint64_t>(grid_height), 1);
  return Launch(key, nullptr, false,
                [&] { return PRORATA_REAL(cuLaunchGrid)(f, grid_width, grid_height); });
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  const auto key =
      LaunchKey(f, static_cast<uint64_t>(grid_width), static_cast<uint64_t>(grid_height), 1);
  return Launch(key, hStream, false, [&] {
    return PRORATA_REAL(cuLaunchGridAsync)(f, grid_width, grid_height, hStream);
  });
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launchParamsList,
                                              unsigned int numDevices, unsigned int flags) {
  const auto call = [&] {
    return PRORATA_REAL(cuLaunchCooperativeKernelMultiDevice)(launchParamsList, numDevices, flags);
  };
  if (!Governed() || launchParamsList == nullptr) return Within(call);
  return LaunchOnSeveral(launchParamsList, numDevices, call);
}
