#include "agent/memory/charges.h"

#include <algorithm>

namespace prorata::agent {

uint64_t ChargedToLiving(const Shares& shares, pid_t pid, size_t device) {
  uint64_t sum = 0;
  for (const auto& [share, index] : shares.On(device)) {
    for (const Member* member : share->Members()) {
      if (member->departed || member->process.pid != pid || !member->usage) continue;
      sum += std::min(member->usage->device(index).used_bytes.load(),
                      share->ledger(index).grant_bytes(member->slot));
    }
  }
  return sum;
}

bool HasDepartedTwin(const Shares& shares, pid_t pid, size_t device) {
  for (const auto& [share, index] : shares.On(device)) {
    for (const Member* member : share->Members()) {
      if (member->departed && member->process.pid == pid && !member->devices[index].released) {
        return true;
      }
    }
  }
  return false;
}

uint64_t ChargedOn(const Shares& shares, size_t device) {
  uint64_t sum = 0;
  for (const auto& [share, index] : shares.On(device)) {
    for (const Member* member : share->Members()) sum += share->ChargedBytes(*member, index);
  }
  return sum;
}

}  // namespace prorata::agent
