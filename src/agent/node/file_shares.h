#pragma once

// Shares that a resource-config.txt asks for: they are there while their line is, with members or
// without, and any number of programs joins them by name. Not thread-safe: the agent's loop.

#include <cstddef>
#include <string>
#include <vector>

#include "agent/config/resource_config.h"
#include "agent/node/descriptions.h"
#include "agent/node/members.h"
#include "agent/node/share_changes.h"
#include "agent/node/share_lives.h"
#include "agent/node/state_writer.h"
#include "agent/share/events.h"
#include "agent/share/shares.h"
#include "base/result.h"

namespace prorata::agent {

class FileShares {
 public:
  // All must outlive it.
  FileShares(const Shares& shares, ShareLives& lives, ShareChanges& changes, Members& members,
             const Descriptions& descriptions, Events& events, StateWriter& state)
      : shares_(shares),
        lives_(lives),
        changes_(changes),
        members_(members),
        descriptions_(descriptions),
        events_(events),
        state_(state) {}

  // These, and no others, are the shares of the file for this device from now on; all of it is done
  // or nothing. "resource_config" with file and line.
  Status Apply(size_t device, const std::string& file, const std::vector<ResourceClient>& clients);
  bool Any(size_t device) const { return !On(device).empty(); }
  // Its file is none of this agent's any more: as if it were empty.
  void EndAll(size_t device);

 private:
  class Change;
  std::vector<Share*> On(size_t device) const;
  void End(Share& share);

  const Shares& shares_;
  ShareLives& lives_;
  ShareChanges& changes_;
  Members& members_;
  const Descriptions& descriptions_;
  Events& events_;
  StateWriter& state_;
};

}  // namespace prorata::agent
