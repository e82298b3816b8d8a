// The audit of device time: charges are compared with what the device itself says, and what is
// missing is added. It needs no trust in what members publish, and catches what no rule of the
// accounts foresees. It is late by a second or so, therefore the accounts do not rest on it.

#include <algorithm>

#include "policy/compute/time_sharing.h"

namespace prorata::policy {
namespace {

// The device's figures are of a slightly other time than the charges: a share may run now what it
// was charged for at most so long ago. Larger, a share that is charged too much and too little by
// turns is corrected later; smaller, it is charged twice.
constexpr double kMaxSpareNs = 200e6;
// They are whole percentages of about a second: less than this is noise.
constexpr double kNoiseNs = 10e6;
// A figure that was rounded down hides half a percent: that is not taken back from anybody. It
// would add up, for whoever runs for 4 ms of each second has a figure of 0.
constexpr double kHiddenNs = 5e6;

}  // namespace

std::vector<TimeSharing::Correction> TimeSharing::Audit(const std::vector<Ran>& ran,
                                                        int64_t now_ns) {
  Account(now_ns);
  double missing_ns = 0;
  double spare_ns = 0;
  for (const Ran& one : ran) {
    Share* share = Find(one.share);
    if (share == nullptr) continue;
    share->spare_charge_ns -= one.ran_ns;
    if (share->spare_charge_ns > 0) {
      share->spare_charge_ns = std::max(0.0, share->spare_charge_ns - kHiddenNs);
    }
    if (share->spare_charge_ns < -kNoiseNs) {
      missing_ns -= share->spare_charge_ns;
      share->limit_tokens_ns =
          std::max(share->limit_tokens_ns + share->spare_charge_ns, -kMaxDebtNs);
    }
    spare_ns += std::max(share->spare_charge_ns, 0.0);
  }
  // All together are charged no more than the wall time: what is missing to one was charged to
  // nobody, or to another that did not use it.
  const double unclaimed_ns = std::min(missing_ns, unclaimed_ns_);
  unclaimed_ns_ -= unclaimed_ns;
  const double taken_back_ns = std::min(missing_ns - unclaimed_ns, spare_ns);
  std::vector<Correction> corrections;
  for (const Ran& one : ran) {
    Share* share = Find(one.share);
    if (share == nullptr) continue;
    double by_ns = 0;
    if (share->spare_charge_ns < -kNoiseNs) {
      by_ns = share->spare_charge_ns * (unclaimed_ns + taken_back_ns) / missing_ns;
      share->spare_charge_ns = 0;
    } else if (share->spare_charge_ns > 0) {
      by_ns = share->spare_charge_ns * taken_back_ns / spare_ns;
      share->spare_charge_ns = std::min(share->spare_charge_ns - by_ns, kMaxSpareNs);
      share->limit_tokens_ns = std::min(share->limit_tokens_ns + by_ns, SliceNs());
    }
    share->charged_ns -= by_ns;
    share->lag_ns = std::max(share->lag_ns + by_ns, -kMaxDebtNs);
    if (by_ns != 0) corrections.push_back({one.share, -by_ns});
  }
  return corrections;
}

}  // namespace prorata::policy
