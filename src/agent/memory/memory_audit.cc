#include "agent/memory/memory_audit.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "agent/memory/charges.h"
#include "agent/share/share_events.h"

namespace prorata::agent {
namespace {

using api::EventKind;
using AuditVerdict = policy::ExcessWatch::Verdict;

constexpr auto kAuditEvery = std::chrono::seconds(1);
constexpr uint32_t kMissingLooks = 3;

}  // namespace

// A member on the device, with what the ledger said before the device was asked.
struct MemoryAudit::Audited {
  uint64_t share_id;
  uint32_t slot;
  ProcessId process;
  uint32_t index;  // of the device in the share
  uint64_t charged_before;
};

MemoryAudit::MemoryAudit(boost::asio::io_context& loop, const Shares& shares, Devices& devices,
                         Events& events)
    : shares_(shares), devices_(devices), events_(events), on_(devices.count()), timer_(loop) {}

void MemoryAudit::Poll() {
  for (size_t device = 0; device < devices_.count(); ++device) {
    if (on_[device].under_way) {
      JudgeShares(device);  // by the last figures: the driver is slow
      continue;
    }
    on_[device].under_way = true;
    Audit(device, false, [this, device] {
      on_[device].under_way = false;
      JudgeShares(device);
    });
  }
  timer_.expires_after(kAuditEvery);
  timer_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Poll();
  });
}

std::vector<MemoryAudit::Audited> MemoryAudit::MembersOn(size_t device) const {
  std::vector<Audited> members;
  for (const auto& [share, index] : shares_.On(device)) {
    for (const Member* member : share->Members()) {
      if (member->departed || !member->usage) continue;
      members.push_back({share->id(), member->slot, member->process, index,
                         ChargedToLiving(shares_, member->process.pid, device)});
    }
  }
  return members;
}

void MemoryAudit::Audit(size_t device, bool recheck, std::function<void()> then) {
  LearnIdle(device);
  std::vector<Audited> members = MembersOn(device);
  if (members.empty()) return then();
  devices_.ReadProcesses(
      device, [this, device, recheck, members = std::move(members),
               then = std::move(then)](const Devices::Reading<Devices::ByProcess>& reading) {
        AuditMembers(device, recheck, members, reading);
        then();
      });
}

void MemoryAudit::AuditMembers(size_t device, bool recheck, const std::vector<Audited>& members,
                               const Devices::Reading<Devices::ByProcess>& reading) {
  const auto& processes = reading.value;
  bool missing = !processes;
  std::set<pid_t> seen;
  // The last share a process joined comes last: what it has beyond all its ledgers is that one's.
  for (auto at = members.rbegin(); processes && at != members.rend(); ++at) {
    const auto& [share_id, slot, process, index, before] = *at;
    Member* member = shares_.FindMember(share_id, slot, process);
    if (member == nullptr || member->departed || !member->usage) continue;  // it has ended since
    const pid_t pid = process.pid;
    if (!seen.insert(pid).second || HasDepartedTwin(shares_, pid, device)) continue;
    const auto found = processes->find(pid);
    const bool listed = found != processes->end();
    // Without a context it is not on the device, and NVML does not list it.
    if (listed ? !found->second : member->usage->device(index).overhead_bytes > 0) {
      missing = true;
      continue;
    }
    const uint64_t on_device = listed ? *found->second : 0;
    policy::OverheadAudit& audit = member->devices[index].audit;
    const uint64_t after = ChargedToLiving(shares_, pid, device);
    shares_.Find(share_id)->SetOverhead(
        *member, index,
        recheck ? audit.Recheck(on_device, before, after) : audit.Sample(on_device, before, after));
  }
  // Once is nothing: a context is charged for before it is made.
  uint32_t& polls = on_[device].missing_polls;
  if (!recheck) polls = missing ? polls + 1 : 0;
  if (!missing || polls >= kMissingLooks) AuditWhole(device, missing, recheck);
}

void MemoryAudit::LearnIdle(size_t device) {
  if (shares_.On(device).empty() || ChargedOn(shares_, device) > 0) return;
  if (devices_.UnansweredNs() > 0) return;
  devices_.ReadMemory(device, [this, device](const Devices::Reading<driver::NvmlMemory>& reading) {
    if (!reading.value || reading.late() || ChargedOn(shares_, device) > 0) return;
    on_[device].baseline.LearnIdle(reading.value->used_bytes);
  });
}

void MemoryAudit::SetMissing(size_t device, bool missing) {
  for (const auto& [share, index] : shares_.On(device)) {
    if (missing && !share->audit(index).figures_missing) {
      auto event = EventOf(EventKind::kFiguresMissing, *share, nullptr, index);
      event.detail = "overhead is estimated from the device's total, while no other share is there";
      events_.Add(std::move(event));
    }
    share->audit(index).figures_missing = missing;
    if (!missing) share->SetOverhead(index, 0);
  }
}

// Where some member's figure is missing, the whole device's total is looked at instead, as far as
// it can be said whose it is: one share's alone.
void MemoryAudit::AuditWhole(size_t device, bool missing, bool recheck) {
  SetMissing(device, missing);
  if (!missing) return;
  const Share* only = nullptr;
  for (const auto& [share, index] : shares_.On(device)) {
    if (!share->HasMembers()) continue;
    if (only != nullptr) return;
    only = share;
  }
  if (only == nullptr) return;
  devices_.ReadMemory(device,
                      [this, device, recheck, id = only->id(), before = ChargedOn(shares_, device)](
                          const Devices::Reading<driver::NvmlMemory>& reading) {
                        OnTotal(device, recheck, id, before, reading);
                      });
}

void MemoryAudit::OnTotal(size_t device, bool recheck, uint64_t share_id, uint64_t before,
                          const Devices::Reading<driver::NvmlMemory>& reading) {
  Share* share = shares_.Find(share_id);
  if (share == nullptr || !reading.value || reading.late()) return;
  // Another share's members came meanwhile: whose it is cannot be said any more.
  for (const auto& [other, its_index] : shares_.On(device)) {
    if (other != share && other->HasMembers()) return;
  }
  const auto held = on_[device].baseline.OfMembers(reading.value->used_bytes);
  if (!held) return;
  const uint32_t index = *share->IndexOf(device);
  policy::OverheadAudit& audit = share->audit(index).of_device;
  const uint64_t after = ChargedOn(shares_, device);
  share->SetOverhead(
      index, recheck ? audit.Recheck(*held, before, after) : audit.Sample(*held, before, after));
}

void MemoryAudit::JudgeShares(size_t device) {
  for (const auto& [share, index] : shares_.On(device)) JudgeShare(*share, index);
}

void MemoryAudit::JudgeShare(Share& share, uint32_t index) {
  const uint64_t limit = share.config().devices[index].memory_bytes;
  const uint64_t audited = share.AuditedBytes(index);
  const uint64_t held = share.UsedBytes(index) + share.DepartedBytes(index);
  // A limit that was lowered below use is nobody's fault: only what was found beyond the ledger
  // makes a suspicion.
  const uint64_t honest = std::max(limit, held - std::min(held, audited));
  const Member* worst = nullptr;
  for (Member* member : share.Members()) {
    Member::OnDevice& on = member->devices[index];
    const bool more = worst == nullptr ||
                      on.audit.overhead_bytes() > worst->devices[index].audit.overhead_bytes();
    if (more && !member->departed) worst = member;
  }
  const AuditVerdict verdict = share.audit(index).bypass.Poll(held, honest);
  if (verdict == AuditVerdict::kNothing) return;
  const bool began = verdict == AuditVerdict::kBegan;
  auto event = EventOf(began ? EventKind::kBypassSuspected : EventKind::kBypassOver, share,
                       share.audit(index).figures_missing ? nullptr : worst, index);
  event.used_bytes = held;
  if (began) event.detail = "it is given nothing more; does it use the driver past prorata?";
  events_.Add(std::move(event));
}

}  // namespace prorata::agent
