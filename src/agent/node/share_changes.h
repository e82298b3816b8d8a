#pragma once

// Other terms for a share and its running members, in force at once. Not thread-safe: the agent's
// loop.

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "agent/compute/leases.h"
#include "agent/memory/memory_requests.h"
#include "agent/memory/reaper.h"
#include "agent/node/descriptions.h"
#include "agent/node/state_writer.h"
#include "agent/runtime/devices.h"
#include "agent/share/events.h"
#include "agent/share/shares.h"
#include "api/control.h"
#include "base/result.h"

namespace prorata::agent {

class ShareChanges {
 public:
  using OnShare = std::function<void(Result<Share*>)>;

  // All must outlive it.
  ShareChanges(const Shares& shares, Devices& devices, Leases& leases, MemoryRequests& memory,
               Reaper& reaper, const Descriptions& descriptions, Events& events, StateWriter& state)
      : shares_(shares),
        devices_(devices),
        leases_(leases),
        memory_(memory),
        reaper_(reaper),
        descriptions_(descriptions),
        events_(events),
        state_(state) {}

  // Update changed a share: others may fit now.
  std::function<void()> on_changed;

  // By fresh figures, as far as there are some in time; `then` comes when it is on the disk. One
  // after another, so that what cannot be saved ("state") can be undone: then the share has its
  // former terms again. "no_share", "exclusive", "resource_config", and as ValidateChange.
  void Update(const std::string& name, const api::ShareChange& change, OnShare then);

  // For all of its devices, judged before; of `also`, what is not said by a device. Not saved.
  // "memory_exceeded": then nothing is changed.
  Status Apply(Share& share, const std::vector<api::ShareTerms>& terms,
               const api::ShareChange& also = {});
  void SetUsers(Share& share, api::AllowedUsers users);

 private:
  struct Change {
    std::string name;
    api::ShareChange change;
    OnShare then;
  };
  // What an update can change of a share.
  struct State {
    std::vector<api::ShareTerms> terms;
    api::OnFull on_full;
    api::Gang gang;
    api::AllowedUsers allow_users;
    bool operator==(const State&) const = default;
  };
  static State StateOf(const Share& share);

  void UpdateFirst();
  void Answer(Result<Share*> share);  // the first of them
  Error Undo(Share& share, const State& former, const State& updated, const Error& why);
  Result<Share*> UpdateNow(const std::string& name, const api::ShareChange& change);
  void SetOnFull(Share& share, api::OnFull on_full);
  void SetGang(Share& share, api::Gang gang);
  void SetTerms(Share& share, uint32_t index, const api::ShareTerms& terms);

  const Shares& shares_;
  Devices& devices_;
  Leases& leases_;
  MemoryRequests& memory_;
  Reaper& reaper_;
  const Descriptions& descriptions_;
  Events& events_;
  StateWriter& state_;
  std::deque<Change> updates_;  // the first is under way
};

}  // namespace prorata::agent
