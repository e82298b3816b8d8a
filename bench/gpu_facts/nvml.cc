#include "bench/gpu_facts/nvml.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

namespace prorata::gpufacts {
namespace {

constexpr const char* kName = "libnvidia-ml.so.1";

void* OpenLibrary() {
  // Already loaded by LoadDriver, under this name or with this SONAME.
  void* cuda = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  Dl_info where = {};
  if (cuda != nullptr && ::dladdr(::dlsym(cuda, "cuInit"), &where) != 0 && where.dli_fname) {
    const auto beside = std::filesystem::path(where.dli_fname).parent_path() / kName;
    if (void* library = ::dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
}

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

Nvml Nvml::Open(const std::string& uuid) {
  Nvml nvml;
  void* library = OpenLibrary();
  if (library == nullptr) {
    nvml.missing_ = ::dlerror();
    return nvml;
  }
  const auto init = Find<decltype(&::nvmlInit_v2)>(library, "nvmlInit_v2");
  const auto get_handle =
      Find<decltype(&::nvmlDeviceGetHandleByUUID)>(library, "nvmlDeviceGetHandleByUUID");
  if (init == nullptr || get_handle == nullptr) {
    nvml.missing_ = "it lacks nvmlInit_v2 or nvmlDeviceGetHandleByUUID";
    return nvml;
  }
  if (const nvmlReturn_t result = init(); result != NVML_SUCCESS) {
    nvml.missing_ = "nvmlInit_v2 answered " + std::to_string(result);
    return nvml;
  }
  if (const nvmlReturn_t result = get_handle(uuid.c_str(), &nvml.device_); result != NVML_SUCCESS) {
    nvml.missing_ = "nvmlDeviceGetHandleByUUID(" + uuid + ") answered " + std::to_string(result);
    return nvml;
  }
  nvml.system_get_driver_version_ =
      Find<decltype(&::nvmlSystemGetDriverVersion)>(library, "nvmlSystemGetDriverVersion");
  nvml.get_memory_info_ =
      Find<decltype(&::nvmlDeviceGetMemoryInfo)>(library, "nvmlDeviceGetMemoryInfo");
  nvml.get_processes_ = Find<decltype(&::nvmlDeviceGetComputeRunningProcesses_v3)>(
      library, "nvmlDeviceGetComputeRunningProcesses_v3");
  nvml.missing_.clear();
  return nvml;
}

std::optional<std::string> Nvml::DriverVersion() const {
  char version[96] = {};
  if (!missing_.empty() || system_get_driver_version_ == nullptr ||
      system_get_driver_version_(version, sizeof version) != NVML_SUCCESS) {
    return std::nullopt;
  }
  return version;
}

std::optional<uint64_t> Nvml::DeviceUsedBytes() const {
  nvmlMemory_t memory = {};
  if (!missing_.empty() || get_memory_info_ == nullptr ||
      get_memory_info_(device_, &memory) != NVML_SUCCESS) {
    return std::nullopt;
  }
  return memory.used;
}

std::optional<uint64_t> Nvml::ProcessUsedBytes(int pid) const {
  if (!missing_.empty() || get_processes_ == nullptr) return std::nullopt;
  std::vector<nvmlProcessInfo_t> processes(256);
  unsigned count = static_cast<unsigned>(processes.size());
  if (get_processes_(device_, &count, processes.data()) != NVML_SUCCESS) return std::nullopt;
  // NVML's "not available", when per-process figures cannot be had.
  constexpr unsigned long long kUnknown = ~0ull;
  for (unsigned i = 0; i < count && i < processes.size(); ++i) {
    if (processes[i].pid != static_cast<unsigned>(pid)) continue;
    if (processes[i].usedGpuMemory == kUnknown) return std::nullopt;
    return processes[i].usedGpuMemory;
  }
  return std::nullopt;
}

}  // namespace prorata::gpufacts
