#include "kubernetes/nri/frames.h"

#include <algorithm>

namespace prorata::kubernetes {
namespace {

constexpr size_t kFrameHeaderBytes = 8;
constexpr size_t kMaxFrameBytes = kTtrpcHeaderBytes + kMaxTtrpcBytes;
// The multiplexer gives a reader a frame whole or an error (ENOMEM), and ttrpc reads through a
// buffer of this size.
constexpr size_t kMaxSentFrameBytes = 4096;

uint32_t ReadU32(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

void AppendU32(uint32_t value, std::string* to) {
  for (const int shift : {24, 16, 8, 0}) to->push_back(static_cast<char>(value >> shift));
}

std::unexpected<Error> BadFrame(const std::string& what) {
  return Fail("nri_protocol",
              "the container runtime sent " + what +
                  " on its NRI socket, which is not NRI as prorata-kubernetes knows it");
}

}  // namespace

Result<std::vector<TtrpcMessage>> FrameDecoder::Take(std::string_view bytes) {
  std::vector<TtrpcMessage> messages;
  while (!bytes.empty()) {
    if (frame_left_ == 0) {
      const size_t wanted = std::min(bytes.size(), kFrameHeaderBytes - header_.size());
      header_.append(bytes.substr(0, wanted));
      bytes.remove_prefix(wanted);
      if (header_.size() < kFrameHeaderBytes) break;
      connection_ = ReadU32(header_);
      frame_left_ = ReadU32(std::string_view(header_).substr(4));
      header_.clear();
      if (frame_left_ > kMaxFrameBytes) {
        return BadFrame("a frame of " + std::to_string(frame_left_) + " bytes");
      }
      continue;
    }
    const std::string_view piece = bytes.substr(0, frame_left_);
    if (auto ok = TakePiece(connection_, piece, &messages); !ok) {
      return std::unexpected(ok.error());
    }
    frame_left_ -= piece.size();
    bytes.remove_prefix(piece.size());
  }
  return messages;
}

Status FrameDecoder::TakePiece(uint32_t connection, std::string_view piece,
                               std::vector<TtrpcMessage>* out) {
  // What a later protocol may have on other connections is not for us.
  if (connection != kPluginConnection && connection != kRuntimeConnection) return {};
  std::string& stream = streams_[connection - kPluginConnection];
  stream.append(piece);
  size_t begin = 0;
  while (stream.size() - begin >= kTtrpcHeaderBytes) {
    const std::string_view rest = std::string_view(stream).substr(begin);
    const size_t size = ReadU32(rest);
    if (size > kMaxTtrpcBytes) return BadFrame("a message of " + std::to_string(size) + " bytes");
    if (rest.size() < kTtrpcHeaderBytes + size) break;
    out->push_back(
        {connection, ReadU32(rest.substr(4)), static_cast<TtrpcType>(static_cast<uint8_t>(rest[8])),
         static_cast<uint8_t>(rest[9]), std::string(rest.substr(kTtrpcHeaderBytes, size))});
    begin += kTtrpcHeaderBytes + size;
  }
  stream.erase(0, begin);
  return {};
}

std::string EncodeFrames(const TtrpcMessage& message) {
  std::string stream;
  AppendU32(static_cast<uint32_t>(message.data.size()), &stream);
  AppendU32(message.stream, &stream);
  stream.push_back(static_cast<char>(message.type));
  stream.push_back(static_cast<char>(message.flags));
  stream += message.data;
  std::string frames;
  for (size_t at = 0; at < stream.size(); at += kMaxSentFrameBytes) {
    const std::string_view piece = std::string_view(stream).substr(at, kMaxSentFrameBytes);
    AppendU32(message.connection, &frames);
    AppendU32(static_cast<uint32_t>(piece.size()), &frames);
    frames += piece;
  }
  return frames;
}

}  // namespace prorata::kubernetes
