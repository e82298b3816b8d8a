// TimeSharing's part in gangs (gangs.h): shares that run on all their devices at the same time.

#include <algorithm>
#include <utility>

#include "policy/compute/time_sharing.h"

namespace prorata::policy {

void TimeSharing::SetGang(Key key, GangSlice slice, int64_t now_ns, uint32_t launches) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return;
  const bool gathered = std::exchange(share->gang, slice) == GangSlice::kGather;
  const bool by_launches = share->launches > 0;
  share->launches = slice == GangSlice::kCatchUp ? launches : 0;
  if (slice == GangSlice::kNone && share->gang_drained) EndDrain(*share);
  if (slice == GangSlice::kAway && share->phase == Phase::kRunning) {
    // Where it has nothing, it has drained; but it keeps the device until it has on all of them, or
    // what it has out elsewhere would wait for what it cannot launch here.
    const bool idle = share->idle_hint || gathered;
    Revoke(*share);
    share->gang_drained = idle;
  }
  if ((by_launches || share->launches > 0) && share->phase == Phase::kRunning)
    share->issued_open = false;  // issued again
  if (gathered && share->phase == Phase::kRunning) {
    share->granted_ns = now_ns_;
    share->gathered = slice == GangSlice::kOn;
  }
  const bool on = slice == GangSlice::kOn || slice == GangSlice::kCatchUp;
  if (!on || share->phase != Phase::kDraining) return;
  if (slice == GangSlice::kCatchUp && launches == 0) {
    share->deadline_ns = DrainDeadline(*share);
    return;
  }
  Grant(*share);  // revoked, and nobody was dispatched since: its slice goes on
}

void TimeSharing::EndGangDrain(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr || share->phase != Phase::kDraining) return;
  if (share->gang_drained) {
    EndDrain(*share);
  } else if (share->work.blocked) {
    Stall(*share);
  }
}

// Whoever does not drain by its deadline stalls, and others are let in beside it.
int64_t TimeSharing::FreeInNs() const {
  int64_t draining_ns = RemainingNs(), longest_ns = 0;
  for (const Share& share : shares_) {
    if (share.phase == Phase::kDraining) {
      draining_ns = std::min(draining_ns, std::max<int64_t>(0, share.deadline_ns - now_ns_));
    } else if (share.phase == Phase::kRunning && !share.work.blocked) {
      const int64_t left_ns =
          std::clamp<int64_t>(ExpectedEndNs(share) - now_ns_, 0, DrainDeadline(share) - now_ns_);
      longest_ns = std::max(longest_ns, left_ns);
    }
  }
  return std::max(draining_ns, longest_ns);
}

bool TimeSharing::Idles() const {
  bool could = false;
  for (const Share& share : shares_) {
    if (share.phase == Phase::kRunning || share.phase == Phase::kDraining) return false;
    could = could || (share.gang == GangSlice::kNone && Eligible(share));
  }
  return could;
}

TimeSharing::GangSeen TimeSharing::SeeGang(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return {};
  share->elsewhere = true;
  GangSeen seen;
  seen.runnable = Waits(*share) || share->wants_again;
  seen.open = share->phase == Phase::kRunning;
  seen.idle = share->idle_hint;
  seen.draining = share->phase == Phase::kDraining;
  seen.drained = share->gang_drained;
  seen.stalled = share->phase == Phase::kStalled;
  seen.blocked = share->work.blocked;
  seen.limited_ns = LimitedNs(*share);
  seen.backlog_ns = share->work.backlog_ns;
  seen.lag_ns = share->lag_ns;
  if (!seen.runnable || share->gang == GangSlice::kNone) return seen;
  seen.free_in_ns = std::max({FreeInNs(), TokensAfterNs(*share), PauseLeftNs(*share)});
  if (!Eligible(*share)) return seen;
  const Share* best = Best(/*gangs_too=*/true);
  const Share* running = Running();
  const bool above =
      running != nullptr && !DoesNothing(*running) && RankOf(*running) > RankOf(*share);
  // Slices do not end on all its devices at the same time: it need not wait for that, if it has
  // waited for as long as one.
  const bool due = running == nullptr || MustYield(*running, *share) ||
                   (now_ns_ - share->runnable_ns >= options_.slice_ns &&
                    RankOf(*running) == RankOf(*share) && share->lag_ns > running->lag_ns);
  const Share* plain = Best();
  seen.ready = best == share && due;
  seen.ahead = due && (plain == nullptr || (!HasTurn(*plain) && IsBefore(*share, *plain)));
  seen.owes = (running != nullptr && IsShort(*running, *share)) ||
              (plain != nullptr && IsShort(*plain, *share));
  seen.may = RankOf(*best) <= RankOf(*share) && !above;
  return seen;
}

}  // namespace prorata::policy
