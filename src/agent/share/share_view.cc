// What a share shows of itself in the limits file, for whoever asks in it what a GPU is: its
// processes, where to see what they use, and how busy it keeps its devices.

#include <algorithm>

#include "agent/share/share.h"

namespace prorata::agent {
namespace {

constexpr uint64_t kOne = 1'000'000;
constexpr uint64_t kMaxLateNs = 10'000'000'000;

// A member's device time grows when its work ends, by seconds at once if a kernel ran for seconds.
// What is shown follows it no faster than time itself, so that such a program shows as busy and not
// as a peak between idle times; it is late by as much. Answers the step.
uint64_t Follow(uint64_t device_time_ns, uint64_t elapsed_ns, uint64_t* shown_ns) {
  if (device_time_ns < *shown_ns) *shown_ns = device_time_ns;
  if (device_time_ns - *shown_ns > kMaxLateNs) *shown_ns = device_time_ns - kMaxLateNs;
  const uint64_t step = std::min(device_time_ns - *shown_ns, elapsed_ns);
  *shown_ns += step;
  return step;
}

}  // namespace

void Share::PublishProcess(const Member& member, uint32_t inner_pid) {
  shm::MemberRow& row = limits_->members[member.slot];
  for (std::atomic<uint32_t>& busy : row.busy_ppm) busy = 0;
  row.usage_serial = 0;
  row.start_ticks = member.process.start_ticks;
  if (inner_pid == 0) inner_pid = static_cast<uint32_t>(InnerPidOf(member.process.pid));
  row.inner_pid = inner_pid;
  row.host_pid = static_cast<uint32_t>(member.process.pid);  // last: now the slot is taken
  std::atomic<uint32_t>& end = limits_->header.members_end;
  end = std::max(end.load(), member.slot + 1);
}

// The epoch is part of the number, so no agent gives one that an earlier agent gave.
void Share::PublishUsage(const Member& member) {
  const uint64_t serial = limits_->header.epoch << 32 | usage_count_;
  limits_->members[member.slot].usage_serial = member.usage ? serial : 0;
}

void Share::PublishGone(uint32_t slot) {
  shm::MemberRow& row = limits_->members[slot];
  row.usage_serial = 0;
  row.host_pid = 0;  // first: the slot is free
  row.inner_pid = 0;
  row.start_ticks = 0;
  row.departed = 0;
  for (std::atomic<uint64_t>& overhead : row.overhead_bytes) overhead = 0;
  uint32_t end = limits_->header.members_end;
  while (end > 0 && limits_->members[end - 1].host_pid == 0) --end;
  limits_->header.members_end = end;
}

// A dead member charges nothing any more: what it did not use can serve others at once, and its
// grant is from here on what it still has on the device.
void Share::DropSlack(Member& member, uint32_t device) {
  if (!member.usage) return;
  const uint64_t used = member.usage->device(device).used_bytes.load();
  const uint64_t grant = ledgers_[device].grant_bytes(member.slot);
  const uint64_t kept = std::min(used, grant);
  GrantWord(member.slot, device) = ledgers_[device].FinishRecall(member.slot, kept, kept);
  PublishGranted(device);
}

void Share::PublishUtilization(int64_t elapsed_ns) {
  if (elapsed_ns <= 0) return;
  const auto elapsed = static_cast<uint64_t>(elapsed_ns);
  for (uint32_t device = 0; device < device_count(); ++device) {
    const uint64_t total_ns = times_[device].BusyNs();
    for (const auto& member : members_) {
      if (member == nullptr) continue;
      BusyParts& parts = member->devices[device].parts;
      const uint64_t own_ns = times_[device].MemberTime(member->slot);
      parts.Add(Follow(own_ns, elapsed, &member->devices[device].shown_ns) * kOne / elapsed);
      limits_->members[member->slot].busy_ppm[device] = parts.Mean();
    }
    shm::Utilization& out = limits_->utilization[device];
    const uint64_t number = out.samples.load();
    const uint64_t busy_ns = Follow(total_ns, elapsed, &shown_ns_[device]);
    out.busy_ppm[number % shm::kUtilizationSamples] =
        static_cast<uint32_t>(busy_ns * kOne / elapsed);
    out.samples = number + 1;
  }
}

}  // namespace prorata::agent
