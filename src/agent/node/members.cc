#include "agent/node/members.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <memory>
#include <utility>

#include "agent/share/share_events.h"
#include "base/clock.h"

namespace prorata::agent {

Member* Members::Admit(Share& share, const ProcessId& process, uint32_t inner_pid,
                       PeerWatch watch) {
  Member* member = share.Admit(process, inner_pid);
  if (member == nullptr) return nullptr;
  member->command = std::move(watch.command);
  Follow(share, *member, std::move(watch.pidfd));
  events_.Add(EventOf(api::EventKind::kMemberJoined, share, member));
  return member;
}

void Members::Watch(Share& share, Member& member) {
  auto pidfd = WatchProcess(member.process, &member.command);
  if (pidfd) return Follow(share, member, std::move(*pidfd));
  if (pidfd.error().code != "no_process") return;  // unknown: asked again (ShareLives::WatchAgain)
  // Dead already; not from here, for the caller still holds it.
  boost::asio::post(loop_,
                    [this, id = share.id(), process = member.process] { OnDeath(id, process); });
}

void Members::Follow(Share& share, Member& member, UniqueFd pidfd) {
  const auto on_death = [this, id = share.id(), process = member.process] { OnDeath(id, process); };
  member.watch = std::make_unique<ProcessWatch>(loop_, std::move(pidfd), on_death);
}

void Members::OnDeath(uint64_t share_id, const ProcessId& process) {
  Share* share = shares_.Find(share_id);
  Member* dead = share != nullptr ? share->FindLiving(process) : nullptr;
  if (dead != nullptr) Depart(*share, *dead);
}

void Members::Depart(Share& share, Member& member) {
  spdlog::debug("share '{}': member {} departed", share.config().name, member.process.pid);
  ReportCounters(events_, share, member);
  ReportWhatEnded(events_, share, member);
  events_.Add(EventOf(api::EventKind::kMemberGone, share, &member));
  leases_.RescheduleAll(share);  // it pays until now
  share.Depart(member, RealClock().NowNs());
  sharing_.Departed(share, member);
  leases_.RescheduleAll(share);
  share.EndIfOver();
  reaper_.ReapSoon();
}

bool Members::LeavesOthers(const Share& share, const ProcessId& process) {
  for (Share* other : shares_.All()) {
    Member* member = other == &share ? nullptr : other->FindLiving(process);
    if (member == nullptr) continue;
    if (member->connection != nullptr && !HasHungUp(member->connection->fd())) return false;
    Depart(*other, *member);
  }
  return true;
}

void Members::SweepDead(Share& share) {
  for (Member* member : share.Members()) {
    if (member->departed || member->watch == nullptr) continue;
    if (HasEnded(member->watch->pidfd())) Depart(share, *member);
  }
}

}  // namespace prorata::agent
