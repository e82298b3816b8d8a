#pragma once

// The limits file of a share: what the agent allows, as every member maps it read-only.
//
//   /run/prorata/shares/NAME/limits      mode 0444, written by the agent alone, never resized
//
//   +--------------------+ 0
//   | LimitsHeader       | 256 bytes: identity, epoch, heartbeat
//   +--------------------+ 256
//   | DeviceLimits  x 16 | 256 bytes each: memory limit, compute limits, the lease word
//   +--------------------+ 4352
//   | GrantRow     x 512 | 128 bytes each: one grant per device for the member in that slot
//   +--------------------+ 69888
//   | Utilization  x 16  | 128 bytes each: the share's part of a device's time, lately
//   +--------------------+ 71936
//   | MemberRow    x 512 | 256 bytes each: who is in that slot, for the process lists of NVML
//   +--------------------+ 203008
//
// Freestanding: no libstdc++ objects, for the client library includes it. All integers are native
// (one machine). Every field that changes after creation is an atomic; a lone aligned 64-bit word
// is all that is ever updated at once, so a kill between two instructions leaves no torn state.
// Times are durations and counts, not absolute clocks (containers have time namespaces), but for
// two that their reader checks (DeviceUsage::expected_end_ns and occupied_since_ns).

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace prorata::shm {

inline constexpr uint64_t kLimitsMagic = 0x3153'5449'4D4C'5250;  // "PRLMITS1"
inline constexpr uint32_t kLimitsVersion = 2;
inline constexpr uint32_t kMaxDevices = 16;
inline constexpr uint32_t kMaxMembers = 512;
inline constexpr uint32_t kShareNameBytes = 64;  // with the closing zero

inline constexpr uint64_t kHeartbeatPeriodNs = 20'000'000;
inline constexpr uint64_t kHeartbeatLostAfterNs = 60'000'000;

struct LimitsHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t size_bytes;
  char share_name[kShareNameBytes];
  uint32_t device_count;
  uint32_t member_slots;
  // One more at every start of an agent that adopts this share. Members join again when it moves.
  std::atomic<uint64_t> epoch;
  // One more every 20 ms, by the agent's loop, on which leases are granted and revoked.
  alignas(64) std::atomic<uint64_t> heartbeat;
  std::atomic<uint32_t> ended;  // 1: the share was removed; members go on within what they have
  // Tests on a simulated GPU whose clock is slowed down (docs/design/simulated-gpu.md): so many
  // real nanoseconds are one of all times that the agent and the members of this share reckon with.
  // 0 and 1 are real time. Written before the first member joins, read by a member once.
  uint32_t dilation;
  // All slots in use are below this one.
  std::atomic<uint32_t> members_end;
  uint32_t reserved0;
  // The pid namespace of the agent (the inode number of /proc/self/ns/pid): whoever lives in it too
  // knows members by MemberRow::host_pid. 0: unknown.
  std::atomic<uint64_t> agent_pid_namespace;
  // For how long an allocation waits for a full device, in milliseconds: kNoWait
  // and kWaitForever of wire.h, or a span between.
  std::atomic<uint32_t> on_full_wait_ms;
  uint32_t reserved[23];
};
static_assert(sizeof(LimitsHeader) == 256);

// The lease word: a share's right to run on a device, in one atomic that a launch can test and a
// waiter can FUTEX_WAIT on (a read-only mapping is enough for that).
//   bit 0      open: launches may pass
//   bit 1      contended: another share waits; report idleness early, bound the backlog by
//   backlog_us bits 2-31  sequence: one more at every change, so that no change is missed
inline constexpr uint32_t kLeaseOpen = 1;
inline constexpr uint32_t kLeaseContended = 2;
inline constexpr uint32_t kLeaseSequenceShift = 2;

// DeviceLimits::together: others do not run; in the gaps of this share, and it in theirs; or in
// slices of the hardware, while one of them stalls or has yet to drain.
inline constexpr uint32_t kNotTogether = 0, kInGaps = 1, kInSlices = 2;

struct DeviceLimits {
  char uuid[48];  // as NVML writes it: "GPU-8-4-4-4-12" or "MIG-…", zero-terminated
  std::atomic<uint64_t> memory_limit_bytes;
  // Reserved by a member before it makes a context, settled with the agent after it.
  std::atomic<uint64_t> context_overhead_bytes;
  std::atomic<uint32_t> compute_request_ppm;
  std::atomic<uint32_t> compute_limit_ppm;
  std::atomic<uint32_t> compute_weight;
  // The most fenced work, in microseconds of device time, that a member keeps queued when the lease
  // is not contended / contended.
  std::atomic<uint32_t> backlog_alone_us;
  std::atomic<uint32_t> backlog_contended_us;
  // An idle member of a contended lease reports after this long without work.
  std::atomic<uint32_t> idle_report_us;
  // Members that used the device lately, as the agent last counted. While its heartbeat is lost
  // each of them holds itself to its part of the limit: the limit divided by this (0 is 1).
  std::atomic<uint32_t> active_members;
  uint32_t reserved0[9];
  alignas(64) std::atomic<uint32_t> lease;
  // Whether other shares run beside this one (kInGaps, kInSlices): what is measured from event to
  // event may have their work in it.
  std::atomic<uint32_t> together;
  // Members of all shares that had work on the device when the agent last looked, each tenth of a
  // second: what takes long beside others need not be long.
  std::atomic<uint32_t> members_at_work;
  uint32_t reserved1;
  // Of the closed lease whose sequence is in the upper half: each member may make so many launches
  // under it (the lower half). Another device of the share waits for them (policy/compute/gangs.h).
  std::atomic<uint64_t> extra_launches;
  uint32_t reserved2[10];
  // What all grants of this share on this device add up to, with what the audit found beyond them,
  // for cuMemGetInfo: above the limit only while a limit that was lowered below use is being
  // reached, or when overhead alone is above it.
  alignas(64) std::atomic<uint64_t> granted_bytes;
  // The agent's own note of the recall it is in the middle of (usage_file.h, A1 to A3): slot + 1
  // and the grant before it, or 0. An agent killed there left a grant below what the member may
  // use; the next one puts it back. Nothing for members.
  std::atomic<uint64_t> recall_previous_bytes;
  std::atomic<uint64_t> recall_slot_plus_one;
  // What the audit found on the device beyond all charges and beyond the overhead in the members'
  // rows: memory of the share that is no one member's. Counts as used.
  std::atomic<uint64_t> overhead_bytes;
  // How much of the limit is beyond the request, so not set aside; 0 in a file of an agent that
  // did not know of requests. For an agent that must recover the share; nothing for members.
  std::atomic<uint64_t> memory_beyond_request_bytes;
  // What was left of the bucket of its limit on compute at the last decision, in nanoseconds;
  // negative: a debt. For the agent that comes after an outage; nothing for members.
  std::atomic<int64_t> limit_tokens_ns;
  std::atomic<uint64_t> limit_tokens_known;  // 1: it is
  uint64_t reserved3[1];
};
static_assert(sizeof(DeviceLimits) == 256);

// The launches that each member may make under this lease word, which is closed.
inline uint32_t ExtraLaunches(const DeviceLimits& limits, uint32_t lease) {
  const uint64_t extra = limits.extra_launches.load(std::memory_order_acquire);
  return extra >> 32 == lease >> kLeaseSequenceShift ? static_cast<uint32_t>(extra) : 0;
}

// Whether launches pass under this lease word, be they a few.
inline bool LaunchesPass(const DeviceLimits& limits, uint32_t lease) {
  return (lease & kLeaseOpen) != 0 || ExtraLaunches(limits, lease) != 0;
}

struct GrantRow {
  std::atomic<uint64_t> bytes[kMaxDevices];
};
static_assert(sizeof(GrantRow) == 128);

// The share's device time over wall time, one sample each tenth of a second, the last 30: number n
// (the first is number 0) stands at n % 30, and is there once `samples` is above n.
inline constexpr uint32_t kUtilizationSamples = 30;
inline constexpr uint64_t kUtilizationPeriodNs = 100'000'000;
inline constexpr uint32_t kUtilizationMeanOf = 10;  // of so many is what is reported as one number
struct Utilization {
  std::atomic<uint64_t> samples;
  std::atomic<uint32_t> busy_ppm[kUtilizationSamples];
};
static_assert(sizeof(Utilization) == 128);

// Who is in a slot, for whoever asks NVML. The bytes a member has in use are its own word in its
// usage memory, which every process of the share may have from the agent, to read (wire.h,
// kUsageWanted); where that cannot be had, and for the dead, its grant counts as used.
struct MemberRow {
  // Names the usage memory of this member; another one for another member, and never used again in
  // the life of a share. 0: there is none (a free slot, a dead member, one that has not joined
  // again since the agent started), and what the slot has in use is its grant.
  std::atomic<uint64_t> usage_serial;
  // As the agent sees the process, and as the process sees itself (the last number of NSpid in
  // /proc/PID/status). 0: the slot is free. The dead stay until their memory is gone.
  std::atomic<uint32_t> host_pid;
  std::atomic<uint32_t> inner_pid;
  // For an agent that takes the share over; nothing for members. When the process started, in ticks
  // since boot, and 1: what the slot was is gone (dead, or another program by exec), and only its
  // memory may still be there.
  std::atomic<uint64_t> start_ticks;
  std::atomic<uint32_t> departed;
  uint32_t reserved0;
  uint64_t reserved[4];
  // Its device time over wall time, about the last second.
  std::atomic<uint32_t> busy_ppm[kMaxDevices];
  // What the audit found it to hold on a device beyond its charges. Counts as used by it.
  std::atomic<uint64_t> overhead_bytes[kMaxDevices];
};
static_assert(sizeof(MemberRow) == 256);

struct LimitsFile {
  LimitsHeader header;
  DeviceLimits devices[kMaxDevices];
  GrantRow grants[kMaxMembers];
  Utilization utilization[kMaxDevices];
  MemberRow members[kMaxMembers];
};
static_assert(sizeof(LimitsFile) == 203008);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace prorata::shm
