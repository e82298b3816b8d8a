#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "sim/nvml/device_call.h"

// NVML's entry points that are not about one device. What is not here or in device_abi.cc answers
// NVML_ERROR_NOT_SUPPORTED (generated/simgpu_nvml_defaults.S).

namespace {

using prorata::simgpu::CopyText;
using prorata::simgpu::NvmlSession;

// The branch that CUDA 13.0 came with; no released driver has a zero minor.
constexpr char kDriverVersion[] = "580.00.00";
constexpr char kNvmlVersion[] = "13.580.00.00";

nvmlReturn_t None(unsigned int* count) {
  if (NvmlSession::Get().machine() == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit(void) { return NvmlSession::Get().Init(); }
nvmlReturn_t nvmlInit_v2(void) { return NvmlSession::Get().Init(); }
nvmlReturn_t nvmlInitWithFlags(unsigned int) { return NvmlSession::Get().Init(); }
nvmlReturn_t nvmlShutdown(void) { return NvmlSession::Get().Shutdown(); }

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  if (NvmlSession::Get().machine() == nullptr) return NVML_ERROR_UNINITIALIZED;
  return CopyText(kDriverVersion, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  if (NvmlSession::Get().machine() == nullptr) return NVML_ERROR_UNINITIALIZED;
  return CopyText(kNvmlVersion, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  const auto* machine = NvmlSession::Get().machine();
  if (machine == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = machine->config().driver_version;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  if (NvmlSession::Get().machine() == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (name == nullptr || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%u/exe", pid);
  char target[4096];
  const ssize_t got = readlink(path, target, sizeof target);
  if (got <= 0) return NVML_ERROR_NOT_FOUND;
  return CopyText(std::string(target, std::min<size_t>(got, length - 1)), name, length);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  const auto* machine = NvmlSession::Get().machine();
  if (machine == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = static_cast<unsigned int>(machine->device_count());
  return NVML_SUCCESS;
}

// There is none of these on a simulated machine: S-class units, host interface cards, devices that
// the driver was asked to leave out.
nvmlReturn_t nvmlUnitGetCount(unsigned int* count) { return None(count); }
nvmlReturn_t nvmlSystemGetHicVersion(unsigned int* count, nvmlHwbcEntry_t*) { return None(count); }
nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int* count) { return None(count); }

nvmlReturn_t nvmlDeviceGetCount(unsigned int* count) { return nvmlDeviceGetCount_v2(count); }

}  // extern "C"
