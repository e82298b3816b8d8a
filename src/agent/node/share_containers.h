#pragma once

// Which container a share belongs to: the first whose process joins, until no process is in it.
// And who uses a share's device from there without being a member. Not thread-safe: the agent's
// loop.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <vector>

#include "agent/containers/containers.h"
#include "agent/containers/outside.h"
#include "agent/node/members.h"
#include "agent/node/state_writer.h"
#include "agent/runtime/devices.h"
#include "agent/runtime/process.h"
#include "agent/runtime/worker.h"
#include "agent/share/events.h"
#include "agent/share/shares.h"

namespace prorata::agent {

class ShareContainers {
 public:
  // All must outlive it. `state`: in which whose container it is stands.
  ShareContainers(boost::asio::io_context& loop, Worker& disk, const Shares& shares,
                  Devices& devices, Members& members, Events& events, StateWriter& state);

  // Whether a program of this user and container may use the share.
  static bool MayUse(const Share& share, const Peer& peer);
  // A share belongs to one container at a time, unless it was made for any: then the first of those
  // that use it is shown as its own.
  bool MayJoinFrom(Share& share, const Peer& peer);
  // To be called once a second or so: containers that have ended, processes outside.
  void Poll();
  // The processes outside of a share that were reported and are there still.
  std::vector<Outside::Found> OutsideOf(const Share& share) const {
    return outside_.Of(share.id());
  }

 private:
  void SetContainer(Share& share, Container container, const ProcessId& process);
  void ForgetIfEmpty(Share& share);
  std::vector<Outside::SharePlace> Places() const;
  bool IsMember(pid_t pid) const;
  void OnFound(uint64_t share_id, const Outside::Found& found);

  Containers containers_;
  const Shares& shares_;
  Members& members_;
  Events& events_;
  StateWriter& state_;
  Outside outside_;
};

}  // namespace prorata::agent
