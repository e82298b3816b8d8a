// TimeSharing's part in gangs (gangs.h): shares that run on all their devices at the same time.

#include "policy/compute/time_sharing.h"

namespace prorata::policy {

void TimeSharing::SetGang(Key key, GangSlice slice, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return;
  share->gang = slice;
  if (slice == GangSlice::kNone && share->gang_drained) EndDrain(*share);
  if (slice == GangSlice::kAway && share->phase == Phase::kRunning) {
    // Where it has nothing, it has drained; but it keeps the device until it has on all of them, or
    // what it has out elsewhere would wait for what it cannot launch here.
    const bool idle = share->idle_hint;
    Revoke(*share);
    share->gang_drained = idle;
  }
  const bool on = slice == GangSlice::kOn || slice == GangSlice::kCatchUp;
  if (!on || share->phase != Phase::kDraining) return;
  Grant(*share);  // revoked, and nobody was dispatched since: its slice goes on
}

void TimeSharing::EndGangDrain(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share != nullptr && share->gang_drained) EndDrain(*share);
}

TimeSharing::GangSeen TimeSharing::SeeGang(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return {};
  GangSeen seen;
  seen.runnable = Waits(*share) || share->wants_again;
  seen.open = share->phase == Phase::kRunning;
  seen.idle = share->idle_hint;
  seen.draining = share->phase == Phase::kDraining;
  seen.drained = share->gang_drained;
  seen.stalled = share->phase == Phase::kStalled;
  seen.blocked = share->work.blocked;
  seen.limited = Limited(*share);
  seen.backlog_ns = share->work.backlog_ns;
  if (!Eligible(*share)) return seen;
  const Share* best = Best(/*gangs_too=*/true);
  const Share* running = Running();
  seen.may =
      RankOf(*best) <= RankOf(*share) && (running == nullptr || RankOf(*running) <= RankOf(*share));
  seen.ready = best == share && (running == nullptr ? RemainingNs() <= 0 || RemainingNs() == kNever
                                                    : MustYield(*running, *share));
  return seen;
}

}  // namespace prorata::policy
