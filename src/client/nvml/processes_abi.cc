// NVML's lists of processes: the share's own, by the pids that the caller knows them by, with what
// is charged for each. The device's own lists are not asked, for they know only the host's pids.

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "client/nvml/process_view.h"
#include "client/nvml/processes.h"
#include "client/nvml/share.h"
#include "client/platform/os.h"

namespace prorata::client {
namespace {

constexpr unsigned int kNoInstance = 0xffff'ffff;

// Without a MIG device there are no instances, and NVML says so with all ones.
void InstancesOf(nvmlDevice_t device, unsigned int* gpu, unsigned int* compute) {
  if (PRORATA_REAL_NVML(nvmlDeviceGetGpuInstanceId)(device, gpu) != NVML_SUCCESS) {
    *gpu = kNoInstance;
  }
  if (PRORATA_REAL_NVML(nvmlDeviceGetComputeInstanceId)(device, compute) != NVML_SUCCESS) {
    *compute = kNoInstance;
  }
}

template <typename Info>
nvmlReturn_t Running(const NvmlShare& share, nvmlDevice_t device, unsigned int* count,
                     Info* infos) {
  uint32_t index = kNotInShare;
  const nvmlReturn_t located = Locate(share, device, &index);
  if (located != NVML_SUCCESS) return located;
  ShareProcess found[shm::kMaxMembers];
  unsigned int gpu = kNoInstance, compute = kNoInstance;
  InstancesOf(device, &gpu, &compute);
  return HandOut(count, infos, ListProcesses(share, index, found), [&](uint32_t i) {
    infos[i] = {};
    infos[i].pid = found[i].pid;
    infos[i].usedGpuMemory = found[i].used_bytes;
    if constexpr (requires { infos[i].gpuInstanceId; }) {
      infos[i].gpuInstanceId = gpu;
      infos[i].computeInstanceId = compute;
    }
  });
}

// Graphics processes and those of MPS: a share has none.
nvmlReturn_t Nobody(const NvmlShare& share, nvmlDevice_t device, unsigned int* count) {
  uint32_t index = kNotInShare;
  const nvmlReturn_t located = Locate(share, device, &index);
  if (located != NVML_SUCCESS) return located;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

// A list of something with host pids, by what NVML has: only what is the share's, with pids that
// the caller knows. `ask(count, entries)` is NVML, `pid_of(entry)` a reference to its pid.
template <unsigned int kMaxAsked, typename Entry, typename Ask, typename PidOf>
nvmlReturn_t Own(const NvmlShare& share, unsigned int* count, Entry* entries, Ask ask,
                 PidOf pid_of) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  Entry all[kMaxAsked];
  unsigned int asked = kMaxAsked;
  const nvmlReturn_t result = ask(&asked, all);
  if (result != NVML_SUCCESS) return result;
  ShareProcess processes[shm::kMaxMembers];
  const uint32_t members = ListAllProcesses(share, processes);
  uint32_t own = 0;
  for (uint32_t i = 0; i < Min(asked, kMaxAsked); ++i) {
    for (uint32_t m = 0; m < members; ++m) {
      if (pid_of(all[i]) != processes[m].host_pid) continue;
      all[own] = all[i];
      pid_of(all[own++]) = processes[m].pid;
      break;
    }
  }
  return HandOut(count, entries, own, [&](uint32_t i) { entries[i] = all[i]; });
}

// The process that the caller knows by this pid. False: it is not the share's.
bool Find(const NvmlShare& share, unsigned int pid, ShareProcess* process) {
  ShareProcess processes[shm::kMaxMembers];
  const uint32_t members = ListAllProcesses(share, processes);
  for (uint32_t m = 0; m < members; ++m) {
    if (processes[m].pid != pid) continue;
    *process = processes[m];
    return true;
  }
  return false;
}

// What the process was started as: the first string of /proc/PID/cmdline.
nvmlReturn_t ReadName(unsigned int pid, char* name, unsigned int length) {
  char path[32] = "/proc/";
  char* at = path + std::strlen(path);
  char digits[12];
  size_t count = 0;
  for (unsigned int rest = pid; count == 0 || rest != 0; rest /= 10) {
    digits[count++] = static_cast<char>('0' + rest % 10);
  }
  while (count != 0) *at++ = digits[--count];
  std::strcpy(at, "/cmdline");
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t got = fd >= 0 ? read(fd, name, length - 1) : -1;
  if (fd >= 0) close(fd);
  if (got <= 0) return NVML_ERROR_NOT_FOUND;
  name[got] = 0;
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t NameOf(const NvmlShare& share, unsigned int pid, char* name, unsigned int length) {
  if (name == nullptr || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  ShareProcess process;
  if (!Find(share, pid, &process)) return NVML_ERROR_NOT_FOUND;
  if (process.pid != process.host_pid) return ReadName(pid, name, length);
  return PRORATA_REAL_NVML(nvmlSystemGetProcessName)(pid, name, length);
}

}  // namespace prorata::client

using namespace prorata::client;

#define PRORATA_PROCESS_LIST(name, Info, answer)                                    \
  nvmlReturn_t name(nvmlDevice_t device, unsigned int* infoCount, Info* infos) {    \
    const NvmlShare* share = TheShare();                                            \
    if (share == nullptr) return PRORATA_REAL_NVML(name)(device, infoCount, infos); \
    return answer;                                                                  \
  }
#define PRORATA_COMPUTE_LIST(name, Info) \
  PRORATA_PROCESS_LIST(name, Info, Running(*share, device, infoCount, infos))
#define PRORATA_EMPTY_LIST(name, Info) \
  PRORATA_PROCESS_LIST(name, Info, Nobody(*share, device, infoCount))

PRORATA_COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
PRORATA_COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PRORATA_COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
PRORATA_EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
PRORATA_EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
PRORATA_EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
PRORATA_EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
PRORATA_EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PRORATA_EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t* plist) {
  constexpr unsigned int kCompute = 0, kModes = 3;
  const NvmlShare* share = TheShare();
  if (share == nullptr) {
    return PRORATA_REAL_NVML(nvmlDeviceGetRunningProcessDetailList)(device, plist);
  }
  if (plist == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (plist->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (plist->mode >= kModes) return NVML_ERROR_INVALID_ARGUMENT;
  if (plist->mode != kCompute) return Nobody(*share, device, &plist->numProcArrayEntries);
  return Running(*share, device, &plist->numProcArrayEntries, plist->procArray);
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int* count,
                                         unsigned int* pids) {
  const auto real = PRORATA_REAL_NVML(nvmlDeviceGetAccountingPids);
  const NvmlShare* share = TheShare();
  if (share == nullptr) return real(device, count, pids);
  return Own<4096>(
      *share, count, pids, [&](unsigned int* n, unsigned int* all) { return real(device, n, all); },
      [](unsigned int& pid) -> unsigned int& { return pid; });
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t* stats) {
  const NvmlShare* share = TheShare();
  ShareProcess process = {pid, pid, 0, 0};
  if (share != nullptr && !Find(*share, pid, &process)) return NVML_ERROR_NOT_FOUND;
  return PRORATA_REAL_NVML(nvmlDeviceGetAccountingStats)(device, process.host_pid, stats);
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int* sessionCount,
                                          nvmlEncoderSessionInfo_t* sessionInfos) {
  const auto real = PRORATA_REAL_NVML(nvmlDeviceGetEncoderSessions);
  const NvmlShare* share = TheShare();
  if (share == nullptr) return real(device, sessionCount, sessionInfos);
  return Own<256>(
      *share, sessionCount, sessionInfos,
      [&](unsigned int* n, nvmlEncoderSessionInfo_t* all) { return real(device, n, all); },
      [](nvmlEncoderSessionInfo_t& one) -> unsigned int& { return one.pid; });
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int* sessionCount,
                                      nvmlFBCSessionInfo_t* sessionInfo) {
  const auto real = PRORATA_REAL_NVML(nvmlDeviceGetFBCSessions);
  const NvmlShare* share = TheShare();
  if (share == nullptr) return real(device, sessionCount, sessionInfo);
  return Own<256>(
      *share, sessionCount, sessionInfo,
      [&](unsigned int* n, nvmlFBCSessionInfo_t* all) { return real(device, n, all); },
      [](nvmlFBCSessionInfo_t& one) -> unsigned int& { return one.pid; });
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  const NvmlShare* share = TheShare();
  if (share != nullptr) return NameOf(*share, pid, name, length);
  return PRORATA_REAL_NVML(nvmlSystemGetProcessName)(pid, name, length);
}
