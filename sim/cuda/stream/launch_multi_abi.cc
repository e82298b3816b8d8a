// Cooperative launches on several devices at once.
//
// Every launch is checked before any is submitted. Then each stream waits for the others to have
// come as far (unless the flags say not to), so that all kernels may start at the same instant;
// they do as soon as each device is their context's. What comes after them waits for all.

#include <algorithm>
#include <set>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/green.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/module/function.h"
#include "sim/cuda/stream/launch.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

struct Part {
  StreamRef stream;
  KernelCall call;
  uint64_t sequence = 0;
};

bool SameShape(const CUDA_LAUNCH_PARAMS& a, const CUDA_LAUNCH_PARAMS& b) {
  return a.gridDimX == b.gridDimX && a.gridDimY == b.gridDimY && a.gridDimZ == b.gridDimZ &&
         a.blockDimX == b.blockDimX && a.blockDimY == b.blockDimY && a.blockDimZ == b.blockDimZ &&
         a.sharedMemBytes == b.sharedMemBytes;
}

CUresult MakePart(const CUDA_LAUNCH_PARAMS& params, Part* part) {
  std::shared_ptr<Function> function;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindFunction(params.function, &function)) return result;
    // Not a default stream, by whichever name.
    if (!D().streams.contains(params.hStream)) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult result = FindStream(params.hStream, false, nullptr, &part->stream)) return result;
    if (part->stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (function->module->ctx && function->module->ctx != part->stream->ctx) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
  }
  const DeviceConfig& device = D().config(part->stream->ctx->device);
  const LaunchRequest request = {{params.gridDimX, params.gridDimY, params.gridDimZ},
                                 {params.blockDimX, params.blockDimY, params.blockDimZ},
                                 params.sharedMemBytes,
                                 params.kernelParams,
                                 nullptr};
  if (CUresult result = MakeKernelCall(std::move(function), request, device, &part->call)) {
    return result;
  }
  part->call.cooperative = true;
  return FitsAtOnce(part->call, SmsOf(*part->stream)) ? CUDA_SUCCESS
                                                      : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

// Each stream waits until the others are past their parts' `sequence`.
CUresult WaitForEachOther(std::vector<Part>& parts) {
  for (const Part& waiter : parts) {
    std::vector<Work> work;
    for (const Part& other : parts) {
      if (other.stream == waiter.stream) continue;
      work.push_back(Work::WaitForStream(other.stream->handle, other.sequence));
    }
    if (CUresult result = SubmitWork(waiter.stream, work)) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launchParamsList,
                                              unsigned int numDevices, unsigned int flags) {
  if (CUresult result = EnterCall()) return result;
  constexpr unsigned kKnown = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                              CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  if (!launchParamsList || numDevices == 0 || numDevices > D().devices.size() || flags & ~kKnown) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<Part> parts(numDevices);
  std::set<int> devices;
  for (unsigned i = 0; i < numDevices; ++i) {
    if (CUresult result = MakePart(launchParamsList[i], &parts[i])) return result;
    if (!SameShape(launchParamsList[i], launchParamsList[0])) return CUDA_ERROR_INVALID_VALUE;
    if (parts[i].call.function->name != parts[0].call.function->name) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool fresh = devices.insert(parts[i].stream->ctx->device).second;
    if (!fresh && !Broken(Rule::kMultiLaunchOneEach)) return CUDA_ERROR_INVALID_DEVICE;
  }
  if (!(flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC) &&
      !Broken(Rule::kMultiLaunchWaitsForAll)) {
    for (Part& part : parts) {
      if (CUresult result = SubmitWork(part.stream, {Work::Host(0)}, &part.sequence)) return result;
    }
    if (CUresult result = WaitForEachOther(parts)) return result;
  }
  for (Part& part : parts) {
    if (CUresult result = Enqueue(part.stream, part.call, &part.sequence)) return result;
  }
  if (flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC) return CUDA_SUCCESS;
  return WaitForEachOther(parts);
}
