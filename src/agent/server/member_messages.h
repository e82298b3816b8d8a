#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "wire/frame.h"

namespace prorata::agent {

struct LeaseWanted : wire::LeaseEvent {};
struct LeaseIdle : wire::LeaseEvent {};
struct LeaseDrained : wire::LeaseEvent {};

using MemberMessage = std::variant<wire::Join, wire::GrantRequest, wire::ContextMade, LeaseWanted,
                                   LeaseIdle, LeaseDrained, wire::UsageWanted, wire::MemoryShared,
                                   wire::MemoryOpening, wire::MemoryLetGo, wire::MemoryTaken>;

// What a member may say, out of a frame's bytes: a known type, long enough, and about one of the
// share's `device_count` devices. Nothing: the connection is to be closed. Pure.
std::optional<MemberMessage> DecodeMemberMessage(const wire::FrameHeader& header,
                                                 const uint8_t* body, uint32_t device_count);

}  // namespace prorata::agent
