#pragma once

// The two layers below the messages of the Node Resource Interface: frames of its multiplexer
// (containerd/nri, pkg/net/multiplex), which carry the byte streams of several connections, and in
// each stream messages of ttrpc (containerd/ttrpc, channel.go). Numbers are big-endian:
//
//   frame     | connection u32 | bytes u32 | a piece of that connection's stream |
//   message   | bytes u32 | stream u32 | type u8 | flags u8 | data |
//
// A frame need not begin or end where a message does. No sockets here: bytes come in any chunks.
// What can be kept is bounded by one message for each of the two connections. Pure; one thread.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::kubernetes {

enum class TtrpcType : uint8_t { kRequest = 1, kResponse = 2, kData = 3 };

struct TtrpcMessage {
  uint32_t connection = 0;
  uint32_t stream = 0;
  TtrpcType type = TtrpcType::kRequest;
  uint8_t flags = 0;
  std::string data = {};

  bool operator==(const TtrpcMessage&) const = default;
};

// The multiplexer's connections: on the first the runtime asks and the plugin answers, on the
// second the other way round.
inline constexpr uint32_t kPluginConnection = 1;
inline constexpr uint32_t kRuntimeConnection = 2;

inline constexpr size_t kMaxTtrpcBytes = size_t{4} << 20;
inline constexpr size_t kTtrpcHeaderBytes = 10;

class FrameDecoder {
 public:
  // Takes what was received; the messages that it completes, in order. "nri_protocol": what no
  // runtime sends. Nothing can be taken after that.
  Result<std::vector<TtrpcMessage>> Take(std::string_view bytes);

 private:
  Status TakePiece(uint32_t connection, std::string_view piece, std::vector<TtrpcMessage>* out);

  std::string header_;                  // of a frame that is not whole
  uint32_t connection_ = 0;             // of the frame that is being received
  size_t frame_left_ = 0;               // bytes of it that are still to come
  std::array<std::string, 2> streams_;  // of the known connections: an incomplete message
};

// The frames of a message, each so small that Go's buffered reader at the other end takes it whole.
std::string EncodeFrames(const TtrpcMessage& message);

}  // namespace prorata::kubernetes
