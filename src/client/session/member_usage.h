#pragma once

// What a whole share has in use, as any of its processes may see it: the driver API and NVML of
// every process look at the same words, the members' own, so they agree at any moment.
//
// The rule of a snapshot: a call reads each member's word once. A member that charges or frees
// between two of these reads is seen as it was or as it is, and a grant that moves between two
// members meanwhile may be counted twice or not at all; the total is always the limit, used and
// free are always a total, and while nothing changes all answers everywhere are the same.
//
// The words lie in the members' usage memories, which the agent hands out for reading (wire.h,
// kUsageWanted). They are mapped when first wanted, to stay, at one address for each slot: a later
// member's takes the place of an earlier one's at once, under whoever is reading. Where one cannot
// be had (no agent, and joined since), what the slot was granted counts as used. Thread-safe;
// nobody waits for another thread here, and for the agent a twentieth of a second at most, seldom.

#include <cstdint>

#include "shm/limits_file.h"
#include "shm/usage_file.h"

namespace prorata::client {

// This process's own usage memory and its slot; nothing for who is no member.
struct OwnUsage {
  const shm::UsageFile* usage = nullptr;
  uint64_t slot = ~uint64_t{0};
};

// Maps what is missing of the members' usage memories. `folder` is the share's.
void FetchMemberUsage(const char* folder, const shm::LimitsFile& limits);

// What the member in `slot` has in use on a device, overhead that the audit found included. False:
// that could not be looked at, and the answer is its grant: FetchMemberUsage, and ask again.
bool UsedBySlot(const shm::LimitsFile& limits, uint32_t slot, uint32_t device, const OwnUsage& own,
                uint64_t* used);

// What all of the share has in use on a device, looked at anew if something was missing.
uint64_t UsedByShare(const char* folder, const shm::LimitsFile& limits, uint32_t device,
                     const OwnUsage& own);

}  // namespace prorata::client
