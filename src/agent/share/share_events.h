#pragma once

// Events about shares and their members (api/event.h), filled in from what the agent knows.

#include <optional>

#include "agent/share/events.h"
#include "agent/share/share.h"
#include "api/event.h"
#include "wire/messages.h"

namespace prorata::agent {

// Of a share, a member of it and one of its devices; with the device go the share's limit and use
// on it.
api::Event EventOf(api::EventKind kind, const Share& share, const Member* member = nullptr,
                   std::optional<uint32_t> device = {});

api::Event CreatedEvent(const Share& share);
// Its container (Share::container) came or went.
api::Event ContainerEvent(api::EventKind kind, const Share& share);
// What `terms` make different on a device; before they are set.
api::Event ChangedEvent(const Share& share, uint32_t device, const api::ShareTerms& terms);
// An `auto` share is seen to be a gang from now on, or no longer.
api::Event GangEvent(const Share& share, bool begun);
// A process was turned away at a share's socket (null: the share is gone).
api::Event RefusedEvent(const Share* share, pid_t pid, wire::RefusedReason reason);

// What a member's usage memory counts, reported as events as far as it is new. The counters are the
// member's: what they say is believed as events only.
void ReportCounters(Events& events, Share& share, Member& member);
// It is dead, and so is what of it was to go on.
void ReportWhatEnded(Events& events, const Share& share, Member& member);

}  // namespace prorata::agent
