#pragma once

// Memory that several members of a share hold: what policy::SharedBlocks decides, asked and
// recorded over the members' connections, and done to their grants.

#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "agent/share/share.h"
#include "base/clock.h"
#include "policy/memory/shared_blocks.h"
#include "wire/messages.h"

namespace prorata::agent {

class Sharing {
 public:
  // The share of an id, or null.
  using FindShare = std::function<Share*(uint64_t)>;
  explicit Sharing(FindShare find) : find_(std::move(find)) {}

  // Messages of a member; what there is to answer is sent to its connection.
  void OnShared(Share& share, Member& member, const wire::MemoryShared& message);
  void OnOpening(Share& share, Member& member, const wire::MemoryOpening& message);
  void OnLetGo(Share& share, Member& member, const wire::MemoryLetGo& message);
  void OnTaken(Share& share, Member& member, const wire::MemoryTaken& message);

  // A member is connected (again): what it was asked before is asked again.
  void Joined(Share& share, Member& member);
  void Departed(Share& share, Member& member);
  void Forget(uint64_t share_id);
  // Now and then: a member that does not join again is not waited for for ever.
  void Tick(Share& share);

  // Whether a departed member's grant may still stand for memory that another is to take over.
  bool Owes(const Share& share, const Member& member) const {
    return !IsComplete(share) || blocks_.Owes(share.id(), member.slot);
  }

 private:
  bool IsComplete(const Share& share) const;
  void Do(Share& share, const policy::SharedBlocks::Actions& actions);

  FindShare find_;
  policy::SharedBlocks blocks_;
  const int64_t started_ns_ = RealClock().NowNs();
  std::set<std::pair<uint64_t, uint32_t>> refused_;  // members that were reported in the log
};

}  // namespace prorata::agent
