#include "client/nvml/share.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "client/platform/os.h"
#include "client/session/member_usage.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

std::atomic<const NvmlShare*> g_nvml_share{nullptr};
std::atomic<bool> g_polled{false};

// Whether this process is in the pid namespace of the agent, where members have their host's pids.
// The link reads "pid:[4026531836]", with the inode number that stat would give (whose symbol is
// too young for old C libraries).
bool BesideTheAgent(const shm::LimitsFile& limits) {
  char link[64];
  const ssize_t bytes = readlink("/proc/self/ns/pid", link, sizeof link);
  uint64_t own = 0;
  for (ssize_t i = 0; i < bytes; ++i) {
    if (link[i] >= '0' && link[i] <= '9') own = own * 10 + static_cast<uint64_t>(link[i] - '0');
  }
  return own != 0 && own == limits.header.agent_pid_namespace.load();
}

// Once in a process, but for two threads that look at the same moment.
void PrintWholeGpu(const char* share, const char* why) {
  StderrMessage("NVML shows the whole GPU to this program, not its share: the share ")
      .Text(share)
      .Text(" cannot be used: ")
      .Text(why)
      .Text("; PRORATA_SHARE must name a folder that the prorata agent made")
      .Print();
}

// Adds to the list, or to the entry of the same process: one that became another program has a
// second slot until the memory of the first is gone.
void AddTo(ShareProcess* list, uint32_t* count, const ShareProcess& one) {
  for (uint32_t i = 0; i < *count; ++i) {
    if (list[i].host_pid != one.host_pid) continue;
    list[i].used_bytes += one.used_bytes;
    list[i].busy_ppm = Max(list[i].busy_ppm, one.busy_ppm);
    return;
  }
  list[(*count)++] = one;
}

// Those with memory on the device; on kNotInShare everybody.
uint32_t List(const NvmlShare& share, uint32_t index, ShareProcess* out) {
  const shm::LimitsFile& limits = *share.limits;
  const bool host = BesideTheAgent(limits);
  for (bool again = false;; again = true) {
    bool all_seen = true;
    uint32_t count = 0;
    const uint32_t end = Min(limits.header.members_end.load(), shm::kMaxMembers);
    for (uint32_t slot = 0; slot < end; ++slot) {
      const shm::MemberRow& row = limits.members[slot];
      ShareProcess one = {row.inner_pid.load(), row.host_pid.load(), 0, 0};
      if (one.host_pid == 0) continue;
      if (host) one.pid = one.host_pid;
      if (index != kNotInShare) {
        all_seen &= UsedBySlot(limits, slot, index, {}, &one.used_bytes);
        one.busy_ppm = row.busy_ppm[index].load();
        if (one.used_bytes == 0) continue;
      }
      AddTo(out, &count, one);
    }
    if (all_seen || again) return count;
    FetchMemberUsage(share.folder, limits);
  }
}

}  // namespace

const NvmlShare* TheShare() {
  if (g_polled.load(std::memory_order_acquire)) return g_nvml_share.load(std::memory_order_acquire);
  char folder[sizeof NvmlShare::folder];
  const char* why = "its path is too long";
  const ShareFolder found = FindShareFolder(folder, sizeof folder);
  if (found == ShareFolder::kTooLong) PrintWholeGpu("that PRORATA_SHARE names", why);
  if (found == ShareFolder::kFound) {
    const shm::LimitsFile* limits = MapLimits(folder, &why);
    if (limits == nullptr) PrintWholeGpu(folder, why);
    auto* made = limits != nullptr ? static_cast<NvmlShare*>(MapPages(sizeof(NvmlShare))) : nullptr;
    if (made != nullptr) {
      // NVML works in the child after a fork, unlike CUDA: it must find the mapping there.
      madvise(const_cast<shm::LimitsFile*>(limits), sizeof *limits, MADV_DOFORK);
      made->limits = limits;
      std::strcpy(made->folder, folder);
      const NvmlShare* none = nullptr;  // of two threads the first one's stays
      g_nvml_share.compare_exchange_strong(none, made);
    }
  }
  g_polled.store(true, std::memory_order_release);
  return g_nvml_share.load(std::memory_order_acquire);
}

nvmlReturn_t Locate(const NvmlShare& share, nvmlDevice_t device, uint32_t* index) {
  char uuid[96] = {};
  const nvmlReturn_t result = PRORATA_REAL_NVML(nvmlDeviceGetUUID)(device, uuid, sizeof uuid);
  *index = kNotInShare;
  if (result != NVML_SUCCESS) return result;
  for (uint32_t i = 0; i < share.limits->header.device_count; ++i) {
    if (std::strcmp(share.limits->devices[i].uuid, uuid) == 0) *index = i;
  }
  return NVML_SUCCESS;
}

uint32_t ListProcesses(const NvmlShare& share, uint32_t index, ShareProcess* out) {
  return index == kNotInShare ? 0 : List(share, index, out);
}

uint32_t ListAllProcesses(const NvmlShare& share, ShareProcess* out) {
  return List(share, kNotInShare, out);
}

}  // namespace prorata::client
