#include "policy/placement/tournament.h"

#include <algorithm>
#include <bit>

namespace prorata::policy::placement {

Tournament::Tournament(std::span<const uint32_t> tie_ranks)
    : tie_ranks_(tie_ranks),
      leaves_(std::bit_ceil(std::max<uint32_t>(1, static_cast<uint32_t>(tie_ranks.size())))),
      scores_(tie_ranks.size(), kAbsent),
      winners_(size_t{2} * leaves_, kNobody) {
  for (uint32_t i = 0; i < tie_ranks.size(); ++i) winners_[leaves_ + i] = i;
  Replay();
}

uint32_t Tournament::Better(uint32_t a, uint32_t b) const {
  if (a == kNobody) return b;
  if (b == kNobody) return a;
  if (scores_[a] != scores_[b]) return scores_[a] < scores_[b] ? a : b;
  return tie_ranks_[a] < tie_ranks_[b] ? a : b;
}

std::optional<uint32_t> Tournament::Present(uint32_t winner) const {
  if (winner == kNobody || scores_[winner] == kAbsent) return std::nullopt;
  return winner;
}

void Tournament::Set(uint32_t contestant, int64_t score) {
  if (scores_[contestant] == score) return;
  scores_[contestant] = score;
  for (uint32_t at = (leaves_ + contestant) / 2; at >= 1; at /= 2) {
    const uint32_t before = winners_[at];
    ++matches_;
    winners_[at] = Better(winners_[size_t{2} * at], winners_[size_t{2} * at + 1]);
    if (winners_[at] == before && before != contestant) return;
  }
}

void Tournament::Replay() {
  for (uint32_t at = leaves_ - 1; at >= 1; --at) {
    winners_[at] = Better(winners_[size_t{2} * at], winners_[size_t{2} * at + 1]);
  }
}

std::optional<uint32_t> Tournament::BestExcept(uint32_t contestant) const {
  uint32_t best = kNobody;
  for (uint32_t at = leaves_ + contestant; at > 1; at /= 2) best = Better(best, winners_[at ^ 1]);
  return Present(best);
}

Tournament::Walk::Walk(const Tournament& tournament) : tournament_(&tournament) { Push(1); }

void Tournament::Walk::Push(uint32_t at) {
  const uint32_t winner = tournament_->winners_[at];
  if (!tournament_->Present(winner)) return;
  heap_.push_back({at, winner});
  std::push_heap(heap_.begin(), heap_.end(), [this](const Entry& a, const Entry& b) {
    return tournament_->Better(a.winner, b.winner) != a.winner;
  });
}

std::optional<uint32_t> Tournament::Walk::Next() {
  if (heap_.empty()) return std::nullopt;
  std::pop_heap(heap_.begin(), heap_.end(), [this](const Entry& a, const Entry& b) {
    return tournament_->Better(a.winner, b.winner) != a.winner;
  });
  const Entry entry = heap_.back();
  heap_.pop_back();
  // Down the winner's path; the losers of its matches are what comes next.
  for (uint32_t at = entry.at; at < tournament_->leaves_;) {
    const bool left = tournament_->winners_[size_t{2} * at] == entry.winner;
    Push(2 * at + (left ? 1 : 0));
    at = 2 * at + (left ? 0 : 1);
  }
  return entry.winner;
}

}  // namespace prorata::policy::placement
