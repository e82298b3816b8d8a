// The audit: what NVML shows of members against what they are charged for, every second. What is
// found beyond is charged to the share (policy/memory/audit.h says when it is believed); a share
// far above its limit is reported, and so is a member that claims more than it was ever granted:
// that is looked at ten times a second, for it is a word in memory and asks nobody.

#include <algorithm>
#include <chrono>
#include <set>

#include "agent/node/node.h"
#include "agent/share/share_events.h"

namespace prorata::agent {
namespace {

using api::EventKind;
using Verdict = policy::ExcessWatch::Verdict;

constexpr auto kAuditEvery = std::chrono::seconds(1);
// Three of twenty looks tell of a false claim: 0.3 s after one that stays, and within 3 s of one
// that changes all the time.
constexpr auto kClaimsEvery = std::chrono::milliseconds(100);
// Who asks for memory has the device looked at again, but no more often than this: a program that
// probes for memory must not keep the agent at NVML.
constexpr int64_t kRecheckEveryNs = 20 * kNsPerMs;
constexpr auto kRecheckWithin = std::chrono::milliseconds(100);
constexpr size_t kMaxRechecked = 4096;  // requests of one device that wait for it
constexpr uint32_t kMissingLooks = 3;

}  // namespace

// A member on the device, with what the ledger said before the device was asked.
struct Node::Audited {
  uint64_t share_id;
  uint32_t slot;
  ProcessId process;
  uint32_t index;  // of the device in the share
  uint64_t charged_before;
};

void Node::Audit() {
  for (size_t device = 0; device < devices_.count(); ++device) {
    if (auditing_[device]) {
      JudgeShares(device);  // by the last figures: the driver is slow
      continue;
    }
    auditing_[device] = true;
    AuditDevice(device, false, [this, device] {
      auditing_[device] = false;
      JudgeShares(device);
    });
  }
  audit_.expires_after(kAuditEvery);
  audit_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Audit();
  });
}

void Node::JudgeShares(size_t device) {
  for (const auto& [id, share] : shares_) {
    if (const auto index = share->IndexOf(device)) JudgeShare(*share, *index);
  }
}

// Overhead that the audit found a moment ago may be gone by now, or be charged as what it is. Who
// would be refused for it waits until the device was looked at again.
bool Node::RecheckedFirst(Share& share, MemoryRequests::Request& request) {
  const size_t device = share.config().devices[request.device].device;
  Recheck& recheck = rechecks_[device];
  Member* member = share.FindMember(request.slot);
  if (member == nullptr || share.AuditedBytes(request.device) == 0) return false;
  if (devices_.UnansweredNs() > 0) return false;
  if (recheck.waiting.size() >= kMaxRechecked) return false;
  const int64_t now_ns = real_clock_.NowNs();
  const bool recent = now_ns - last_recheck_ns_ < kRecheckEveryNs;
  if (recent && recheck.waiting.empty()) return false;
  const auto attempt = share.TryGrant(*member, request.device, request.needed_bytes);
  if (attempt.verdict == policy::Ledger::Verdict::kGranted) return false;
  recheck.waiting.emplace_back(share.id(), std::move(request));
  if (recheck.waiting.size() > 1) return true;
  last_recheck_ns_ = now_ns;
  // The first that waits: whatever comes of NVML, all that wait are served then.
  recheck_timer_.expires_after(kRecheckWithin);
  recheck_timer_.async_wait([this](const boost::system::error_code& stopped) {
    for (size_t i = 0; !stopped && i < rechecks_.size(); ++i) ServeRechecked(i);
  });
  if (recheck.under_way) return true;  // one that took too long for those who asked
  recheck.under_way = true;
  AuditDevice(device, true, [this, device] {
    rechecks_[device].under_way = false;
    ServeRechecked(device);
  });
  return true;
}

void Node::ServeRechecked(size_t device) {
  auto waiting = std::exchange(rechecks_[device].waiting, {});
  for (auto& [share_id, request] : waiting) {
    Share* share = Find(share_id);
    if (share != nullptr && memory_.Ask(*share, std::move(request))) ReapSoon();
  }
}

std::vector<Node::Audited> Node::MembersOn(size_t device) const {
  std::vector<Audited> members;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    for (Member* member : share->Members()) {
      if (member->departed || !member->usage) continue;
      members.push_back(
          {id, member->slot, member->process, *index, LivingUse(member->process.pid, device)});
    }
  }
  return members;
}

void Node::AuditDevice(size_t device, bool recheck, std::function<void()> then) {
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

void Node::AuditMembers(size_t device, bool recheck, const std::vector<Audited>& members,
                        const Devices::Reading<Devices::ByProcess>& reading) {
  const auto& processes = reading.value;
  bool missing = !processes;
  std::set<pid_t> seen;
  // The last share a process joined comes last: what it has beyond all its ledgers is that one's.
  for (auto at = members.rbegin(); processes && at != members.rend(); ++at) {
    const auto& [share_id, slot, process, index, before] = *at;
    Member* member = FindAgain(share_id, slot, process);
    if (member == nullptr || member->departed || !member->usage) continue;  // it has ended since
    const pid_t pid = process.pid;
    if (!seen.insert(pid).second || HasDepartedTwin(pid, device)) continue;
    const auto found = processes->find(pid);
    const bool listed = found != processes->end();
    // Without a context it is not on the device, and NVML does not list it.
    if (listed ? !found->second : member->usage->device(index).overhead_bytes > 0) {
      missing = true;
      continue;
    }
    const uint64_t on_device = listed ? *found->second : 0;
    policy::OverheadAudit& audit = member->devices[index].audit;
    const uint64_t after = LivingUse(pid, device);
    Find(share_id)->SetOverhead(
        *member, index,
        recheck ? audit.Recheck(on_device, before, after) : audit.Sample(on_device, before, after));
  }
  // Once is nothing: a context is charged for before it is made.
  if (!recheck) missing_polls_[device] = missing ? missing_polls_[device] + 1 : 0;
  if (!missing || missing_polls_[device] >= kMissingLooks) AuditWhole(device, missing, recheck);
}

// A process that became another program by exec, and whose memory of before may not be gone yet.
bool Node::HasDepartedTwin(pid_t pid, size_t device) const {
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    for (const Member* member : share->Members()) {
      if (member->departed && member->process.pid == pid && !member->devices[*index].released) {
        return true;
      }
    }
  }
  return false;
}

uint64_t Node::ChargedOn(size_t device) const {
  uint64_t sum = 0;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    for (const Member* member : share->Members()) sum += share->ChargedBytes(*member, *index);
  }
  return sum;
}

void Node::LearnIdle(size_t device) {
  bool shared = false;
  for (const auto& [id, share] : shares_) shared |= share->IndexOf(device).has_value();
  if (!shared || ChargedOn(device) > 0 || devices_.UnansweredNs() > 0) return;
  devices_.ReadMemory(device, [this, device](const Devices::Reading<driver::NvmlMemory>& reading) {
    if (!reading.value || reading.late() || ChargedOn(device) > 0) return;
    baselines_[device].LearnIdle(reading.value->used_bytes);
  });
}

// Where some member's figure is missing, the whole device's total is looked at instead, as far as
// it can be said whose it is: one share's alone.
void Node::AuditWhole(size_t device, bool missing, bool recheck) {
  std::vector<std::pair<Share*, uint32_t>> with_members;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    if (missing && !share->audit(*index).figures_missing) {
      auto event = EventOf(EventKind::kFiguresMissing, *share, nullptr, index);
      event.detail = "overhead is estimated from the device's total, while no other share is there";
      events_.Add(std::move(event));
    }
    share->audit(*index).figures_missing = missing;
    if (share->HasMembers()) with_members.emplace_back(share.get(), *index);
    if (!missing) share->SetOverhead(*index, 0);
  }
  if (!missing || with_members.size() != 1) return;
  const auto [only, its_index] = with_members.front();
  const auto then = [this, device, recheck, id = only->id(), index = its_index,
                     before =
                         ChargedOn(device)](const Devices::Reading<driver::NvmlMemory>& reading) {
    Share* share = Find(id);
    if (share == nullptr || !reading.value || reading.late()) return;
    // Another share's members came meanwhile: whose it is cannot be said any more.
    for (const auto& [other_id, other] : shares_) {
      if (other_id != id && other->IndexOf(device) && other->HasMembers()) return;
    }
    const auto held = baselines_[device].OfMembers(reading.value->used_bytes);
    if (!held) return;
    policy::OverheadAudit& audit = share->audit(index).of_device;
    const uint64_t after = ChargedOn(device);
    share->SetOverhead(
        index, recheck ? audit.Recheck(*held, before, after) : audit.Sample(*held, before, after));
  };
  devices_.ReadMemory(device, then);
}

void Node::JudgeClaims() {
  for (const auto& [id, share] : shares_) {
    for (uint32_t index = 0; index < share->config().devices.size(); ++index) {
      for (Member* member : share->Members()) JudgeClaim(*share, *member, index);
    }
  }
  claims_.expires_after(kClaimsEvery);
  claims_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) JudgeClaims();
  });
}

void Node::JudgeClaim(Share& share, Member& member, uint32_t index) {
  if (!member.usage) return;
  const uint64_t limit = share.config().devices[index].memory_bytes;
  const uint64_t granted = share.ledger(index).grant_bytes(member.slot);
  const uint64_t claimed = member.usage->device(index).used_bytes;
  if (member.devices[index].claims.Poll(claimed, std::max(limit, granted)) != Verdict::kBegan)
    return;
  auto event = EventOf(EventKind::kFalseUsage, share, &member, index);
  event.used_bytes = claimed;
  event.detail = "nobody else is given less for it";
  events_.Add(std::move(event));
}

void Node::JudgeShare(Share& share, uint32_t index) {
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
  const Verdict verdict = share.audit(index).bypass.Poll(held, honest);
  if (verdict == Verdict::kNothing) return;
  const bool began = verdict == Verdict::kBegan;
  auto event = EventOf(began ? EventKind::kBypassSuspected : EventKind::kBypassOver, share,
                       share.audit(index).figures_missing ? nullptr : worst, index);
  event.used_bytes = held;
  if (began) event.detail = "it is given nothing more; does it use the driver past prorata?";
  events_.Add(std::move(event));
}

}  // namespace prorata::agent
