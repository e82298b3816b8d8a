#include "agent/server/member_messages.h"

namespace prorata::agent {
namespace {

template <typename Message>
std::optional<MemberMessage> Read(const wire::FrameHeader& header, const uint8_t* body,
                                  uint32_t device_count) {
  Message message;
  if (!wire::ReadMessage(header, body, &message)) return std::nullopt;
  if constexpr (requires { message.device; }) {
    if (message.device >= device_count) return std::nullopt;
  }
  return message;
}

}  // namespace

std::optional<MemberMessage> DecodeMemberMessage(const wire::FrameHeader& header,
                                                 const uint8_t* body, uint32_t device_count) {
  if (header.version < wire::kWireVersion) return std::nullopt;
  switch (static_cast<wire::MessageType>(header.type)) {
    case wire::MessageType::kJoin:
      return Read<wire::Join>(header, body, device_count);
    case wire::MessageType::kGrantRequest:
      return Read<wire::GrantRequest>(header, body, device_count);
    case wire::MessageType::kContextMade:
      return Read<wire::ContextMade>(header, body, device_count);
    case wire::MessageType::kLeaseWanted:
      return Read<LeaseWanted>(header, body, device_count);
    case wire::MessageType::kLeaseIdle:
      return Read<LeaseIdle>(header, body, device_count);
    case wire::MessageType::kLeaseDrained:
      return Read<LeaseDrained>(header, body, device_count);
    case wire::MessageType::kUsageWanted:
      return Read<wire::UsageWanted>(header, body, device_count);
    case wire::MessageType::kMemoryShared:
      return Read<wire::MemoryShared>(header, body, device_count);
    case wire::MessageType::kMemoryOpening:
      return Read<wire::MemoryOpening>(header, body, device_count);
    case wire::MessageType::kMemoryLetGo:
      return Read<wire::MemoryLetGo>(header, body, device_count);
    case wire::MessageType::kMemoryTaken:
      return Read<wire::MemoryTaken>(header, body, device_count);
    default:
      return std::nullopt;  // the agent's own types, the control socket's, and what never was one
  }
}

}  // namespace prorata::agent
