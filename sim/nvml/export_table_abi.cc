#include <array>
#include <cstddef>
#include <cstring>

#include "sim/nvml/device_call.h"

// nvmlInternalGetExportTable: the private door that nvidia-smi takes beside NVML's public
// functions.
//
// What is known was seen from outside, by answering nvidia-smi 535.261.03 and reading what it then
// printed. It asks for the one table below before anything else and refuses to start without it.
// The table's first word is its size in bytes; a slot beyond it is not called. Of its slots it uses
//    26  to write its own log
//    81  with a device's index, and goes on with the public functions when that is not supported
//   213  (device, count, entries): the compute processes; 214 the graphics ones, 215 those of MPS.
//        Without them it shows no processes at all.
// Every other slot says that it is not supported. Any other identity is refused: a caller must not
// trust slots that nobody has seen.

namespace {

using prorata::simgpu::DeviceUsage;
using prorata::simgpu::Machine;
using prorata::simgpu::Usage;
using prorata::simgpu::With;

constexpr unsigned char kSmiTable[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                         0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
constexpr size_t kSlots = 512;

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
  return With(device, count != nullptr, [&](Machine& machine, int index) {
    DeviceUsage usage;
    const nvmlReturn_t asked = Usage(machine, index, &usage);
    if (asked != NVML_SUCCESS) return asked;
    const unsigned int room = *count;
    *count = static_cast<unsigned int>(usage.processes.size());
    if (usage.processes.size() > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (size_t i = 0; i < usage.processes.size(); ++i) {
      entries[i] = {};
      entries[i].pid = static_cast<unsigned int>(usage.processes[i].pid);
      entries[i].used_bytes = usage.processes[i].used_bytes;
      entries[i].gpu_instance = entries[i].compute_instance = 0xffffffff;  // there is no MIG
      nvmlSystemGetProcessName(entries[i].pid, entries[i].name, sizeof entries[i].name);
    }
    return NVML_SUCCESS;
  });
}

nvmlReturn_t NoProcesses(nvmlDevice_t device, unsigned int* count, ProcessEntry*) {
  return prorata::simgpu::Constant(device, count, 0u);
}

const void* const* Table() {
  static const std::array<const void*, kSlots> table = [] {
    std::array<const void*, kSlots> slots{};
    slots.fill(reinterpret_cast<const void*>(&NotSupported));
    slots[0] = reinterpret_cast<const void*>(sizeof slots);
    slots[213] = reinterpret_cast<const void*>(&ComputeProcesses);
    slots[214] = slots[215] = reinterpret_cast<const void*>(&NoProcesses);
    return slots;
  }();
  return table.data();
}

}  // namespace

extern "C" nvmlReturn_t nvmlInternalGetExportTable(const void** table, const void* id) {
  if (table == nullptr || id == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *table = nullptr;
  if (std::memcmp(id, kSmiTable, sizeof kSmiTable) != 0) return NVML_ERROR_NOT_FOUND;
  *table = Table();
  return NVML_SUCCESS;
}
