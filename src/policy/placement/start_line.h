#pragma once

// Who of those that wait in line for a share may have it made now.
//
// Shares are made in the order in which they were asked for, but for one case: a later one
// overtakes where nobody in front of it waits longer for that than if nobody overtook anybody. When
// shares end is not known, so this is judged against every way in which things may go on:
//
//   A waiter W needs w of a resource of which there is C. It fits as soon as those that are still
//   there hold at most C - w together: some of those that hold something now, and some of those in
//   front of W, who may have been served by then. Of all sums that such a set can have, let r be
//   the largest that is at most C - w. Whoever takes no more than C - w - r beside them changes
//   nothing for W: each set that leaves W enough leaves it enough still.
//
// The smallest of these figures over all that stand in front, resource by resource and place by
// place, is what may be taken behind them (MayTake). It holds for any number that overtake, one
// after another, since each is judged with those before it in place; and nobody starves: when those
// have ended that were there when W came, and those in front of W, W fits whatever came meanwhile.
//
// It is assumed that what is held ends as a whole. A share that is made smaller (`prorata update`)
// may leave enough for W, but for one that overtook; W then waits for that one, too.
//
// A *place* is what shares are made of: a device, and the agent's table of shares. A waiter has a
// claim on each place where its share may be made. Sums are kept as at most so many ranges, and
// nearby ones are merged: who overtakes is then judged too strictly, never too loosely.
//
// Pure; not thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace prorata::policy {

// Kinds of resources that a place has; what each of them is, is the caller's business.
inline constexpr size_t kStartResources = 5;
using StartAmounts = std::array<uint64_t, kStartResources>;

struct StartClaim {
  StartAmounts needs = {};  // so much must be left for the share to be made; 0: it waits for none
  StartAmounts takes = {};  // so much is gone then
};
using StartClaims = std::map<size_t, StartClaim>;  // by place

struct StartPlace {
  StartAmounts capacity = {};
  std::vector<StartAmounts> held = {};  // by each that may end
};

// A walk along the line, from its head: for each in order first MayTake, then PassBy or Make.
class StartLine {
 public:
  explicit StartLine(const std::vector<StartPlace>& places);

  // Whether taking so much of a place delays nobody that was passed by.
  bool MayTake(size_t place, const StartAmounts& takes) const;
  // The next one goes on waiting, wherever its share may be made.
  void PassBy(const StartClaims& claims);
  // The next one's share is made, here.
  void Make(size_t place, const StartAmounts& takes);

 private:
  // Of one resource of one place: the sums that can be held of it, as ranges in order.
  class Sums {
   public:
    void Add(uint64_t amount);
    // The largest that is not above `bound`.
    uint64_t LargestUpTo(uint64_t bound);

   private:
    using Range = std::pair<uint64_t, uint64_t>;  // both ends belong to it

    void TakeIn(uint64_t amount);

    std::vector<Range> ranges_ = {{0, 0}};
    // Not in the ranges yet: where nobody is passed by, nobody asks for a sum.
    std::vector<uint64_t> added_;
  };
  struct Resource {
    uint64_t capacity = 0;
    uint64_t spare = UINT64_MAX;  // may be taken without delaying anybody that was passed by
    Sums sums;
  };
  using Place = std::array<Resource, kStartResources>;

  std::vector<Place> places_;
};

}  // namespace prorata::policy
