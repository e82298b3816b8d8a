#include "agent/member_messages.h"

namespace prorata::agent {
namespace {

template <typename Message>
std::optional<MemberMessage> Read(const protocol::FrameHeader& header, const uint8_t* body,
                                  uint32_t device_count) {
  Message message;
  if (!protocol::ReadMessage(header, body, &message)) return std::nullopt;
  if constexpr (requires { message.device; }) {
    if (message.device >= device_count) return std::nullopt;
  }
  return message;
}

}  // namespace

std::optional<MemberMessage> DecodeMemberMessage(const protocol::FrameHeader& header,
                                                 const uint8_t* body, uint32_t device_count) {
  if (header.version < protocol::kWireVersion) return std::nullopt;
  switch (static_cast<protocol::MessageType>(header.type)) {
    case protocol::MessageType::kJoin:
      return Read<protocol::Join>(header, body, device_count);
    case protocol::MessageType::kGrantRequest:
      return Read<protocol::GrantRequest>(header, body, device_count);
    case protocol::MessageType::kContextMade:
      return Read<protocol::ContextMade>(header, body, device_count);
    case protocol::MessageType::kLeaseWanted:
      return Read<LeaseWanted>(header, body, device_count);
    case protocol::MessageType::kLeaseIdle:
      return Read<LeaseIdle>(header, body, device_count);
    case protocol::MessageType::kLeaseDrained:
      return Read<LeaseDrained>(header, body, device_count);
    case protocol::MessageType::kUsageWanted:
      return Read<protocol::UsageWanted>(header, body, device_count);
    case protocol::MessageType::kMemoryShared:
      return Read<protocol::MemoryShared>(header, body, device_count);
    case protocol::MessageType::kMemoryOpening:
      return Read<protocol::MemoryOpening>(header, body, device_count);
    case protocol::MessageType::kMemoryLetGo:
      return Read<protocol::MemoryLetGo>(header, body, device_count);
    case protocol::MessageType::kMemoryTaken:
      return Read<protocol::MemoryTaken>(header, body, device_count);
    default:
      return std::nullopt;  // the agent's own types, the control socket's, and what never was one
  }
}

}  // namespace prorata::agent
