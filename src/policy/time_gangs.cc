// TimeSharing's part in gangs (gangs.h): shares that run on all their devices at once.

#include "policy/time_sharing.h"

namespace prorata::policy {

void TimeSharing::SetGang(Key key, GangTurn turn, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return;
  share->gang = turn;
  if (turn == GangTurn::kNone && share->drained) EndDrain(*share);
  if (turn == GangTurn::kAway && share->phase == Phase::kOpen) CallBackGang(*share);
  if (turn == GangTurn::kAway && successor_ == key) have_successor_ = false;
  const bool on = turn == GangTurn::kOn || turn == GangTurn::kCatchUp;
  if (!on || share->phase != Phase::kDraining || !share->occupies) return;
  // Called back, and nobody was let in since: its turn goes on.
  share->phase = Phase::kOpen;
  share->occupies = share->drained = share->wanting = share->idle = false;
  share->active_ns = now_ns_;
}

// Where it has nothing, it has drained; but it keeps the device until it has on all of them, or
// what it has out elsewhere would wait for what it cannot launch here.
void TimeSharing::CallBackGang(Share& share) {
  const bool idle = share.idle;
  Close(share, true);
  share.drained = idle;
}

void TimeSharing::EndGangDrain(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share != nullptr && share->drained) EndDrain(*share);
}

TimeSharing::GangSeen TimeSharing::SeeGang(Key key, int64_t now_ns) {
  Account(now_ns);
  Share* share = Find(key);
  if (share == nullptr) return {};
  GangSeen seen;
  seen.wanting = share->wanting;
  seen.open = share->phase == Phase::kOpen;
  seen.idle = share->idle;
  seen.draining = share->phase == Phase::kDraining && share->occupies;
  seen.drained = share->drained;
  seen.passed_over = share->phase == Phase::kPassedOver;
  seen.limited = Limited(*share);
  seen.backlog_ns = share->backlog_ns;
  if (!share->wanting || !Eligible(*share)) return seen;
  const Share* best = Best(/*gangs_too=*/true);
  const Share* occupant = Occupant();
  seen.may = RankOf(*best) <= RankOf(*share) &&
             (occupant == nullptr || RankOf(*occupant) <= RankOf(*share));
  seen.ready =
      best == share &&
      (occupant == nullptr || (occupant->phase == Phase::kOpen && TurnIsOver(*occupant, *share)));
  return seen;
}

}  // namespace prorata::policy
