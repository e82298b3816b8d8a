#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "agent/member_messages.h"

// Bytes as they come from a member's socket: framed, then decoded.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using prorata::protocol::FrameReader;
  std::vector<uint8_t> buffer(prorata::protocol::kFrameHeaderBytes +
                              prorata::protocol::kMaxMemberBodyBytes);
  FrameReader reader(buffer.data(), buffer.size());
  while (true) {
    prorata::protocol::FrameHeader header;
    const uint8_t* body = nullptr;
    const auto state = reader.Next(&header, &body);
    if (state == FrameReader::State::kBad) return 0;
    if (state == FrameReader::State::kFrame) {
      const auto message = prorata::agent::DecodeMemberMessage(header, body, 2);
      if (!message) return 0;
      std::visit(
          [](const auto& m) {
            if constexpr (requires { m.device; }) {
              if (m.device >= 2) __builtin_trap();
            }
          },
          *message);
      continue;
    }
    if (size == 0) return 0;
    const size_t chunk = size < reader.SpaceBytes() ? size : reader.SpaceBytes();
    std::memcpy(reader.Space(), data, chunk);
    reader.Filled(chunk);
    data += chunk;
    size -= chunk;
  }
}
