#pragma once

// The members of shares from their first join to their death: each is watched by its pidfd. What a
// dead one held comes back by the Reaper. Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>

#include "agent/compute/leases.h"
#include "agent/memory/reaper.h"
#include "agent/memory/sharing.h"
#include "agent/runtime/process.h"
#include "agent/share/events.h"
#include "agent/share/shares.h"

namespace prorata::agent {

class Members {
 public:
  // All must outlive it.
  Members(boost::asio::io_context& loop, const Shares& shares, Leases& leases, Sharing& sharing,
          Reaper& reaper, Events& events)
      : loop_(loop),
        shares_(shares),
        leases_(leases),
        sharing_(sharing),
        reaper_(reaper),
        events_(events) {}

  // A member's process is new here: it gets a slot, which the share's limits file shows to the next
  // agent, and is watched. Null: no slot. `inner_pid`: Share::Admit's.
  Member* Admit(Share& share, const ProcessId& process, uint32_t inner_pid, PeerWatch watch);
  // One that an agent before us admitted.
  void Watch(Share& share, Member& member);
  // A process lives on one share. False: it is a member of another, with which it is connected.
  // Where it is a member and its connection has ended, it runs another program now (exec), and what
  // it was departs.
  bool LeavesOthers(const Share& share, const ProcessId& process);
  // A member's process is dead or became another program.
  void Depart(Share& share, Member& member);
  // Notices now the deaths that the loop has not come to yet.
  void SweepDead(Share& share);

 private:
  void Follow(Share& share, Member& member, UniqueFd pidfd);
  void OnDeath(uint64_t share_id, const ProcessId& process);

  boost::asio::io_context& loop_;
  const Shares& shares_;
  Leases& leases_;
  Sharing& sharing_;
  Reaper& reaper_;
  Events& events_;
};

}  // namespace prorata::agent
