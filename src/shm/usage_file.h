#pragma once

// The usage memory of a member: what it uses, as it writes and the agent reads.
//
// A memfd that the member makes, seals against resizing (F_SEAL_SHRINK | F_SEAL_GROW |
// F_SEAL_SEAL), and sends to the agent when it joins, and again when it joins after a restart of
// the agent. The agent trusts nothing in it beyond this member: a false `used` spoils the liar's
// own row, and the audit finds it.
//
// The ledger's race, and why no kill and no order of events can exceed a limit (all steps seq_cst):
//
//   member charges n bytes              agent recalls slack from grant G down to G' < G
//   M1  used: CAS u -> u+n if u+n <= G   A1  grant = G'
//   M2  read grant again: g              A2  read used: u'
//   M3  u+n <= g: proceed                A3  u' > G': grant = min(u', G): those bytes stay its own
//       else: used -= n, ask by message
//
//   A. M1 before A2: the agent sees the charge and leaves it inside the grant.
//   B. A2 before M1: then A1 before M2: the member sees G' and backs out.
// A3 never raises a grant above G: u' may hold a charge that was compared with an older, larger
// grant and is about to back out; were it granted, the sum could pass the limit.
// Either way used that proceeds <= grant at A3, and the sum of grants <= limit by the agent's
// arithmetic. Freestanding, as limits_file.h.

#include <atomic>
#include <cstdint>

#include "shm/limits_file.h"

namespace prorata::shm {

inline constexpr uint64_t kUsageMagic = 0x3147'4153'5553'5250;  // "PRSUSAG1"
inline constexpr uint32_t kUsageVersion = 1;

struct UsageHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t size_bytes;
  uint64_t reserved[14];
};
static_assert(sizeof(UsageHeader) == 128);

struct DeviceUsage {
  // Line 0: memory. `used` is everything charged, contexts included; `overhead` is the part of it
  // that no allocation call asked for.
  std::atomic<uint64_t> used_bytes;
  std::atomic<uint64_t> overhead_bytes;
  std::atomic<uint64_t> refusals;
  std::atomic<uint64_t> refused_bytes;  // what the last request that was refused asked for
  uint64_t reserved0[4];
  // Line 1: time. How long kernels ran since joining, by the member's own measurements and
  // estimates: a figure, and a measure of progress. No charge depends on it.
  alignas(64) std::atomic<uint64_t> device_time_ns;
  std::atomic<uint64_t> backlog_ns;  // estimated device time of work launched and not yet done
  std::atomic<uint32_t> waiting;     // threads that wait for the lease
  std::atomic<uint32_t> drained_sequence;  // last lease sequence this member has drained for
  std::atomic<uint64_t> launches;
  // For how long a kernel has been running that is taken for a persistent one; 0: there is none
  // (src/client/run_watch.h).
  std::atomic<uint64_t> persistent_ns;
  // When all that is launched should be done, by CLOCK_MONOTONIC (slowed down under a dilated
  // agent); kept from launch to launch, where `backlog_ns` is only as new as the helper's last
  // look. Nothing outstanding: when that was last so, or seen. An absolute time: a reader in
  // another time namespace finds it far from its own time, and goes by `backlog_ns`.
  std::atomic<int64_t> expected_end_ns;
  // 1: everything that is not proven done is proven not to have begun, for it is behind a wait or a
  // host function in its stream. The device is not kept by it.
  std::atomic<uint32_t> blocked;
  uint32_t reserved1;
  // Time since joining in which the device was not proven idle of this member's work, by its own
  // clock: from a submission to the proof that everything submitted is done. A figure for the time
  // in which nobody waits; where somebody does, the agent charges by its own clock.
  std::atomic<uint64_t> occupied_ns;
  // Line 2: what mode choice will need.
  alignas(64) std::atomic<uint64_t> synchronizations;
  std::atomic<uint64_t> copied_bytes;
  std::atomic<uint64_t> ungoverned_functions;
  // It has been so since then, by the clock of `expected_end_ns`, beyond what `occupied_ns` has of
  // it; 0: it is proven idle, or that is being written. See OccupiedNs.
  std::atomic<int64_t> occupied_since_ns;
  // The member's helper thread looks again by then, by the same clock, and is late by kLateLookNs
  // at most: else its process is stopped, or waits for a processor. 0: it has not begun to.
  std::atomic<int64_t> looks_by_ns;
  uint64_t reserved2[3];
  uint64_t reserved3[8];
};
static_assert(sizeof(DeviceUsage) == 256);

// Shorter, a thread that waits for a processor is taken to be away; longer, more of the time in
// which a process is away is taken to be used.
inline constexpr int64_t kLateLookNs = 2'000'000;

// Whether the member's helper thread should have looked by now, and has not.
inline bool IsLate(int64_t looks_by_ns, int64_t now_ns) {
  return looks_by_ns > 0 && looks_by_ns < now_ns - kLateLookNs;
}

// Time since joining in which the device was not proven idle of the member's work, until `now_ns`,
// or until its helper thread should have looked. What was not written for longer than `most_ns`, or
// by another clock, does not count.
inline uint64_t OccupiedNs(const DeviceUsage& usage, int64_t now_ns, int64_t most_ns) {
  const int64_t since_ns = usage.occupied_since_ns.load();
  const uint64_t occupied_ns = usage.occupied_ns.load();
  const bool counts = since_ns > 0 && since_ns < now_ns && since_ns >= now_ns - most_ns;
  const int64_t looks_by_ns = usage.looks_by_ns.load();
  // Writers take the first away, write the second, and put the first back, later than it was; and
  // only then write by when they look again.
  if (!counts || usage.occupied_since_ns.load() != since_ns) return occupied_ns;
  const int64_t until_ns = IsLate(looks_by_ns, now_ns) ? looks_by_ns + kLateLookNs : now_ns;
  return occupied_ns + (until_ns > since_ns ? static_cast<uint64_t>(until_ns - since_ns) : 0);
}

struct UsageFile {
  UsageHeader header;
  DeviceUsage devices[kMaxDevices];
};
static_assert(sizeof(UsageFile) == 128 + 16 * 256);

}  // namespace prorata::shm
