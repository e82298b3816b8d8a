#pragma once

// The share that this process lives on: found, mapped and joined once, in cuInit.
//
// Life of a process, as g_live tells it:
//   A. no share is configured, or cuInit was not called yet   *g_live == kUngoverned, all passes
//   B. cuInit is joining                                      kUngoverned still: no context exists
//   C. joined                                                 kGoverned
//   D. a share is configured but could not be joined          kUnjoined: cuInit failed, and what
//      would take memory is refused, should the program go on
//   E. the child after a fork of B or C                       kUngoverned: g_live lies in a page
//      that the kernel wipes on fork; CUDA does not work there, and we stay out of its way. Where
//      B had not called the driver's cuInit yet, the child is in A
//
// Lock order in this library: a shard of the allocations, then a shard of the slabs or the lock of
// a pool (memory.h); a shard of the handles or mappings, then one of the records (vmm.h). No other
// lock is held while another is taken, and none across driver calls.

#include <atomic>
#include <cstdint>

#include "client/platform/os.h"
#include "client/session/driver_functions.h"
#include "shm/limits_file.h"
#include "shm/usage_file.h"
#include "wire/frame.h"
#include "wire/messages.h"

namespace prorata::client {

inline constexpr uint32_t kUngoverned = 0, kGoverned = 1, kUnjoined = 2;
inline constexpr uint32_t kMaxOrdinals = 64;
inline constexpr uint32_t kNoDevice = ~uint32_t{0};

extern std::atomic<const std::atomic<uint32_t>*> g_live;

// The pointer changes in cuInit, while other threads may be calling.
inline uint32_t Live() {
  return g_live.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
}

// Whether calls are ours to govern: the process lives on a share. All of them: no driver calls its
// own exports by way of us, and a mark "inside the driver" would stay where a program leaves a call
// by siglongjmp. Read from libcuda.so.535.261.03: it is linked with -Bsymbolic, has no relocation
// of a cu* function, and opens libcuda.so.1 (which is us) only to stay loaded, without a dlsym.
inline bool Governed() { return Live() != kUngoverned; }

struct Share {
  // The limits file. Replaced (never unmapped) if a restarted agent made a new one.
  std::atomic<const shm::LimitsFile*> limits{nullptr};
  // This member's row of it; a row of zeroes before it has one.
  std::atomic<const shm::GrantRow*> grants{nullptr};
  std::atomic<uint64_t> slot{wire::kNoSlot};
  shm::UsageFile* usage = nullptr;  // never null once joined or refused
  int usage_fd = -1;
  std::atomic<int> socket{-1};  // -1: not connected
  uint32_t device_count = 0;
  char folder[512] = {};
  // Device ordinal of the driver <-> index in the limits file; kNoDevice: not in the share.
  uint32_t index_of_ordinal[kMaxOrdinals] = {};
  CUdevice ordinal_of_index[shm::kMaxDevices] = {};
  uint32_t ordinals = 0;
};
extern Share g_share;

inline const shm::DeviceLimits& LimitsOf(uint32_t device) {
  return g_share.limits.load(std::memory_order_acquire)->devices[device];
}
inline shm::DeviceUsage& UsageOf(uint32_t device) { return g_share.usage->devices[device]; }
inline uint64_t GrantOf(uint32_t device) {
  return g_share.grants.load(std::memory_order_acquire)->bytes[device].load();
}

// The index of a driver's ordinal, or kNoDevice.
inline uint32_t IndexOf(CUdevice ordinal) {
  return ordinal >= 0 && static_cast<uint32_t>(ordinal) < g_share.ordinals
             ? g_share.index_of_ordinal[ordinal]
             : kNoDevice;
}

// The index of the device of the calling thread's current context (kNoDevice: there is none).
uint32_t CurrentDevice();

// Counts for the share, which was joined just now, what was looked up before (proc_address_abi.cc).
void ReportEarlyLookups();

// Where a container has its share mounted.
inline constexpr char kShareInContainer[] = "/run/prorata/share";

// The folder of this process's share: /run/prorata/share, where a container has it, else
// PRORATA_SHARE. kNone: neither is there. kTooLong: PRORATA_SHARE names one that cannot be used; to
// go on without a share then would be to go on without limits.
enum class ShareFolder { kNone, kFound, kTooLong };
ShareFolder FindShareFolder(char* folder, size_t capacity);

// Maps FOLDER/limits read-only; nullptr with *why set if that fails or the file is not one of ours.
const shm::LimitsFile* MapLimits(const char* folder, const char** why);

// The UUID text of a limits file ("GPU-8-4-4-4-12", "MIG-...") as 16 bytes; false: it is none.
bool ParseUuid(const char* text, uint8_t out[16]);

// What CUDA_VISIBLE_DEVICES must be so that the driver shows the share's devices, or those of them
// that the program's own value (nullptr: none) selects. Pure. False: it does not fit.
bool ComposeVisibleDevices(const shm::LimitsFile& limits, const char* own, char* out,
                           size_t capacity);

}  // namespace prorata::client
