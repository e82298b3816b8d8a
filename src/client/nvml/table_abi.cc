// nvmlInternalGetExportTable: nvidia-smi takes the processes of a device by this private door. What
// it hands out is NVML's own table; on a share, a copy of it with entries of ours for what tells of
// others. sim/nvml/export_table_abi.cc tells what is known of the table, and how.
//
// Only a layout that was seen is touched: this identity, a first word that is a sensible size in
// bytes, and a driver of a branch whose nvidia-smi was watched. Anything else passes as it is and
// is said on stderr once, for what it shows is not the share's.

#include <atomic>
#include <cstddef>
#include <cstring>

#include "client/nvml/process_view.h"
#include "client/nvml/processes.h"
#include "client/nvml/share.h"
#include "client/platform/os.h"

namespace prorata::client {
namespace {

struct ProcessEntry {
  unsigned int pid;
  unsigned int unknown_1;
  unsigned long long used_bytes;
  unsigned int gpu_instance;
  unsigned int compute_instance;
  unsigned long long unknown_2;
  char name[4096];
};
static_assert(sizeof(ProcessEntry) == 4128 && offsetof(ProcessEntry, name) == 32);

nvmlReturn_t NotSupported() { return NVML_ERROR_NOT_SUPPORTED; }

nvmlReturn_t ComputeProcesses(nvmlDevice_t device, unsigned int* count, ProcessEntry* entries) {
  const NvmlShare& share = *TheShare();
  uint32_t index = kNotInShare;
  const nvmlReturn_t located = Locate(share, device, &index);
  if (located != NVML_SUCCESS) return located;
  ShareProcess found[shm::kMaxMembers];
  return HandOut(count, entries, ListProcesses(share, index, found), [&](uint32_t i) {
    entries[i] = {};
    entries[i].pid = found[i].pid;
    entries[i].used_bytes = found[i].used_bytes;
    entries[i].gpu_instance = entries[i].compute_instance = 0xffff'ffff;
    NameOf(share, found[i].pid, entries[i].name, sizeof entries[i].name);
  });
}

nvmlReturn_t NoProcesses(nvmlDevice_t device, unsigned int* count, ProcessEntry*) {
  uint32_t index = kNotInShare;
  const nvmlReturn_t located = Locate(*TheShare(), device, &index);
  if (located != NVML_SUCCESS) return located;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

bool Known(const void* table, const void* id, char* version, unsigned int length) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, table, sizeof bytes);
  if (PRORATA_REAL_NVML(nvmlSystemGetDriverVersion)(version, length) != NVML_SUCCESS) {
    std::strcpy(version, "unknown");
  }
  return KnownTable(id, bytes, version);
}

const void* CopyOf(const void* table) {
  size_t bytes = 0;
  std::memcpy(&bytes, table, sizeof bytes);
  auto* slots = static_cast<const void**>(MapPages(bytes));
  if (slots == nullptr) return nullptr;
  std::memcpy(slots, table, bytes);
  // It has to say this, and nvidia-smi takes the public way.
  slots[kTableDeviceByIndex] = reinterpret_cast<const void*>(&NotSupported);
  slots[kTableCompute] = reinterpret_cast<const void*>(&ComputeProcesses);
  slots[kTableGraphics] = slots[kTableMps] = reinterpret_cast<const void*>(&NoProcesses);
  return slots;
}

// One table, one copy, for as long as the process lives.
std::atomic<const void*> g_copied{nullptr}, g_copy{nullptr};
std::atomic<bool> g_said{false};

void PrintOnce(const char* version) {
  if (g_said.exchange(true)) return;
  StderrMessage("a private table of driver ")
      .Text(version)
      .Text(
          " is not known to this version of prorata and passes as it is: what a program shows by "
          "it (nvidia-smi: processes) may be the whole device's and not the share's")
      .Print();
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

nvmlReturn_t nvmlInternalGetExportTable(const void** table, const void* id) {
  const nvmlReturn_t result = PRORATA_REAL_NVML(nvmlInternalGetExportTable)(table, id);
  if (result != NVML_SUCCESS || table == nullptr || *table == nullptr || TheShare() == nullptr) {
    return result;
  }
  if (*table == g_copied.load(std::memory_order_acquire)) {
    *table = g_copy.load(std::memory_order_relaxed);
    return result;
  }
  char version[96] = {};
  if (!Known(*table, id, version, sizeof version)) {
    PrintOnce(version);
    return result;
  }
  const void* copy = CopyOf(*table);
  if (copy == nullptr) return NVML_ERROR_MEMORY;
  g_copy.store(copy, std::memory_order_relaxed);
  g_copied.store(*table, std::memory_order_release);
  *table = copy;
  return result;
}
