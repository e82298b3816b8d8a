// Kernel and graph launches.

#include "client/compute/graph_devices.h"
#include "client/compute/launch.h"
#include "client/memory/graphs.h"

namespace prorata::client {
namespace {

// All parts start together, so every device's gate is passed before the call.
template <typename Call>
CUresult LaunchOnSeveral(const CUDA_LAUNCH_PARAMS* parts, uint32_t count, Call&& call) {
  StreamRecord* records[shm::kMaxDevices] = {};
  uint32_t devices = 0;
  count = Min(count, shm::kMaxDevices);
  for (uint32_t i = 0; i < count; ++i) {
    records[i] = FindStream(parts[i].hStream, false);
    if (records[i] != nullptr) devices |= 1U << records[i]->device;
  }
  PassGates(devices);
  const auto key_of = [parts](uint32_t i) {
    return LaunchKey(parts[i].function, parts[i].gridDimX, parts[i].gridDimY, parts[i].gridDimZ);
  };
  for (uint32_t i = 0; i < count; ++i) {
    if (records[i] == nullptr) continue;
    const InContextOf here(records[i]);
    Tracker().Begin(records[i], g_estimates.Lookup(key_of(i)));
  }
  const CUresult result = call();
  for (uint32_t i = 0; i < count; ++i) {
    if (records[i] == nullptr) continue;
    if (result == CUDA_SUCCESS) {
      const uint32_t estimate_ns = g_estimates.Lookup(key_of(i));
      Added added = AddLaunch(records[i], &t_streams, key_of(i), estimate_ns);
      added.due = true;
      AfterLaunch(records[i], added, estimate_ns == 0, true);
    }
    Tracker().Returned(records[i]);
  }
  LeaveGates(devices);
  return result;
}

bool RunsElsewhere(uint32_t devices, CUstream stream, bool per_thread) {
  const StreamRecord* record = FindStream(stream, per_thread);
  return record == nullptr || (devices & ~(1U << record->device)) != 0;
}

CUresult LaunchGraph(CUgraphExec graph, CUstream stream, bool per_thread,
                     CUresult (*real)(CUgraphExec, CUstream)) {
  return WithGraphMemory(graph, stream, per_thread, [&] {
    const uint64_t key = LaunchKey(graph, 0);
    const auto call = [&] { return real(graph, stream); };
    const uint32_t devices = DevicesOfExec(graph);
    if (devices != 0 && RunsElsewhere(devices, stream, per_thread)) [[unlikely]]
      return LaunchOnDevices(devices, key, stream, per_thread, call);
    return Launch(key, stream, per_thread, call);
  });
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void** kernelParams, void** extra) {
  return Launch(LaunchKey(f, gridDimX, gridDimY, gridDimZ), hStream, false, [=] {
    return PRORATA_REAL(cuLaunchKernel)(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                        blockDimZ, sharedMemBytes, hStream, kernelParams, extra);
  });
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                             unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                             unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                             void** kernelParams, void** extra) {
  return Launch(LaunchKey(f, gridDimX, gridDimY, gridDimZ), hStream, true, [=] {
    return PRORATA_REAL(cuLaunchKernel_ptsz)(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                             blockDimZ, sharedMemBytes, hStream, kernelParams,
                                             extra);
  });
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                          void** extra) {
  const auto call = [=] { return PRORATA_REAL(cuLaunchKernelEx)(config, f, kernelParams, extra); };
  if (config == nullptr) return call();
  return Launch(LaunchKey(f, config->gridDimX, config->gridDimY, config->gridDimZ), config->hStream,
                false, call);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                               void** extra) {
  const auto call = [=] {
    return PRORATA_REAL(cuLaunchKernelEx_ptsz)(config, f, kernelParams, extra);
  };
  if (config == nullptr) return call();
  return Launch(LaunchKey(f, config->gridDimX, config->gridDimY, config->gridDimZ), config->hStream,
                true, call);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams) {
  return Launch(LaunchKey(f, gridDimX, gridDimY, gridDimZ), hStream, false, [=] {
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
  return Launch(LaunchKey(f, gridDimX, gridDimY, gridDimZ), hStream, true, [=] {
    return PRORATA_REAL(cuLaunchCooperativeKernel_ptsz)(f, gridDimX, gridDimY, gridDimZ, blockDimX,
                                                        blockDimY, blockDimZ, sharedMemBytes,
                                                        hStream, kernelParams);
  });
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream) {
  return LaunchGraph(hGraph, hStream, false, PRORATA_REAL(cuGraphLaunch));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return LaunchGraph(hGraphExec, hStream, true, PRORATA_REAL(cuGraphLaunch_ptsz));
}

// The launches before cuLaunchKernel; the shape was set on the function.
CUresult cuLaunch(CUfunction f) {
  return Launch(LaunchKey(f, 1, 1, 1), nullptr, false, [=] { return PRORATA_REAL(cuLaunch)(f); });
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
  const auto key =
      LaunchKey(f, static_cast<uint64_t>(grid_width), static_cast<uint64_t>(grid_height), 1);
  return Launch(key, nullptr, false,
                [=] { return PRORATA_REAL(cuLaunchGrid)(f, grid_width, grid_height); });
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  const auto key =
      LaunchKey(f, static_cast<uint64_t>(grid_width), static_cast<uint64_t>(grid_height), 1);
  return Launch(key, hStream, false, [=] {
    return PRORATA_REAL(cuLaunchGridAsync)(f, grid_width, grid_height, hStream);
  });
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launchParamsList,
                                              unsigned int numDevices, unsigned int flags) {
  const auto call = [=] {
    return PRORATA_REAL(cuLaunchCooperativeKernelMultiDevice)(launchParamsList, numDevices, flags);
  };
  if (!Governed() || launchParamsList == nullptr) return call();
  return LaunchOnSeveral(launchParamsList, numDevices, call);
}
