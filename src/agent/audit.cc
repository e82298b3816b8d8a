// The audit: what NVML shows of members against what they are charged for, every second. What is
// found beyond is charged to the share (policy/audit.h says when it is believed); a share far above
// its limit is reported, and so is a member that claims more than it was ever granted.

#include <algorithm>
#include <chrono>
#include <set>

#include "agent/node.h"
#include "agent/share_events.h"

namespace prorata::agent {
namespace {

using protocol::EventKind;
using Verdict = policy::ExcessWatch::Verdict;

constexpr auto kAuditEvery = std::chrono::seconds(1);
// Who asks for memory has the device looked at again, but no more often than this: a program that
// probes for memory must not keep the agent at NVML.
constexpr int64_t kRecheckEveryNs = 20 * kNsPerMs;
constexpr uint32_t kMissingLooks = 3;

}  // namespace

// A member on the device, with what the ledger said before the device was asked.
struct Node::Audited {
  Share* share;
  Member* member;
  uint32_t index;  // of the device in the share
  uint64_t charged_before;
};

void Node::Audit() {
  for (size_t device = 0; device < devices_.count(); ++device) {
    AuditDevice(device, false);
    for (const auto& [id, share] : shares_) {
      if (const auto index = share->IndexOf(device)) JudgeShare(*share, *index);
    }
  }
  audit_.expires_after(kAuditEvery);
  audit_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Audit();
  });
}

void Node::RecheckOverhead(Share& share, uint32_t device) {
  const int64_t now_ns = real_clock_.NowNs();
  if (share.AuditedBytes(device) == 0 || now_ns - last_recheck_ns_ < kRecheckEveryNs) return;
  last_recheck_ns_ = now_ns;
  AuditDevice(share.config().devices[device].device, true);
}

std::vector<Node::Audited> Node::MembersOn(size_t device) const {
  std::vector<Audited> members;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    for (Member* member : share->Members()) {
      if (member->departed || !member->usage) continue;
      members.push_back({share.get(), member, *index, LivingUse(member->process.pid, device)});
    }
  }
  return members;
}

void Node::AuditDevice(size_t device, bool recheck) {
  LearnIdle(device);
  const std::vector<Audited> members = MembersOn(device);
  if (members.empty()) return;
  const auto processes = devices_.Processes(device);
  bool missing = !processes;
  std::set<pid_t> seen;
  // The last share a process joined comes last: what it has beyond all its ledgers is that one's.
  for (auto at = members.rbegin(); processes && at != members.rend(); ++at) {
    const auto& [share, member, index, before] = *at;
    const pid_t pid = member->process.pid;
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
    share->SetOverhead(
        *member, index,
        recheck ? audit.Recheck(on_device, before, after) : audit.Sample(on_device, before, after));
  }
  // Once is nothing: a context is charged for before it is made.
  if (!recheck) missing_looks_[device] = missing ? missing_looks_[device] + 1 : 0;
  if (!missing || missing_looks_[device] >= kMissingLooks) AuditWhole(device, missing, recheck);
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
  if (!shared || ChargedOn(device) > 0) return;
  if (const auto memory = devices_.Memory(device)) baselines_[device].LearnIdle(memory->used_bytes);
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
  if (!missing) return;
  const uint64_t before = ChargedOn(device);
  const auto memory = devices_.Memory(device);
  if (!memory) return;
  const auto held = baselines_[device].OfMembers(memory->used_bytes);
  if (!held || with_members.size() != 1) return;
  const auto& [share, index] = with_members.front();
  policy::OverheadAudit& audit = share->audit(index).of_device;
  const uint64_t after = ChargedOn(device);
  share->SetOverhead(
      index, recheck ? audit.Recheck(*held, before, after) : audit.Sample(*held, before, after));
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
    if (!member->usage) continue;
    const uint64_t claimed = member->usage->device(index).used_bytes;
    if (on.claims.Look(claimed, std::max(limit, share.ledger(index).grant_bytes(member->slot))) ==
        Verdict::kBegan) {
      auto event = EventOf(EventKind::kFalseUsage, share, member, index);
      event.used_bytes = claimed;
      event.detail = "nobody else is given less for it";
      events_.Add(std::move(event));
    }
  }
  const Verdict verdict = share.audit(index).bypass.Look(held, honest);
  if (verdict == Verdict::kNothing) return;
  const bool began = verdict == Verdict::kBegan;
  auto event = EventOf(began ? EventKind::kBypassSuspected : EventKind::kBypassOver, share,
                       share.audit(index).figures_missing ? nullptr : worst, index);
  event.used_bytes = held;
  if (began) event.detail = "it is given nothing more; does it use the driver past prorata?";
  events_.Add(std::move(event));
}

}  // namespace prorata::agent
