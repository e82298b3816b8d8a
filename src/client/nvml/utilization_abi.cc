// NVML's utilization, as the share's: its device time over time, as the agent tells it ten times a
// second (limits_file.h).

#include <time.h>

#include "client/nvml/process_view.h"
#include "client/nvml/share.h"
#include "client/platform/os.h"

namespace prorata::client {
namespace {

Lock g_times_lock;
SampleTimes g_times[shm::kMaxDevices];  // under g_times_lock

uint64_t EpochUs() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1'000;
}

// The times of the samples that are there now, as a copy. `*samples` may be 0.
SampleTimes TimesOf(const NvmlShare& share, uint32_t index, uint64_t* samples) {
  const uint64_t period_us =
      shm::kUtilizationPeriodNs / 1'000 * Max(share.limits->header.dilation, 1u);
  // A forked child may have got the lock held: then it has its own idea of the times.
  SampleTimes times;
  *samples = share.limits->utilization[index].samples.load();
  if (*samples == 0) return times;
  const bool held = g_times_lock.TryAcquire();
  if (held) times = g_times[index];
  times.Latest(*samples, EpochUs(), period_us);
  if (held) {
    g_times[index] = times;
    g_times_lock.Release();
  }
  return times;
}

nvmlReturn_t Samples(const NvmlShare& share, uint32_t index, unsigned long long last_seen,
                     nvmlValueType_t* type, unsigned int* count, nvmlSample_t* out) {
  if (type == nullptr || count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const shm::Utilization& from = share.limits->utilization[index];
  *type = NVML_VALUE_TYPE_UNSIGNED_INT;
  if (out == nullptr) {
    *count = shm::kUtilizationSamples;
    return NVML_SUCCESS;
  }
  uint64_t samples = 0;
  const SampleTimes times = TimesOf(share, index, &samples);
  // The oldest may be overwritten while it is read: one fewer than there are.
  uint64_t number =
      samples >= shm::kUtilizationSamples ? samples - shm::kUtilizationSamples + 1 : 0;
  unsigned int given = 0;
  for (; number < samples && given < *count; ++number) {
    if (times.Of(number) <= last_seen) continue;
    out[given].timeStamp = times.Of(number);
    out[given].sampleValue = {};
    out[given++].sampleValue.uiVal =
        Percent(from.busy_ppm[number % shm::kUtilizationSamples].load());
  }
  *count = given;
  return given != 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

// Those of the share's processes that did something; give(i, process, time).
template <typename Give>
nvmlReturn_t ProcessSamples(const NvmlShare& share, uint32_t index, unsigned long long last_seen,
                            bool ask_room, unsigned int* count, Give give) {
  ShareProcess processes[shm::kMaxMembers];
  const uint32_t found = ListProcesses(share, index, processes);
  if (ask_room) {
    *count = found;
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  uint64_t samples = 0;
  const SampleTimes times = index != kNotInShare ? TimesOf(share, index, &samples) : SampleTimes{};
  uint32_t busy = 0;
  for (uint32_t i = 0; i < found; ++i) {
    if (Percent(processes[i].busy_ppm) != 0) processes[busy++] = processes[i];
  }
  if (samples == 0 || times.Of(samples - 1) <= last_seen) busy = 0;
  const unsigned int room = *count;
  *count = busy;
  if (busy == 0) return NVML_ERROR_NOT_FOUND;
  if (busy > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (uint32_t i = 0; i < busy; ++i) give(i, processes[i], times.Of(samples - 1));
  return NVML_SUCCESS;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  const nvmlReturn_t result = PRORATA_REAL_NVML(nvmlDeviceGetUtilizationRates)(device, utilization);
  const NvmlShare* share = TheShare();
  uint32_t index = kNotInShare;
  if (result != NVML_SUCCESS || utilization == nullptr || share == nullptr ||
      Locate(*share, device, &index) != NVML_SUCCESS || index == kNotInShare) {
    return result;
  }
  utilization->gpu = PercentBusy(share->limits->utilization[index]);
  // How busy the memory is, nobody counts by share: no busier than all shares made it, nor longer
  // than this one ran.
  utilization->memory = Min(utilization->memory, utilization->gpu);
  return result;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long lastSeenTimeStamp,
                                  nvmlValueType_t* sampleValType, unsigned int* sampleCount,
                                  nvmlSample_t* samples) {
  const NvmlShare* share = TheShare();
  uint32_t index = kNotInShare;
  if (share == nullptr || type != NVML_GPU_UTILIZATION_SAMPLES) {
    return PRORATA_REAL_NVML(nvmlDeviceGetSamples)(device, type, lastSeenTimeStamp, sampleValType,
                                                   sampleCount, samples);
  }
  const nvmlReturn_t located = Locate(*share, device, &index);
  if (located != NVML_SUCCESS) return located;
  if (index == kNotInShare) return NVML_ERROR_NOT_SUPPORTED;
  return Samples(*share, index, lastSeenTimeStamp, sampleValType, sampleCount, samples);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t* utilization,
                                             unsigned int* processSamplesCount,
                                             unsigned long long lastSeenTimeStamp) {
  const NvmlShare* share = TheShare();
  if (share == nullptr) {
    return PRORATA_REAL_NVML(nvmlDeviceGetProcessUtilization)(
        device, utilization, processSamplesCount, lastSeenTimeStamp);
  }
  uint32_t index = kNotInShare;
  const nvmlReturn_t located = Locate(*share, device, &index);
  if (located != NVML_SUCCESS) return located;
  if (processSamplesCount == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return ProcessSamples(*share, index, lastSeenTimeStamp, utilization == nullptr,
                        processSamplesCount,
                        [&](uint32_t i, const ShareProcess& process, uint64_t when_us) {
                          utilization[i] = {};
                          utilization[i].pid = process.pid;
                          utilization[i].timeStamp = when_us;
                          utilization[i].smUtil = Percent(process.busy_ppm);
                        });
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t* info) {
  const NvmlShare* share = TheShare();
  if (share == nullptr) {
    return PRORATA_REAL_NVML(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
  }
  uint32_t index = kNotInShare;
  const nvmlReturn_t located = Locate(*share, device, &index);
  if (located != NVML_SUCCESS) return located;
  if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return ProcessSamples(*share, index, info->lastSeenTimeStamp, info->procUtilArray == nullptr,
                        &info->processSamplesCount,
                        [&](uint32_t i, const ShareProcess& process, uint64_t when_us) {
                          info->procUtilArray[i] = {};
                          info->procUtilArray[i].pid = process.pid;
                          info->procUtilArray[i].timeStamp = when_us;
                          info->procUtilArray[i].smUtil = Percent(process.busy_ppm);
                        });
}
