// Kernel and graph launches.
//
// A launch with the lease open, in a stream of which a batch is under way and not yet due, costs:
// the live word, the mark of the thread, the capture count, the lease word with the backlog, the
// thread's stream cache, the estimate, and one addition (atomic in a stream that several threads
// use).

#include "client/contexts.h"
#include "client/graphs.h"
#include "client/launch_steps.h"
#include "client/library_world.h"
#include "client/memory.h"
#include "client/streams.h"

namespace prorata::client {
namespace {

[[gnu::noinline]] uint32_t Prepare(StreamRecord* stream, uint32_t estimate_ns) {
  while (!RaiseLaunching(g_world, stream)) AwaitLaunch(stream->device);
  return PrepareBatch(Fences(), stream, estimate_ns);
}

[[gnu::noinline]] void AwaitGate(StreamRecord* stream) {
  FenceBeforeWait(g_world, stream);
  AwaitLaunch(stream->device);
}

[[gnu::noinline]] void EndBatch(StreamRecord* stream, bool unknown) {
  Fences().EndBatch(stream, unknown);
}

template <typename Call>
[[gnu::noinline]] CUresult LaunchWithoutRecord(Call&& call) {
  const Place place = CurrentPlace();
  if (place.device != kNoDevice) AwaitLaunch(place.device);
  return Within(call);
}

template <typename Call>
inline CUresult Launch(uint64_t key, CUstream stream, bool per_thread, Call&& call) {
  if (Live() != kGoverned || t_inside != 0 || IsCaptured(stream, per_thread)) return Within(call);
  StreamRecord* record = FindStream(stream, per_thread);
  if (record == nullptr) [[unlikely]]
    return LaunchWithoutRecord(call);
  if (!MayLaunch(LimitsOf(record->device), g_compute[record->device])) [[unlikely]] {
    AwaitGate(record);
  }
  uint32_t estimate_ns = g_estimates.Lookup(key);
  const bool begins = BeginsBatch(record, estimate_ns);
  if (begins) [[unlikely]]
    estimate_ns = Prepare(record, estimate_ns);
  t_inside = 1;  // it was 0
  const CUresult result = call();
  t_inside = 0;
  if (result == CUDA_SUCCESS && AddLaunch(record, &t_streams, key, estimate_ns)) [[unlikely]] {
    EndBatch(record, estimate_ns == 0);
  }
  if (begins) [[unlikely]]
    record->launching.fetch_sub(1);
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
