#include "policy/memory/ledger.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace prorata::policy {
namespace {

// How much a grant grows at once while there is room: enough that a program asks seldom, little
// enough that sixteen members can each hold a chunk of slack before anything must be recalled.
uint64_t Chunk(uint64_t limit_bytes) { return std::min<uint64_t>(64 * kMiB, limit_bytes / 16); }

}  // namespace

Ledger::Ledger(uint64_t limit_bytes, uint32_t slots) : limit_bytes_(limit_bytes), slots_(slots) {}

void Ledger::Admit(uint32_t slot, uint64_t grant_bytes) {
  PRORATA_CHECK(slots_[slot].state == SlotState::kFree);
  slots_[slot] = {SlotState::kAlive, grant_bytes};
  granted_bytes_ += grant_bytes;
}

void Ledger::Depart(uint32_t slot) {
  PRORATA_CHECK(slots_[slot].state == SlotState::kAlive);
  slots_[slot].state = SlotState::kDeparted;
}

uint64_t Ledger::Release(uint32_t slot) {
  PRORATA_CHECK(slots_[slot].state == SlotState::kDeparted);
  const uint64_t returned = slots_[slot].grant_bytes;
  granted_bytes_ -= returned;
  slots_[slot] = {};
  return returned;
}

uint64_t Ledger::Slack(uint32_t slot, std::span<const uint64_t> used) const {
  const Slot& s = slots_[slot];
  if (s.state != SlotState::kAlive || used[slot] >= s.grant_bytes) return 0;
  return s.grant_bytes - used[slot];
}

Ledger::Decision Ledger::Request(uint32_t slot, uint64_t needed_bytes,
                                 std::span<const uint64_t> used) {
  Slot& own = slots_[slot];
  PRORATA_CHECK(own.state == SlotState::kAlive);
  PRORATA_CHECK(used.size() == slots_.size());
  if (needed_bytes <= own.grant_bytes) return {Verdict::kGranted, own.grant_bytes, {}, 0};
  if (needed_bytes > limit_bytes_) return {Verdict::kRefused, own.grant_bytes, {}, 0};

  const uint64_t more = needed_bytes - own.grant_bytes;
  const uint64_t bound = ceiling_bytes();
  const uint64_t room = granted_bytes_ > bound ? 0 : bound - granted_bytes_;
  if (more <= room) {
    const uint64_t grow = std::max(more, std::min(Chunk(limit_bytes_), room));
    own.grant_bytes += grow;
    granted_bytes_ += grow;
    return {Verdict::kGranted, own.grant_bytes, {}, 0};
  }

  // Whom to recall: the largest slack first, and no more members than it takes.
  std::vector<std::pair<uint64_t, uint32_t>> slack;
  for (uint32_t i = 0; i < slots(); ++i) {
    if (i == slot) continue;
    if (const uint64_t bytes = Slack(i, used); bytes > 0) slack.emplace_back(bytes, i);
  }
  std::sort(slack.begin(), slack.end(), std::greater<>());
  Decision decision{Verdict::kRecall, own.grant_bytes, {}, 0};
  uint64_t sum_after = granted_bytes_ + more;  // both below 2^64: a grant never passes a limit
  for (const auto& [bytes, i] : slack) {
    if (sum_after <= bound) break;
    decision.recall.push_back(i);
    sum_after -= bytes;
  }
  if (sum_after > limit_bytes_) return {Verdict::kRefused, own.grant_bytes, {}, 0};
  if (sum_after > bound) {
    decision.verdict = Verdict::kBeyond;
    decision.sum_bytes = std::min(granted_bytes_ + more, limit_bytes_);
  }
  return decision;
}

std::vector<uint32_t> Ledger::RecallsOverLimit(std::span<const uint64_t> used) const {
  std::vector<uint32_t> recall;
  if (!OverLimit()) return recall;
  for (uint32_t i = 0; i < slots(); ++i) {
    if (Slack(i, used) > 0) recall.push_back(i);
  }
  return recall;
}

uint64_t Ledger::RecallTarget(uint32_t slot, uint64_t used_bytes) const {
  return std::min(used_bytes, slots_[slot].grant_bytes);
}

uint64_t Ledger::FinishRecall(uint32_t slot, uint64_t target_bytes, uint64_t used_after_bytes) {
  Slot& s = slots_[slot];
  // The use may stand above the grant for a moment: a charge that compared itself with an older,
  // larger grant and is about to back out. It must not raise the grant, or the sum would grow.
  const uint64_t kept =
      std::clamp(used_after_bytes, std::min(target_bytes, s.grant_bytes), s.grant_bytes);
  granted_bytes_ -= s.grant_bytes - kept;
  s.grant_bytes = kept;
  return kept;
}

void Ledger::Move(uint32_t from, uint32_t to, uint64_t bytes) {
  Slot& source = slots_[from];
  const uint64_t moved = std::min(bytes, source.grant_bytes);
  source.grant_bytes -= moved;
  slots_[to].grant_bytes += moved;
}

void Ledger::Acknowledge(uint32_t slot, uint64_t bytes) {
  bytes = std::min(bytes, limit_bytes_);
  slots_[slot].grant_bytes += bytes;
  granted_bytes_ += bytes;
}

}  // namespace prorata::policy
