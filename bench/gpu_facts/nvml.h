#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "generated/nvml_abi.h"

namespace prorata::gpufacts {

// The management library of the same driver, as far as gpu-facts needs it. Every answer may be
// missing: containers and old drivers often have no NVML, or one that shows no processes.
class Nvml {
 public:
  // Loads libnvidia-ml.so.1 from the folder of the loaded libcuda.so.1, else as the loader finds
  // it, and opens the device with this UUID ("GPU-...").
  static Nvml Open(const std::string& uuid);

  // Why there is none; empty when there is.
  const std::string& missing() const { return missing_; }
  std::optional<std::string> DriverVersion() const;
  std::optional<uint64_t> DeviceUsedBytes() const;
  // Of a process with a context on the device; none also when NVML shows host process ids and we
  // are in a namespace.
  std::optional<uint64_t> ProcessUsedBytes(int pid) const;

 private:
  std::string missing_ = "not opened";
  nvmlDevice_t device_ = nullptr;
  decltype(&::nvmlSystemGetDriverVersion) system_get_driver_version_ = nullptr;
  decltype(&::nvmlDeviceGetMemoryInfo) get_memory_info_ = nullptr;
  decltype(&::nvmlDeviceGetComputeRunningProcesses_v3) get_processes_ = nullptr;
};

}  // namespace prorata::gpufacts
