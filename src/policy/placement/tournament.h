#pragma once

// The least of many scores, kept while single ones change.
//
// A binary tree of matches: each inner node holds the contestant with the lower score of its two
// halves, and of equal ones the one with the lower tie rank. A change replays the matches from its
// leaf up, and stops where the winner neither was nor is the one that changed: log2(n) matches at
// most, mostly one or two.
//
// 12 to 16 bytes a contestant. Not thread-safe.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace prorata::policy::placement {

class Tournament {
 public:
  // No contestant: what does not fit.
  static constexpr int64_t kAbsent = std::numeric_limits<int64_t>::max();

  // `tie_ranks`, which must outlive this: of each contestant; of equal scores the lower wins.
  explicit Tournament(std::span<const uint32_t> tie_ranks);

  void Set(uint32_t contestant, int64_t score);
  // Sets many without matches; Replay makes them up.
  void SetUnplayed(uint32_t contestant, int64_t score) { scores_[contestant] = score; }
  void Replay();

  // Matches played by Set so far.
  uint64_t matches() const { return matches_; }

  int64_t score(uint32_t contestant) const { return scores_[contestant]; }
  std::optional<uint32_t> Best() const { return Present(winners_[1]); }
  // The best of all but one.
  std::optional<uint32_t> BestExcept(uint32_t contestant) const;

  // From the best on: a walk that costs log2(n) a step.
  class Walk {
   public:
    explicit Walk(const Tournament& tournament);
    std::optional<uint32_t> Next();

   private:
    struct Entry {
      uint32_t at;
      uint32_t winner;
    };
    void Push(uint32_t at);
    const Tournament* tournament_;
    std::vector<Entry> heap_;
  };

 private:
  static constexpr uint32_t kNobody = std::numeric_limits<uint32_t>::max();

  uint32_t Better(uint32_t a, uint32_t b) const;
  std::optional<uint32_t> Present(uint32_t winner) const;

  std::span<const uint32_t> tie_ranks_;
  uint32_t leaves_;
  uint64_t matches_ = 0;
  std::vector<int64_t> scores_;
  std::vector<uint32_t> winners_;  // [1] is the root; leaf of contestant c: leaves_ + c
};

}  // namespace prorata::policy::placement
