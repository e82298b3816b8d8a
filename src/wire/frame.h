#pragma once

// Framing apart from sockets: feed it bytes in any chunks, take whole frames out. Freestanding (the
// client library uses it): the buffer is the caller's, nothing allocates, nothing throws.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "wire/messages.h"

namespace prorata::wire {

struct FrameHeader {
  uint32_t body_bytes;
  uint16_t type;
  uint16_t version;
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);

// Collects frames whose body is at most `capacity - kFrameHeaderBytes` bytes in a buffer of
// `capacity` bytes. Use: copy received bytes to Space()/SpaceBytes(), say Filled(n), then call
// Next() until it answers kNeedMore. A kBad is final: the stream cannot be followed any further.
class FrameReader {
 public:
  enum class State { kFrame, kNeedMore, kBad };

  constexpr FrameReader(uint8_t* buffer, size_t capacity) : buffer_(buffer), capacity_(capacity) {}

  uint8_t* Space() { return buffer_ + end_; }
  size_t SpaceBytes() const { return capacity_ - end_; }
  void Filled(size_t bytes) { end_ += bytes; }

  // The body stays valid until the next call of Next().
  State Next(FrameHeader* header, const uint8_t** body) {
    Drop();
    if (end_ < kFrameHeaderBytes) return State::kNeedMore;
    std::memcpy(header, buffer_, kFrameHeaderBytes);
    if (header->body_bytes > capacity_ - kFrameHeaderBytes) return State::kBad;
    if (end_ - kFrameHeaderBytes < header->body_bytes) return State::kNeedMore;
    taken_ = kFrameHeaderBytes + header->body_bytes;
    *body = buffer_ + kFrameHeaderBytes;
    return State::kFrame;
  }

 private:
  void Drop() {
    if (taken_ == 0) return;
    std::memmove(buffer_, buffer_ + taken_, end_ - taken_);
    end_ -= taken_;
    taken_ = 0;
  }

  uint8_t* buffer_;
  size_t capacity_;
  size_t end_ = 0;
  size_t taken_ = 0;
};

// Reads a message struct from a body; false if the body is too short for it.
template <typename Message>
bool ReadMessage(const FrameHeader& header, const uint8_t* body, Message* message) {
  if (header.body_bytes < sizeof(Message)) return false;
  std::memcpy(message, body, sizeof(Message));
  return true;
}

// A whole frame of a member message, ready to be sent.
template <typename Message>
struct Frame {
  FrameHeader header;
  Message message;

  Frame(MessageType type, const Message& body)
      : header{sizeof(Message), static_cast<uint16_t>(type), kWireVersion}, message(body) {}
};

}  // namespace prorata::wire
