#pragma once

// The life of a share: made, adopted from the agent before, kept while its owner or a member lives,
// and taken away with its files. Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "agent/compute/leases.h"
#include "agent/containers/specifications.h"
#include "agent/memory/memory_requests.h"
#include "agent/memory/reaper.h"
#include "agent/memory/sharing.h"
#include "agent/node/members.h"
#include "agent/node/state_writer.h"
#include "agent/runtime/devices.h"
#include "agent/runtime/heartbeat.h"
#include "agent/share/events.h"
#include "agent/share/shares.h"
#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace prorata::agent {

class ShareLives {
 public:
  // What has a part in every share. All must outlive it.
  struct Uses {
    const DilatedClock& clock;
    Shares& shares;
    Devices& devices;
    Heartbeat& heartbeat;
    Leases& leases;
    MemoryRequests& memory;
    Sharing& sharing;
    Members& members;
    Reaper& reaper;
    Specifications& specifications;
    Events& events;
    StateWriter& state;
  };
  ShareLives(boost::asio::io_context& loop, std::string shares_folder, const Uses& uses)
      : loop_(loop), folder_(std::move(shares_folder)), use_(uses) {}

  // Somebody connects to the socket of a share. Set before shares are made.
  std::function<void(uint64_t share_id, UniqueFd socket)> on_connection;
  // A share is there from now on.
  std::function<void(const Share& share)> on_made;
  // A share has ended, and was taken away.
  std::function<void()> on_gone;

  // With its folder and files; it is not saved. "share_folder", "limits", "memory_exceeded",
  // "listen", "pidfd".
  Result<Share*> Make(ShareConfig config);
  // One of the agent before, which may have been killed at any moment. "unknown_gpu", "limits",
  // "listen".
  Status Adopt(SavedShare saved);

  // Ends the share of this name, as End. "no_share"; "resource_config": a file keeps it.
  Status Remove(const std::string& name);
  // Nobody joins any more, and it is not kept: it is taken away when its members are gone, which
  // may be before this returns.
  void End(Share& share);
  // Takes a share away that is over: nothing keeps it, and the memory of its members is gone.
  void TakeAwayIfDone(uint64_t id);
  // Watches whom it could not watch so far. To be called now and then.
  void WatchAgain(Share& share);
  // Notices now if the process that keeps it has ended. The share may be gone after it.
  void SweepOwner(Share& share);

 private:
  Status Begin(Share& share);  // its socket, heartbeat, leases
  std::vector<Member*> Restore(Share& share);
  Status WatchOwner(Share& share);
  void OwnerEnded(Share& share);
  std::vector<uint64_t> ContextOverheads(const Share& share) const;  // on each of its devices

  boost::asio::io_context& loop_;
  const std::string folder_;
  const Uses use_;
};

}  // namespace prorata::agent
