#pragma once

// From what a claim gives and its pod's annotations ask for to a change of the share that runs.
// Pure; thread-safe.

#include <string>

#include "api/control.h"
#include "base/result.h"
#include "kubernetes/pods/wish.h"

namespace prorata::kubernetes {

// The share of a claim (PlanClaim) as its wish has it. A guaranteed part above the limit that the
// claim gives, or that the wish does not name, is the agent's to refuse.
api::ShareSpec WishedShare(api::ShareSpec of_claim, const ShareWish& wish);

// What is to be different about the share; Empty(): nothing. "below_use": it would have less memory
// than its programs hold now.
Result<api::ShareChange> ChangeTo(const api::ShareSpec& wanted, const api::ShareStatus& now);

// "memory 8 GiB to 12 GiB, compute 30% to 50%": what differs, of the GPU where it does.
std::string DescribeChange(const api::ShareStatus& before, const api::ShareStatus& after);

}  // namespace prorata::kubernetes
