#include "agent/leases.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>

#include "base/clock.h"

namespace prorata::agent {
namespace {

using policy::TimeSharing;

constexpr size_t kSamples = 11;  // a second of tenths
constexpr int kRounds = 4;       // a closing may be drained at once, which may open another at once

uint32_t SequenceOf(const Share& share, uint32_t index) {
  return share.limits()->devices[index].lease.load() >> protocol::kLeaseSequenceShift;
}

// Can it have launched here? Who has no context has no helper thread to say anything, and nothing
// to say. `launches` alone comes late: the helper thread writes it when it next looks.
bool Engaged(const protocol::DeviceUsage& usage) {
  return usage.overhead_bytes.load() > 0 || usage.launches.load() > 0 ||
         usage.backlog_ns.load() > 0;
}

// `late`: the share was passed over. Then a member that says nothing and has nothing queued (it is
// stopped, say) no longer keeps the others of its share from their turns, if one of them has
// drained.
bool AllDrained(const Share& share, uint32_t index, bool late) {
  const uint32_t sequence = SequenceOf(share, index);
  bool any_drained = false;
  bool any_silent = false;
  for (const Member* member : share.Members()) {
    if (member->departed) continue;
    if (!member->usage) return false;  // not heard of since the agent started
    const protocol::DeviceUsage& usage = member->usage->device(index);
    if (!Engaged(usage)) continue;
    if (usage.drained_sequence.load() == sequence ||
        member->devices[index].drained_sequence == sequence) {
      any_drained = true;
    } else if (late && usage.backlog_ns.load() == 0) {
      any_silent = true;
    } else {
      return false;
    }
  }
  return !any_silent || any_drained;
}

// Every member that ever launched has said under this very lease that it is idle, and has not
// launched since. A share whose members have launched nothing yet is about to.
bool AllIdle(const Share& share, uint32_t index) {
  const uint32_t sequence = SequenceOf(share, index);
  bool any_living = false;
  bool any_idle = false;
  for (const Member* member : share.Members()) {
    if (member->departed) continue;
    any_living = true;
    if (!member->usage) return false;
    const protocol::DeviceUsage& usage = member->usage->device(index);
    if (usage.waiting.load() > 0) return false;
    if (!Engaged(usage)) continue;
    const Member::OnDevice& on = member->devices[index];
    if (on.idle_sequence != sequence || usage.backlog_ns.load() > 0 ||
        usage.launches.load() != on.idle_launches) {
      return false;
    }
    any_idle = true;
  }
  return any_idle || !any_living;
}

void WakeAll(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Leases::Leases(boost::asio::io_context& loop, size_t devices) {
  for (size_t i = 0; i < devices; ++i) devices_.push_back(std::make_unique<Device>(loop));
}

void Leases::Add(Share& share) {
  const int64_t now_ns = RealClock().NowNs();
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    const DeviceOfShare& on = share.config().devices[i];
    Device& device = *devices_[on.device];
    device.shares[share.id()] = &share;
    device.sharing.Add(share.id(), on.compute, share.ReadChargedTime(i), now_ns);
    // An adopted share may still have its lease from the last agent. It begins anew, closed; who
    // waits or runs says so when it has joined again.
    Apply(device, on.device, {share.id(), false, false});
    Touch(on.device);
  }
}

void Leases::Remove(Share& share) {
  for (const DeviceOfShare& on : share.config().devices) {
    Device& device = *devices_[on.device];
    device.sharing.Remove(share.id(), RealClock().NowNs());
    device.shares.erase(share.id());
    Touch(on.device);
  }
}

void Leases::TouchAll(const Share& share) {
  for (const DeviceOfShare& on : share.config().devices) Touch(on.device);
}

void Leases::Touch(size_t number) {
  Device& device = *devices_[number];
  TimeSharing::Decisions decisions;
  int64_t now_ns = 0;
  for (int round = 0; round < kRounds; ++round) {
    now_ns = RealClock().NowNs();
    TellWhatIsSeen(device, number, now_ns);
    decisions = device.sharing.Decide(now_ns);
    for (const TimeSharing::Lease& lease : decisions.changes) Apply(device, number, lease);
    if (decisions.changes.empty()) break;
  }
  Arm(device, number, decisions.next_ns, now_ns);
}

void Leases::TellWhatIsSeen(Device& device, size_t number, int64_t now_ns) {
  for (const auto& [id, share] : device.shares) {
    const uint32_t index = *share->IndexOf(number);
    device.sharing.Report(id, share->ReadChargedTime(index),
                          static_cast<int64_t>(share->BacklogNs(index)));
  }
  for (const auto& [id, share] : device.shares) {
    const uint32_t index = *share->IndexOf(number);
    const uint32_t word = share->limits()->devices[index].lease.load();
    if ((word & protocol::kLeaseOpen) != 0) {
      const bool contended = (word & protocol::kLeaseContended) != 0;
      if ((contended && AllIdle(*share, index)) || share->CountLiving() == 0) {
        device.sharing.Idle(id, now_ns);
      }
      continue;
    }
    if (device.sharing.Draining(id) &&
        AllDrained(*share, index, device.sharing.State(id).passed_over)) {
      device.sharing.Drained(id, now_ns);
    }
    if (share->AnyWaiting(index)) device.sharing.Wanted(id, now_ns);
  }
}

void Leases::Apply(Device& device, size_t number, const TimeSharing::Lease& lease) {
  Share& share = *device.shares.at(lease.share);
  const uint32_t index = *share.IndexOf(number);
  std::atomic<uint32_t>& word = share.limits()->devices[index].lease;
  const uint32_t sequence = SequenceOf(share, index) + 1;
  word.store((sequence << protocol::kLeaseSequenceShift) | (lease.open ? protocol::kLeaseOpen : 0) |
             (lease.contended ? protocol::kLeaseContended : 0));
  WakeAll(word);  // launching threads; the message is for the helper threads
  for (const Member* member : share.Members()) {
    if (member->connection == nullptr) continue;
    member->connection->SendMessage(protocol::MessageType::kLeaseChanged,
                                    protocol::LeaseEvent{index, sequence});
  }
}

void Leases::Arm(Device& device, size_t number, int64_t next_ns, int64_t now_ns) {
  device.timer.cancel();
  if (next_ns == TimeSharing::kNever) return;
  device.timer.expires_after(std::chrono::nanoseconds(std::max<int64_t>(1, next_ns - now_ns)));
  device.timer.async_wait([this, number](const boost::system::error_code& stopped) {
    if (!stopped) Touch(number);
  });
}

void Leases::Idle(Share& share, Member& member, uint32_t index, uint32_t sequence) {
  if (!member.usage) return;
  Member::OnDevice& on = member.devices[index];
  on.idle_sequence = sequence;
  on.idle_launches = member.usage->device(index).launches.load();
  Touch(share.config().devices[index].device);
}

void Leases::Drained(Share& share, Member& member, uint32_t index, uint32_t sequence) {
  member.devices[index].drained_sequence = sequence;
  Touch(share.config().devices[index].device);
}

void Leases::Tick() {
  const int64_t now_ns = RealClock().NowNs();
  for (size_t number = 0; number < devices_.size(); ++number) {
    Device& device = *devices_[number];
    if (device.shares.empty()) {
      device.samples.clear();
      continue;
    }
    Sample& sample = device.samples.emplace_back();
    sample.when_ns = now_ns;
    for (const auto& [id, share] : device.shares) {
      sample.device_time_ns[id] = share->ReadChargedTime(*share->IndexOf(number));
    }
    if (device.samples.size() > kSamples) device.samples.pop_front();
    Touch(number);
  }
}

void Leases::Describe(Share& share, uint32_t index, protocol::ShareDevice& out) {
  const size_t number = share.config().devices[index].device;
  Device& device = *devices_[number];
  const TimeSharing::ShareState state = device.sharing.State(share.id());
  out.entitled = state.entitled;
  out.open = state.open;
  out.waiting = state.wanting;
  out.passed_over = state.passed_over;
  out.device_time_ns = share.ReadDeviceTime(index);
  if (device.samples.empty()) return;
  uint64_t own = 0;
  uint64_t all = 0;
  const Sample& first = device.samples.front();
  for (const auto& [id, other] : device.shares) {
    const auto then = first.device_time_ns.find(id);
    const uint64_t now = other->ReadChargedTime(*other->IndexOf(number));
    const uint64_t passed = now - (then == first.device_time_ns.end() ? 0 : then->second);
    all += passed;
    if (id == share.id()) own = passed;
  }
  out.achieved = all == 0 ? 0 : static_cast<double>(own) / static_cast<double>(all);
}

}  // namespace prorata::agent
