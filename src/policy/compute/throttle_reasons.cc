#include "policy/compute/throttle_reasons.h"

namespace prorata::policy {

std::vector<ThrottleReason> ThrottleReasons(const ThrottleFigures& figures) {
  std::vector<ThrottleReason> reasons;
  if (figures.programs == 0) {
    reasons.push_back(ThrottleReason::kNoProgram);
  } else if (figures.stopped) {
    reasons.push_back(ThrottleReason::kDoesNotAnswer);  // nothing else is known of it
  } else {
    const bool endless = figures.persistent_kernels > 0;
    if (endless || figures.undrained >= kMinUndrained)
      reasons.push_back(ThrottleReason::kNonPreemptible);
    if (figures.memory_waits > 0) reasons.push_back(ThrottleReason::kWaitsForMemory);
    const bool limited = figures.at_limit >= kMinHeldBack;
    const bool waits = figures.waiting >= kMinHeldBack;
    const bool limit_first =
        figures.at_limit >= figures.waiting || figures.busy >= kLimitReached * figures.limit;
    if (limited && limit_first) reasons.push_back(ThrottleReason::kAtLimit);
    if (waits) reasons.push_back(ThrottleReason::kWaitsForOthers);
    if (limited && !limit_first) reasons.push_back(ThrottleReason::kAtLimit);
    // A kernel of seconds counts as used when it ends; until then it is the backlog that shows it.
    if (reasons.empty() && figures.busy < kMaxIdleBusy && figures.backlog_ns <= 0) {
      reasons.push_back(ThrottleReason::kIdle);
    }
  }
  if (figures.over_memory_limit) reasons.push_back(ThrottleReason::kOverMemoryLimit);
  return reasons;
}

}  // namespace prorata::policy
