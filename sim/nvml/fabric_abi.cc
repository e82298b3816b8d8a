#include "sim/nvml/device_call.h"

// NVML's questions about the fabric by which GPUs of several nodes reach each other. There is none,
// and that is an answer: PyTorch's expandable segments refuse to work when the call fails, and
// choose another kind of handle when its state says "not supported".

using prorata::simgpu::Machine;
using prorata::simgpu::With;

namespace {

// What follows `version`, in all versions of the structure: zeros for no cluster and no clique, and
// health that is not reported. `size_bytes` is the caller's: older ones end before the newer
// fields.
nvmlReturn_t FillVersioned(nvmlGpuFabricInfoV_t* info, size_t size_bytes) {
  nvmlGpuFabricInfoV_t none = {};
  none.version = info->version;
  none.status = NVML_SUCCESS;
  none.state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
  std::memcpy(static_cast<void*>(info), &none, size_bytes);
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t* gpuFabricInfo) {
  return With(device, gpuFabricInfo != nullptr, [&](Machine&, int) {
    *gpuFabricInfo = {};
    gpuFabricInfo->status = NVML_SUCCESS;
    gpuFabricInfo->state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t* gpuFabricInfo) {
  return With(device, gpuFabricInfo != nullptr, [&](Machine&, int) {
    switch (gpuFabricInfo->version) {
      case nvmlGpuFabricInfo_v2:
        return FillVersioned(gpuFabricInfo, sizeof(nvmlGpuFabricInfo_v2_t));
      case nvmlGpuFabricInfo_v3:
        return FillVersioned(gpuFabricInfo, sizeof(nvmlGpuFabricInfo_v3_t));
      default:
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
  });
}
