// The memory of a share: what policy::Ledger decides, done to the limits file.

#include "agent/share/share.h"

#include "base/clock.h"

namespace prorata::agent {
namespace {

// A member whose use changes all the time could keep a request in recalls; after so many rounds the
// share counts as full.
constexpr int kMaxGrantRounds = 64;

}  // namespace

std::atomic<uint64_t>& Share::GrantWord(uint32_t slot, uint32_t device) const {
  return limits_->grants[slot].bytes[device];
}

std::vector<uint64_t> Share::UsedBySlot(uint32_t device) const {
  std::vector<uint64_t> used(kMaxMembers, policy::Ledger::kUnknownUse);
  for (const auto& member : members_) {
    if (member == nullptr || !member->usage) continue;
    used[member->slot] = member->usage->device(device).used_bytes.load();
  }
  return used;
}

Share::Attempt Share::TryGrant(Member& member, uint32_t device, uint64_t needed_bytes) {
  using Verdict = policy::Ledger::Verdict;
  policy::Ledger& ledger = ledgers_[device];
  if (member.departed) return {};
  // A grant from before the limit was lowered says nothing: what is not used of it goes first.
  RecallOverLimit(device);
  for (int round = 0; round < kMaxGrantRounds; ++round) {
    const auto decision = ledger.Request(member.slot, needed_bytes, UsedBySlot(device));
    switch (decision.verdict) {
      case Verdict::kGranted:
        GrantWord(member.slot, device).store(decision.grant_bytes);
        PublishGranted(device);
        return {Verdict::kGranted, 0, false};
      case Verdict::kRefused:
        return {};
      case Verdict::kBeyond:
        return {Verdict::kBeyond, decision.sum_bytes, !decision.recall.empty()};
      case Verdict::kRecall:
        for (const uint32_t slot : decision.recall) Recall(slot, device);
    }
  }
  return {};
}

void Share::RecallSlack(uint32_t device) {
  for (const auto& member : members_) {
    if (member == nullptr || !member->usage) continue;
    const uint64_t used = member->usage->device(device).used_bytes.load();
    Member::OnDevice& on = member->devices[device];
    if (used >= on.kept_bytes || RealClock().NowNs() >= on.kept_until_ns) on.kept_bytes = 0;
    if (on.kept_bytes > 0) continue;
    if (used < ledgers_[device].grant_bytes(member->slot)) Recall(member->slot, device);
  }
}

void Share::MoveGrant(uint32_t from, uint32_t to, uint32_t device, uint64_t bytes) {
  policy::Ledger& ledger = ledgers_[device];
  if (members_[to] == nullptr || members_[from] == nullptr) return;
  if (from == to) {
    ledger.Acknowledge(to, bytes);
  } else {
    ledger.Move(from, to, bytes);
  }
  // The lower one first. `from` still has the bytes in its `used`, so until it is asked to
  // uncharge it can charge no more than before.
  GrantWord(from, device).store(ledger.grant_bytes(from));
  GrantWord(to, device).store(ledger.grant_bytes(to));
  PublishGranted(device);
}

void Share::RecallOverLimit(uint32_t device) {
  if (!ledgers_[device].OverLimit()) return;
  for (const uint32_t slot : ledgers_[device].RecallsOverLimit(UsedBySlot(device))) {
    Recall(slot, device);
  }
}

// A1 to A3 of usage_file.h. The note of the recall in the limits file is for an agent that follows
// us when we are killed between two of these lines: it must not take the lowered grant for the true
// one.
void Share::Recall(uint32_t slot, uint32_t device) {
  policy::Ledger& ledger = ledgers_[device];
  const Member* member = members_[slot].get();
  if (member == nullptr || !member->usage) return;
  const std::atomic<uint64_t>& used = member->usage->device(device).used_bytes;
  shm::DeviceLimits& limits = limits_->devices[device];
  const uint64_t target = ledger.RecallTarget(slot, used.load());
  limits.recall_previous_bytes.store(ledger.grant_bytes(slot));
  limits.recall_slot_plus_one.store(slot + 1);
  GrantWord(slot, device).store(target);  // A1, and with A2 sequentially consistent
  const uint64_t kept = ledger.FinishRecall(slot, target, used.load());  // A2
  GrantWord(slot, device).store(kept);                                   // A3
  limits.recall_slot_plus_one.store(0);
  PublishGranted(device);
}

void Share::PublishGranted(uint32_t device) {
  limits_->devices[device].granted_bytes.store(ledgers_[device].granted_bytes() +
                                               AuditedBytes(device));
}

uint64_t Share::UsedBytes(uint32_t device) const {
  uint64_t sum = 0;
  for (const auto& member : members_) {
    if (member == nullptr || member->departed) continue;
    sum += UsedBytes(*member, device);
  }
  return sum + limits_->devices[device].overhead_bytes;
}

uint64_t Share::UsedBytes(const Member& member, uint32_t device) const {
  return ChargedBytes(member, device) + OverheadWord(member, device);
}

uint64_t Share::ChargedBytes(const Member& member, uint32_t device) const {
  const uint64_t grant = ledgers_[device].grant_bytes(member.slot);
  // No more than the grant is believed: the word may hold anything.
  return member.usage ? std::min(member.usage->device(device).used_bytes.load(), grant) : grant;
}

uint64_t Share::OverheadBytes(uint32_t device) const {
  uint64_t sum = 0;
  for (const auto& member : members_) {
    if (member == nullptr || member->departed) continue;
    sum += OverheadWord(*member, device);
    if (!member->usage) continue;
    const shm::DeviceUsage& usage = member->usage->device(device);
    sum += std::min({usage.overhead_bytes.load(), usage.used_bytes.load(),
                     ledgers_[device].grant_bytes(member->slot)});
  }
  return sum + limits_->devices[device].overhead_bytes;
}

uint64_t Share::DepartedBytes(uint32_t device) const {
  uint64_t sum = 0;
  for (const auto& member : members_) {
    if (member == nullptr || !member->departed) continue;
    sum += ledgers_[device].grant_bytes(member->slot) + OverheadWord(*member, device);
  }
  return sum;
}

void Share::SetOverhead(Member& member, uint32_t device, uint64_t bytes) {
  if (OverheadWord(member, device).exchange(bytes) == bytes) return PublishGranted(device);
  ApplyLimit(device);
}

void Share::SetOverhead(uint32_t device, uint64_t bytes) {
  if (limits_->devices[device].overhead_bytes.exchange(bytes) != bytes) ApplyLimit(device);
}

uint64_t Share::AuditedBytes(uint32_t device) const {
  uint64_t sum = limits_->devices[device].overhead_bytes;
  for (const auto& member : members_) {
    if (member != nullptr) sum += OverheadWord(*member, device);
  }
  return sum;
}

// What the audit found is not there to be granted: the ledger divides the rest. A limit below what
// is granted takes back all slack, and nothing grows before use has fallen.
void Share::ApplyLimit(uint32_t device) {
  const uint64_t limit = config_.devices[device].memory_bytes;
  const uint64_t audited = AuditedBytes(device);
  ledgers_[device].SetLimit(limit > audited ? limit - audited : 0);
  RecallOverLimit(device);
  PublishGranted(device);
}

}  // namespace prorata::agent
