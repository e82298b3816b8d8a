#include "policy/slowness.h"

namespace prorata::policy {

std::vector<Slowness> WhySlow(const SlownessFigures& figures) {
  std::vector<Slowness> reasons;
  if (figures.programs == 0) {
    reasons.push_back(Slowness::kNoProgram);
  } else {
    const bool endless = figures.persistent_kernels > 0;
    if (endless || figures.undrained >= kLeastUndrained) reasons.push_back(Slowness::kCannotBeHeld);
    if (figures.memory_waits > 0) reasons.push_back(Slowness::kWaitsForMemory);
    const bool limited = figures.at_limit >= kLeastHeldBack;
    const bool waits = figures.waiting >= kLeastHeldBack;
    const bool limit_first =
        figures.at_limit >= figures.waiting || figures.busy >= kLimitReached * figures.limit;
    if (limited && limit_first) reasons.push_back(Slowness::kAtLimit);
    if (waits) reasons.push_back(Slowness::kWaitsForTurn);
    if (limited && !limit_first) reasons.push_back(Slowness::kAtLimit);
    // A kernel of seconds counts as used when it ends; until then it is the backlog that shows it.
    if (reasons.empty() && figures.busy < kMostIdleBusy && figures.backlog_ns <= 0) {
      reasons.push_back(Slowness::kIdle);
    }
  }
  if (figures.over_memory_limit) reasons.push_back(Slowness::kOverMemoryLimit);
  return reasons;
}

}  // namespace prorata::policy
