#include <map>

#include "sim/nvml/device_call.h"

// Who is on a device, with how much memory and of its time.

namespace {

using prorata::simgpu::DeviceUsage;
using prorata::simgpu::Machine;
using prorata::simgpu::Usage;
using prorata::simgpu::With;

// The count protocol: `*count` is the room going in, and the number of processes coming out.
template <typename Info>
nvmlReturn_t RunningProcesses(nvmlDevice_t device, unsigned int* count, Info* infos) {
  return With(device, count != nullptr, [&](Machine& machine, int index) {
    DeviceUsage usage;
    if (const nvmlReturn_t failed = Usage(machine, index, &usage); failed != NVML_SUCCESS) {
      return failed;
    }
    const unsigned int room = *count;
    *count = static_cast<unsigned int>(usage.processes.size());
    if (usage.processes.size() > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (!usage.processes.empty() && infos == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    for (size_t i = 0; i < usage.processes.size(); ++i) {
      infos[i] = {};
      infos[i].pid = static_cast<unsigned int>(usage.processes[i].pid);
      infos[i].usedGpuMemory = usage.processes[i].used_bytes;
      if constexpr (requires { infos[i].gpuInstanceId; }) {
        infos[i].gpuInstanceId = 0xffffffff;  // what the driver says where there is no MIG
        infos[i].computeInstanceId = 0xffffffff;
      }
    }
    return NVML_SUCCESS;
  });
}

nvmlReturn_t NoProcesses(nvmlDevice_t device, unsigned int* count) {
  return With(device, count != nullptr, [&](Machine&, int) {
    *count = 0;
    return NVML_SUCCESS;
  });
}

// The same protocol for what ran since `last_seen`; `give(i, answer)` writes one. As NVIDIA's
// driver answers (bench/results): of each process that one of its samples names, the latest of
// them, and the mean over all samples of the time.
template <typename Give>
nvmlReturn_t SamplesSince(Machine& machine, int index, unsigned long long last_seen,
                          bool only_count, unsigned int* count, Give give) {
  DeviceUsage usage;
  const nvmlReturn_t asked = Usage(machine, index, &usage);
  if (asked != NVML_SUCCESS) return asked;
  if (only_count) {
    *count = static_cast<unsigned int>(usage.processes.size());
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  std::map<unsigned, nvmlProcessUtilizationSample_t> found;
  unsigned samples = 0;
  for (const auto& sample : usage.samples) {
    const auto time_us = static_cast<unsigned long long>(sample.time_us);
    if (time_us <= last_seen) continue;
    ++samples;
    if (sample.pid == 0) continue;
    nvmlProcessUtilizationSample_t& of = found[static_cast<unsigned>(sample.pid)];
    of.pid = static_cast<unsigned>(sample.pid);
    of.timeStamp = time_us;
    of.smUtil += sample.percent;
  }
  const unsigned int room = *count;
  *count = static_cast<unsigned int>(found.size());
  if (found.empty()) return NVML_ERROR_NOT_FOUND;
  if (found.size() > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  size_t i = 0;
  for (auto& [pid, of] : found) {
    of.smUtil /= samples;
    give(i++, of);
  }
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                  nvmlProcessInfo_v1_t* infos) {
  return RunningProcesses(device, count, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_v2_t* infos) {
  return RunningProcesses(device, count, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* infos) {
  return RunningProcesses(device, count, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                   nvmlProcessInfo_v1_t*) {
  return NoProcesses(device, count);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                      nvmlProcessInfo_v2_t*) {
  return NoProcesses(device, count);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                      nvmlProcessInfo_t*) {
  return NoProcesses(device, count);
}

// Nothing runs under MPS here.
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_v1_t*) {
  return NoProcesses(device, count);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                        nvmlProcessInfo_v2_t*) {
  return NoProcesses(device, count);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                        nvmlProcessInfo_t*) {
  return NoProcesses(device, count);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t* samples,
                                             unsigned int* count, unsigned long long last_seen) {
  return With(device, count != nullptr, [&](Machine& machine, int index) {
    return SamplesSince(machine, index, last_seen, samples == nullptr, count,
                        [&](size_t i, const auto& sample) { samples[i] = sample; });
  });
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t* info) {
  return With(device, info != nullptr, [&](Machine& machine, int index) {
    if (info->version != nvmlProcessesUtilizationInfo_v1) {
      return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return SamplesSince(machine, index, info->lastSeenTimeStamp, info->procUtilArray == nullptr,
                        &info->processSamplesCount, [&](size_t i, const auto& sample) {
                          info->procUtilArray[i] = {};
                          info->procUtilArray[i].timeStamp = sample.timeStamp;
                          info->procUtilArray[i].pid = sample.pid;
                          info->procUtilArray[i].smUtil = sample.smUtil;
                        });
  });
}

}  // extern "C"
