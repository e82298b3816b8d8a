// Kernel launches.

#include "sim/cuda/stream/launch.h"

#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/context/green.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/module/code_memory.h"

namespace prorata::simgpu::driver {
namespace {

// The limits that cuDeviceGetAttribute reports.
constexpr unsigned kMaxBlockDim[3] = {1024, 1024, 64};
constexpr unsigned kMaxGridDim[3] = {2147483647, 65535, 65535};

CUresult CopyParameters(const Function& function, const LaunchRequest& request, KernelCall* out) {
  if (request.params && request.extra && !Broken(Rule::kParametersComeOneWay))
    return CUDA_ERROR_INVALID_VALUE;
  if (!function.parameters_known || function.parameters.empty()) return CUDA_SUCCESS;
  const char* buffer = nullptr;
  size_t buffer_bytes = 0;
  if (request.extra) {
    for (void** at = request.extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
      if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char*>(at[1]);
      if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) buffer_bytes = *static_cast<const size_t*>(at[1]);
    }
    if (!buffer) return CUDA_ERROR_INVALID_VALUE;
  } else if (!request.params) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const ImageKernel::Parameter& last = function.parameters.back();
  const size_t total = size_t{last.offset} + last.bytes;
  out->parameter_bytes.resize((total + 7) / 8);
  auto* bytes = reinterpret_cast<char*>(out->parameter_bytes.data());
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    const auto& [offset, size] = function.parameters[i];
    const char* from = buffer ? buffer + offset : static_cast<const char*>(request.params[i]);
    if (!from || (buffer && size_t{offset} + size > buffer_bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (!Broken(Rule::kParametersAreCopied)) std::memcpy(bytes + offset, from, size);
    out->parameter_offsets.push_back(offset);
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult MakeKernelCall(std::shared_ptr<Function> function, const LaunchRequest& request,
                        const DeviceConfig& device, KernelCall* out) {
  (void)device;
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (request.grid[i] == 0 || request.grid[i] > kMaxGridDim[i]) return CUDA_ERROR_INVALID_VALUE;
    if (request.block[i] == 0 || request.block[i] > kMaxBlockDim[i]) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    threads *= request.block[i];
    out->grid[i] = request.grid[i];
    out->block[i] = request.block[i];
  }
  if (threads > static_cast<uint64_t>(function->max_threads) && !Broken(Rule::kBlocksHaveLimits)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (request.shared_bytes > static_cast<unsigned>(function->max_dynamic_shared_bytes) &&
      !Broken(Rule::kSharedMemoryHasLimits)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  out->shared_bytes = request.shared_bytes;
  if (CUresult result = CopyParameters(*function, request, out)) return result;
  out->module = function->owner.lock();
  if (!out->module) return CUDA_ERROR_INVALID_HANDLE;  // unloaded meanwhile
  function->loaded = true;
  out->function = std::move(function);
  return CUDA_SUCCESS;
}

bool FitsAtOnce(const KernelCall& call, uint32_t sm_count) {
  const uint64_t threads = uint64_t{call.block[0]} * call.block[1] * call.block[2];
  const uint64_t blocks = uint64_t{call.grid[0]} * call.grid[1] * call.grid[2];
  const int per_sm = BlocksPerSm(*call.function, static_cast<int>(threads), call.shared_bytes);
  return blocks <= uint64_t{static_cast<unsigned>(per_sm)} * sm_count;
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult Launch(CUfunction handle, const LaunchRequest& request, CUstream stream_handle,
                bool per_thread, bool cooperative) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  std::shared_ptr<Function> function;
  StreamRef stream;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindFunction(handle, &function)) return result;
    if (CUresult result = FindStream(stream_handle, per_thread, ctx, &stream)) return result;
    if (function->module->ctx && function->module->ctx != stream->ctx) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (CUresult result = TakeCode(function->module, stream->ctx)) return result;
  }
  KernelCall call;
  const DeviceConfig& device = D().config(ctx->device);
  if (CUresult result = MakeKernelCall(std::move(function), request, device, &call)) return result;
  call.cooperative = cooperative;
  if (cooperative && !FitsAtOnce(call, SmsOf(*stream)) && !Broken(Rule::kCooperativeFits)) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  uint64_t sequence = 0;
  const CUresult result = Enqueue(stream, std::move(call), &sequence);
  // Captured launches have no number.
  if (result != CUDA_SUCCESS || sequence == 0 || !D().launches_block) return result;
  if (CUresult waited = FromCode(D().machine->WaitStream(stream->handle, sequence))) return waited;
  return ErrorOf(*stream->ctx);
}

CUresult LaunchEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra,
                  bool per_thread) {
  if (!config || (config->numAttrs > 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  bool cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
      cooperative = attribute.value.cooperative != 0;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE &&
               attribute.value.deviceUpdatableKernelNode.deviceUpdatable) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  const LaunchRequest request = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                                 {config->blockDimX, config->blockDimY, config->blockDimZ},
                                 config->sharedMemBytes,
                                 params,
                                 extra};
  return Launch(f, request, config->hStream, per_thread, cooperative);
}

}  // namespace

#define PRORATA_LAUNCH(name, per_thread)                                                           \
  CUresult name(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, \
                unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,            \
                unsigned int sharedMemBytes, CUstream hStream, void** kernelParams,                \
                void** extra) {                                                                    \
    return Launch(f,                                                                               \
                  {{gridDimX, gridDimY, gridDimZ},                                                 \
                   {blockDimX, blockDimY, blockDimZ},                                              \
                   sharedMemBytes,                                                                 \
                   kernelParams,                                                                   \
                   extra},                                                                         \
                  hStream, per_thread, false);                                                     \
  }
#define PRORATA_LAUNCH_COOPERATIVE(name, per_thread)                                               \
  CUresult name(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, \
                unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,            \
                unsigned int sharedMemBytes, CUstream hStream, void** kernelParams) {              \
    return Launch(f,                                                                               \
                  {{gridDimX, gridDimY, gridDimZ},                                                 \
                   {blockDimX, blockDimY, blockDimZ},                                              \
                   sharedMemBytes,                                                                 \
                   kernelParams,                                                                   \
                   nullptr},                                                                       \
                  hStream, per_thread, true);                                                      \
  }

PRORATA_LAUNCH(cuLaunchKernel, false)
PRORATA_LAUNCH(cuLaunchKernel_ptsz, true)
PRORATA_LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, false)
PRORATA_LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

#undef PRORATA_LAUNCH
#undef PRORATA_LAUNCH_COOPERATIVE

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                          void** extra) {
  return LaunchEx(config, f, kernelParams, extra, false);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                               void** extra) {
  return LaunchEx(config, f, kernelParams, extra, true);
}
