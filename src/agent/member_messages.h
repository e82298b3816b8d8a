#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "protocol/frame.h"

namespace prorata::agent {

struct LeaseWanted : protocol::LeaseEvent {};
struct LeaseIdle : protocol::LeaseEvent {};
struct LeaseDrained : protocol::LeaseEvent {};

using MemberMessage =
    std::variant<protocol::Join, protocol::GrantRequest, protocol::ContextMade, LeaseWanted,
                 LeaseIdle, LeaseDrained, protocol::UsageWanted, protocol::MemoryShared,
                 protocol::MemoryOpening, protocol::MemoryLetGo, protocol::MemoryTaken>;

// What a member may say, out of a frame's bytes: a known type, long enough, and about one of the
// share's `device_count` devices. Nothing: the connection is to be closed. Pure.
std::optional<MemberMessage> DecodeMemberMessage(const protocol::FrameHeader& header,
                                                 const uint8_t* body, uint32_t device_count);

}  // namespace prorata::agent
